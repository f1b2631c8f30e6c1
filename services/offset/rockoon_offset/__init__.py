"""The offset service: progress of consumer groups."""

import rockoon_proto as rockoon_proto  # before gRPC: it sets gRPC's log level
