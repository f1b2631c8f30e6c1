"""The layer of the former commit `checkout.COMMIT`; the process must have its packages on its
path."""

from importlib import import_module

Channel = import_module("rockoon_core.http2.channel").Http2Channel
Server = import_module("rockoon_runtime.http2_server").Http2Server
