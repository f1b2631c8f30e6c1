"""Copies of a log: who leads, what is committed, how a follower's log is made equal."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
