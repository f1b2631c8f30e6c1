"""Scenarios of consumers."""

import time

from conformance.client_process import ClientFailed, ClientGone
from conformance.scene import (
    ARRIVAL_SECONDS_MAX,
    LOOK_SECONDS,
    Differs,
    Receiver,
    Scene,
    bodies,
    expect,
    until_done,
)

RETRY_MS = 1000
# RocketMQ's proxy removes a client after at most this time without a heartbeat.
SILENCE_SECONDS_MAX = 180.0


def unacknowledged(scene: Scene) -> None:
    """Only the messages of a batch without an acknowledgement are delivered again, as attempt 2."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sent = {sender.send(f"m{number}")["id"] for number in range(12)}
    found = receiver.take(12, acknowledged=False)
    expect({message["id"] for message in found}, sent, "received ids")
    kept = found[5]
    for message in found:
        if message is not kept:
            receiver.acknowledge(message)
    (again,) = receiver.take(1)
    expect(again["id"], kept["id"], "the one that came again")
    expect((again["attempt"], again["topic"]), (2, topic), "attempt and topic")
    expect(bodies(receiver.receive()), [], "received later")


def change_invisible(scene: Scene) -> None:
    """A message is delivered again when its changed invisible time ends, not before and not at the
    former time."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sender.send("patient")
    (message,) = receiver.take(1, acknowledged=False, invisible_ms=60_000)
    receiver.change(message, 3000)
    changed = time.monotonic()
    (again,) = receiver.take(1)
    seconds = time.monotonic() - changed
    expect((again["id"], again["attempt"]), (message["id"], 2), "id and attempt")
    if not 2.5 < seconds < 30:
        raise Differs(f"it came again after {seconds:.1f} s, not 3")
    expect(bodies(receiver.receive()), [], "received later")


def late_acknowledgement(scene: Scene) -> None:
    """An acknowledgement after the invisible time is refused; the message is delivered again."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sender.send("late")
    (message,) = receiver.take(1, acknowledged=False)
    (again,) = receiver.take(1, acknowledged=False)
    expect(again["id"], message["id"], "the one that came again")
    try:
        receiver.acknowledge(message)
    except ClientFailed:
        receiver.acknowledge(again)
        return
    raise Differs("the server accepted it")


def tag_filter(scene: Scene) -> None:
    """A consumer receives the messages that its tags select."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group, tag="red||blue")
    for tag in ("red", "green", "blue", "greenish"):
        sender.send(tag, tag=tag)
    sender.send("no tag")
    expect(sorted(bodies(receiver.take(2))), ["blue", "red"], "received")
    expect(bodies(receiver.receive()), [], "received later")


def sql_filter(scene: Scene) -> None:
    """A consumer receives the messages that its expression selects."""
    topic, group = scene.topic(), scene.group()
    sql = "(price > 10 AND colour = 'red') OR TAGS = 'always'"
    sender, receiver = scene.sender(topic), scene.receiver(topic, group, sql=sql)
    sender.send("dear red", properties={"price": "11", "colour": "red"})
    sender.send("cheap red", properties={"price": "9", "colour": "red"})
    sender.send("dear blue", properties={"price": "12", "colour": "blue"})
    sender.send("always", tag="always")
    expect(sorted(bodies(receiver.take(2))), ["always", "dear red"], "received")
    expect(bodies(receiver.receive()), [], "received later")


def dead_letters(scene: Scene) -> None:
    """After its last attempt a message is in the group's dead letter topic."""
    topic, group = scene.topic(), scene.group(retries_max=1)
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    sent = sender.send("poison", keys=["k"])
    for attempt in (1, 2):
        (message,) = receiver.take(1, acknowledged=False)
        expect(message["attempt"], attempt, "attempt")
        receiver.change(message, RETRY_MS)
    _expect_dead(scene, group, receiver, sent["id"])


def _expect_dead(scene: Scene, group: str, receiver: Receiver | None, wanted: str) -> None:
    """Wait for a message in a group's dead letter topic, which is created with its first message.

    Args:
        receiver: of the group; None if RocketMQ needs no receive to move the message there.
    """
    readers = scene.group()
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while time.monotonic() < deadline:
        if receiver is not None:
            expect(bodies(receiver.receive()), [], "received after the last attempt")
        try:
            found = scene.receiver(f"%DLQ%{group}", readers).receive()
        except ClientGone:
            raise
        except ClientFailed:
            time.sleep(LOOK_SECONDS)
            continue
        if found:
            expect([message["id"] for message in found], [wanted], "dead letters")
            return
    raise Differs("no dead letter")


