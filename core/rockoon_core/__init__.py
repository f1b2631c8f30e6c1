"""Shared by both sides of the wire: errors, channels, signatures, fail-over, start positions."""

import rockoon_proto as rockoon_proto  # before gRPC: it silences gRPC's own log lines
