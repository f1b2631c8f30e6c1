"""The broker's gRPC methods: each module decodes a request, calls one method, encodes the reply."""
