"""Sessions of HTTP/2; `rockoon_rpc.session` states what they do."""

from rockoon_kernel._native import http2 as _http2

ServerSession = _http2.ServerSession
ClientSession = _http2.ClientSession
request_head = _http2.request_head

__all__ = ["ClientSession", "ServerSession", "request_head"]
