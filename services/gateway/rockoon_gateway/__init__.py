"""Gateway: serves RocketMQ's 5.x clients, of any language, on a Rockoon cluster.

It speaks their protocol (apache.rocketmq.v2) to clients and is itself a client of the cluster. It
keeps no state, so any number of gateways can run in parallel.
"""

import rockoon_proto as rockoon_proto  # before gRPC: it silences gRPC's own log lines