def shared(scene: Scene) -> None:
    """Two consumers of a group receive each message once between them."""
    topic, group = scene.topic(), scene.group()
    sender = scene.sender(topic)
    other = scene.client()
    receivers = [scene.receiver(topic, group), scene.receiver(topic, group, other)]
    sent = sorted(sender.send(f"m{number}")["id"] for number in range(16))
    found: list[str] = []
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while len(found) < len(sent) and time.monotonic() < deadline:
        for receiver in receivers:
            for message in receiver.receive(4):
                receiver.acknowledge(message)
                found.append(message["id"])
    expect(sorted(found), sent, "received")


def unmade_group(scene: Scene) -> None:
    """An unknown group is created, and reads a new topic from its beginning."""
    topic = scene.topic()
    sender = scene.sender(topic)
    sender.send("before")
    receiver = scene.receiver(topic, f"{topic}-unmade")
    expect(bodies(receiver.take(1)), ["before"], "received")


def restart(scene: Scene) -> None:
    """Producer and consumer continue after a restart of the server; no message is lost."""
    topic, group = scene.topic(), scene.group()
    sender, receiver = scene.sender(topic), scene.receiver(topic, group)
    for number in range(3):
        sender.send(f"before{number}")
    found = receiver.take(3, acknowledged=False)
    for message in found[1:]:
        receiver.acknowledge(message)
    scene.restart()
    until_done(lambda: sender.send("after"))
    seen = set[str]()
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    wanted = {found[0]["body"], "after"}
    while not wanted <= seen and time.monotonic() < deadline:
        for message in until_done(receiver.receive):
            receiver.acknowledge(message)
            seen.add(message["body"])
    # A producer without an answer may have sent a message twice. Acknowledged messages must not
    # be delivered again.
    expect(seen, wanted, "received after the restart")


def push(scene: Scene) -> None:
    """A push consumer's listener receives each message once."""
    topic, group = scene.topic(), scene.group()
    sender = scene.sender(topic)
    listener = scene.listener(topic, group)
    sent = sorted(sender.send(f"m{number}", tag="t")["id"] for number in range(20))
    found = listener.wait(20)
    expect(sorted(message["id"] for message in found), sent, "listened to")
    expect({message["attempt"] for message in found}, {1}, "attempts")
    left = until_done(scene.receiver(topic, group).receive)
    expect(bodies(left), [], "left in the group")


def push_retry(scene: Scene) -> None:
    """A message whose listener failed is delivered again, as attempt 2; other messages are not."""
    topic, group = scene.topic(), scene.group()
    sender = scene.sender(topic)
    listener = scene.listener(topic, group, fails=1, failing="bad")
    for body in ("good", "bad", "better"):
        sender.send(body)
    found = listener.wait(4)
    expect(sorted(bodies(found)), ["bad", "bad", "better", "good"], "listened to")
    attempts = [message["attempt"] for message in found if message["body"] == "bad"]
    expect(attempts, [1, 2], "attempts")


def push_fifo(scene: Scene) -> None:
    """A FIFO push consumer keeps the order of a message group although one message fails first."""
    topic, group = scene.topic("FIFO"), scene.group(fifo=True)
    sender = scene.sender(topic)
    for number in range(5):
        sender.send(f"m{number}", group="a")
    listener = scene.listener(topic, group, fails=1, failing="m2")
    found = listener.wait(6)
    expect(bodies(found), ["m0", "m1", "m2", "m2", "m3", "m4"], "listened to")


def push_dead_letters(scene: Scene) -> None:
    """A message with which a push consumer's listener fails too often becomes a dead letter."""
    topic, group = scene.topic(), scene.group(retries_max=1)
    sender = scene.sender(topic)
    listener = scene.listener(topic, group, fails=100)
    sent = sender.send("poison")
    listener.wait(2)
    _expect_dead(scene, group, None, sent["id"])
    expect(len(scene.first.events("message")), 2, "calls of the listener")


def push_killed(scene: Scene) -> None:
    """The messages of a killed push consumer are delivered to another one."""
    topic, group = scene.topic(), scene.group()
    sender = scene.sender(topic)
    doomed = scene.client()
    held = scene.listener(topic, group, doomed, fails=1, holds=True)
    sent = sender.send("in hand")
    held.wait(1)
    doomed.kill()
    listener = scene.listener(topic, group)
    (message,) = listener.wait(1, SILENCE_SECONDS_MAX)
    expect(message["id"], sent["id"], "listened to")


def push_restart(scene: Scene) -> None:
    """A push consumer continues after a restart of the server."""
    topic, group = scene.topic(), scene.group()
    sender = scene.sender(topic)
    listener = scene.listener(topic, group)
    sender.send("before")
    listener.wait(1)
    scene.restart()
    until_done(lambda: sender.send("after"))
    expect(set(bodies(listener.wait(2))), {"before", "after"}, "listened to")
