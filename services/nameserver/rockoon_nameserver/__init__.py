"""The nameserver: serves the routes of a cluster, which it keeps in etcd or in a file."""

import rockoon_proto as rockoon_proto  # before gRPC: it silences gRPC's own log lines
