"""The broker: the log of messages and the state derived from the log."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
