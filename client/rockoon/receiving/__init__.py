"""Consumption message by message: receive, acknowledge, extend; what SQS and RocketMQ's POP do."""
