"""Comparison of gRPC layers (HTTP/2 implementations), as servers and as clients."""
