"""Apache RocketMQ's Python client: one send, one receive, one acknowledgement through a gateway.

Usage: official_client.py HOST:PORT TOPIC GROUP. Runs in the client's own virtual environment.
"""

import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

AWAIT_SECONDS = 10
INVISIBLE_SECONDS = 30
RECEIVE_SECONDS_MAX = 60.0


def main() -> None:
    endpoint, topic, group = sys.argv[1:]
    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, (topic,), tls_enable=False)
    producer.startup()
    message = Message()
    message.topic = topic
    message.body = b"from outside"
    sent = producer.send(message)
    consumer = SimpleConsumer(
        configuration, group, {topic: FilterExpression("*")}, AWAIT_SECONDS, tls_enable=False
    )
    consumer.startup()
    deadline = time.monotonic() + RECEIVE_SECONDS_MAX
    received: list[Message] = []
    while not received and time.monotonic() < deadline:
        received = consumer.receive(1, INVISIBLE_SECONDS) or []
    for each in received:
        consumer.ack(each)
    consumer.shutdown()
    producer.shutdown()
    if not any(each.message_id == sent.message_id for each in received):
        sys.exit(f"sent {sent.message_id}, received {[each.message_id for each in received]}")


if __name__ == "__main__":
    main()
