"""Messages as both sides have them: records of the store, and RocketMQ's protobuf messages."""
