"""Gateway: RocketMQ's 5.x clients, of any language, on a Rockoon cluster.

It speaks their protocol (apache.rocketmq.v2) on one side and is a client of the cluster on the
other: it keeps nothing, so any number of them can stand side by side.
"""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
