"""Comparison of Rockoon with Kafka, RocketMQ and NATS (`make compare`); see
docs/measurements/compare.md."""
