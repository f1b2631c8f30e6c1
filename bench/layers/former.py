"""The layer of `checkout.COMMIT`, in a process that has that commit's packages on its path."""

from importlib import import_module

Channel = import_module("rockoon_core.http2.channel").Http2Channel
Server = import_module("rockoon_runtime.http2_server").Http2Server
