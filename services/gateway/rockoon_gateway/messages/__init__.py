"""Conversion of messages between Rockoon's records and RocketMQ's protobuf messages."""
