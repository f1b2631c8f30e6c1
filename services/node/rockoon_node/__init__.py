"""A service as a node of the cluster: it finds the nameservers, registers, follows the routes."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
