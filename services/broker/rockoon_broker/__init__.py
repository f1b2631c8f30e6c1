"""The broker: the log of messages, and what is derived from it."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
