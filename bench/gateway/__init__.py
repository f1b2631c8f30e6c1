"""Comparison of the gateway with RocketMQ's own proxy (`make bench-gateway`)."""
