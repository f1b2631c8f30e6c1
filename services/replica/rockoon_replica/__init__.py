"""Replicated logs: elections of leaders, committed ends, copying to followers."""

import rockoon_proto as rockoon_proto  # before gRPC: it silences gRPC's own log lines
