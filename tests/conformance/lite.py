"""Scenarios of consumers of lite topics, and of topics with priorities."""

import time
from collections.abc import Sequence

from conformance.scene import (
    ARRIVAL_SECONDS_MAX,
    Message,
    Scene,
    bodies,
    expect,
    until_done,
)


def of_lite_topic(messages: Sequence[Message], lite_topic: str) -> list[str]:
    """Return the bodies of the messages of one lite topic, in the order of their arrival."""
    return [message["body"] for message in messages if message["lite"] == lite_topic]


def push(scene: Scene) -> None:
    """A listener receives the messages of the lite topics that it subscribes to, each in order."""
    topic = scene.topic("LITE")
    group = scene.group(fifo=True, lite_parent=topic)
    sender, listener = scene.sender(topic), scene.lite_listener(topic, group)
    listener.subscribe("one")
    listener.subscribe("two")
    for number in range(4):
        for lite_topic in ("one", "two", "three"):
            sender.send(f"{lite_topic}{number}", lite=lite_topic)
    found = listener.wait(8)
    for lite_topic in ("one", "two"):
        wanted = [f"{lite_topic}{number}" for number in range(4)]
        expect(of_lite_topic(found, lite_topic), wanted, lite_topic)
    expect({message["topic"] for message in found}, {topic}, "topics")
    listener.subscribe("three")
    found = listener.wait(12)
    expect(of_lite_topic(found, "three"), [f"three{number}" for number in range(4)], "three")


def push_retry(scene: Scene) -> None:
    """A message whose listener failed is delivered again before the next one of its lite topic."""
    topic = scene.topic("LITE")
    group = scene.group(fifo=True, lite_parent=topic)
    sender = scene.sender(topic)
    listener = scene.lite_listener(topic, group, fails=1, failing="m1")
    listener.subscribe("one")
    for number in range(4):
        sender.send(f"m{number}", lite="one")
    expect(bodies(listener.wait(5)), ["m0", "m1", "m1", "m2", "m3"], "listened to")


def hand_over(scene: Scene) -> None:
    """A later subscriber of a group continues where the former subscriber was."""
    topic = scene.topic("LITE")
    group = scene.group(fifo=True, lite_parent=topic)
    sender, first = scene.sender(topic), scene.lite_listener(topic, group)
    first.subscribe("one")
    sender.send("before", lite="one")
    first.wait(1)
    first.unsubscribe("one")
    sender.send("after", lite="one")
    second = scene.lite_listener(topic, group, scene.client())
    second.subscribe("one")
    expect(bodies(second.wait(1)), ["after"], "listened to by the second")


def begin(scene: Scene) -> None:
    """A subscription from the first message on receives messages again that the group has had."""
    topic = scene.topic("LITE")
    group = scene.group(fifo=True, lite_parent=topic)
    sender, first = scene.sender(topic), scene.lite_listener(topic, group)
    first.subscribe("one")
    for number in range(3):
        sender.send(f"m{number}", lite="one")
    first.wait(3)
    first.unsubscribe("one")
    second = scene.lite_listener(topic, group, scene.client())
    second.subscribe("one", first=True)
    expect(bodies(second.wait(3)), ["m0", "m1", "m2"], "listened to by the second")


def priorities(scene: Scene) -> None:
    """Of the waiting messages, those with higher priorities are delivered first."""
    topic, group = scene.topic("PRIORITY"), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    # RocketMQ's proxy fails until a client's settings have reached it.
    until_done(receiver.receive)
    for priority in (1, 3, 0, 2, 3, 1):
        sender.send(str(priority), priority=priority)
    found: list[Message] = []
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while len(found) < 6 and time.monotonic() < deadline:
        for message in receiver.receive(1):
            receiver.acknowledge(message)
            found.append(message)
    expect(bodies(found), ["3", "3", "2", "1", "1", "0"], "received")


def simple(scene: Scene) -> None:
    """A simple consumer receives the messages of its lite topics, and acknowledges them."""
    topic = scene.topic("LITE")
    group = scene.group(fifo=True, lite_parent=topic)
    sender, receiver = scene.sender(topic), scene.lite_receiver(topic, group)
    receiver.subscribe("one")
    for number in range(3):
        sender.send(f"m{number}", lite="one")
        sender.send(f"n{number}", lite="two")
    found = receiver.take(3)
    expect(of_lite_topic(found, "one"), ["m0", "m1", "m2"], "received")
    expect(bodies(receiver.receive()), [], "received later")
