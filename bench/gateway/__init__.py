"""`make bench-gateway`: the gateway beside RocketMQ's own proxy."""
