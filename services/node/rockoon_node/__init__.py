"""A service as a node of the cluster: calls nameservers, registers itself, follows the routes."""

import rockoon_proto as rockoon_proto  # before gRPC: it sets gRPC's log level
