"""The offset service: progress of consumer groups."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
