"""Errors, channels, signatures, fail-over, the start decision: shared by both sides of the wire."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
