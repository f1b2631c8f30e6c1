"""Scenarios of producers."""

import time

from conformance.client_process import ClientFailed
from conformance.scene import (
    ARRIVAL_SECONDS_MAX,
    Differs,
    Scene,
    bodies,
    expect,
)

DELAY_MS = 4000
# Clients and server have the same clock; the Rust client sends whole seconds.
EARLY_MS = 50


def carries_everything(scene: Scene) -> None:
    """A message arrives as it was sent; after its acknowledgement it is not delivered again."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sent = sender.send(
        "Grüße", tag="blue", keys=["k1"], properties={"colour": "dark blue", "n": "1"}
    )
    (message,) = receiver.take(1)
    for name, wanted in (
        ("id", sent["id"]),
        ("topic", topic),
        ("body", "Grüße"),
        ("tag", "blue"),
        ("keys", ["k1"]),
        ("attempt", 1),
    ):
        expect(message[name], wanted, name)
    user = {name: message["properties"].get(name) for name in ("colour", "n")}
    expect(user, {"colour": "dark blue", "n": "1"}, "properties")
    expect(bodies(receiver.receive()), [], "after the acknowledgement")
    sender.stop()
    receiver.stop()


def fifo_order(scene: Scene) -> None:
    """Messages of a message group are received in the order in which they were sent."""
    topic, group = scene.topic("FIFO"), scene.group(fifo=True)
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    for number in range(6):
        for key in ("a", "b"):
            sender.send(f"{key}{number}", group=key)
    found = receiver.take(12)
    for key in ("a", "b"):
        wanted = [f"{key}{number}" for number in range(6)]
        expect([body for body in bodies(found) if body[0] == key], wanted, f"group {key}")
    expect({message["group"] for message in found}, {"a", "b"}, "message groups")


def fifo_across_languages(scene: Scene) -> None:
    """A message group has one order, whichever languages send its messages."""
    topic, group = scene.topic("FIFO"), scene.group(fifo=True)
    receiver = scene.receiver(topic, group)
    senders = [scene.sender(topic, scene.client(language)) for language in scene.others]
    wanted = [
        sender.send(f"{turn}-{number}", group="of all", properties={"sender": str(number)})["id"]
        for turn in range(3)
        for number, sender in enumerate(senders)
    ]
    found = receiver.take(len(wanted))
    expect([message["id"] for message in found], wanted, "ids in order")
    numbers = [message["properties"].get("sender") for message in found]
    expect(numbers, [str(number) for _ in range(3) for number in range(len(senders))], "senders")


def delay(scene: Scene) -> None:
    """A delayed message is received at its time, not before."""
    topic, group = scene.topic("DELAY"), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sent = time.monotonic()
    sender.send("later", delay_ms=DELAY_MS)
    expect(bodies(receiver.take(1)), ["later"], "received")
    after_ms = (time.monotonic() - sent) * 1000
    if after_ms < DELAY_MS - EARLY_MS:
        raise Differs(f"it came after {after_ms:.0f} ms, not {DELAY_MS}")


def recall(scene: Scene) -> None:
    """A delayed message that is recalled is never delivered."""
    topic, group = scene.topic("DELAY"), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    doomed = sender.send("recalled", delay_ms=8000)
    expect(sender.recall(doomed.get("recall") or ""), doomed["id"], "id of what was recalled")
    sender.send("kept", delay_ms=8000)
    expect(bodies(receiver.take(1)), ["kept"], "received")
    expect(bodies(receiver.receive()), [], "received later")


def transaction(scene: Scene) -> None:
    """The messages of a committed transaction are delivered; those of a rollback are not."""
    topic, group = scene.topic("TRANSACTION"), scene.group()
    sender, receiver = scene.sender(topic, check="rollback"), scene.receiver(topic, group)
    sender.send("rolled back", end="rollback")
    sent = sender.send("committed", end="commit", tag="t", keys=["k"])
    (message,) = receiver.take(1)
    expect(message["body"], "committed", "received")
    expect(message["id"], sent["id"], "id")
    expect((message["tag"], message["keys"]), ("t", ["k"]), "tag and keys")
    expect(bodies(receiver.receive()), [], "received later")


def orphan(scene: Scene) -> None:
    """A transaction that was not ended is checked with its producer, and the answer counts."""
    topic, group = scene.topic("TRANSACTION"), scene.group()
    sender, receiver = scene.sender(topic, check="commit"), scene.receiver(topic, group)
    sent = sender.send("orphan", end="none")
    asked = scene.first.wait_events("check", lambda seen: bool(seen), ARRIVAL_SECONDS_MAX)
    if not asked:
        raise Differs("no client was asked")
    expect((asked[0]["id"], asked[0]["body"]), (sent["id"], "orphan"), "asked about")
    expect(bodies(receiver.take(1)), ["orphan"], "received")


def wrong_type(scene: Scene) -> None:
    """A topic refuses messages of another type."""
    topic = scene.topic("FIFO")
    sender = scene.sender(topic)
    try:
        sender.send("no group")
    except ClientFailed:
        return
    raise Differs("a FIFO topic took a message without a group")


def unknown_topic(scene: Scene) -> None:
    """Sending to a topic that does not exist fails."""
    sender = scene.sender(scene.topic())
    try:
        sender.send("nowhere", topic="nobody-made-this-topic")
    except ClientFailed:
        return
    raise Differs("the server accepted it")


def large_body(scene: Scene) -> None:
    """A body of one MiB arrives."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    body = "0123456789abcdef" * (1 << 16)
    sender.send(body)
    (message,) = receiver.take(1)
    expect(message["body"] == body, True, "the same body")


def too_large_body(scene: Scene) -> None:
    """A body above four MiB is refused, and the producer continues."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    try:
        sender.send("x" * ((4 << 20) + 1))
    except ClientFailed:
        sender.send("small")
        expect(bodies(receiver.take(1)), ["small"], "received")
        return
    raise Differs("the server accepted it")
