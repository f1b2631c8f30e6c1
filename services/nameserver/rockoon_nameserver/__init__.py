"""The nameserver: routes, kept in etcd."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
