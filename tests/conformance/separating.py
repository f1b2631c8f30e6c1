"""Scenarios of clients in two namespaces that use the same names of topics and groups."""

from functools import partial

from conformance.scene import (
    ARRIVAL_SECONDS_MAX,
    Differs,
    Scene,
    bodies,
    expect,
    until_done,
)

NAMESPACES = ("east", "west")
DELAY_MS = 8000


def _made(
    scene: Scene, message_type: str = "NORMAL", retries_max: int | None = None
) -> tuple[str, str]:
    """A topic and a group: of each namespace, and of none."""
    topic, group = scene.topic(message_type), scene.group(retries_max=retries_max)
    for namespace in NAMESPACES:
        scene.target.make_topic(f"{namespace}%{topic}", message_type)
        scene.target.make_group(f"{namespace}%{group}", fifo=False, retries_max=retries_max)
    return topic, group


def apart(scene: Scene) -> None:
    """Messages of one namespace are received there, once, and nowhere else."""
    topic, group = _made(scene)
    for namespace in NAMESPACES:
        scene.sender(topic, namespace=namespace).send(f"of {namespace}")
    for namespace in NAMESPACES:
        receiver = scene.receiver(topic, group, namespace=namespace)
        (message,) = receiver.take(1)
        expect((message["topic"], message["body"]), (topic, f"of {namespace}"), "received")
        expect(bodies(receiver.receive()), [], "after the acknowledgement")
        receiver.stop()
    expect(bodies(scene.receiver(topic, group).receive()), [], "received without a namespace")


def push(scene: Scene) -> None:
    """A push consumer listens to its namespace; a message that failed comes again there."""
    topic, group = _made(scene)
    for namespace in NAMESPACES:
        scene.sender(topic, namespace=namespace).send(f"of {namespace}")
    for namespace in NAMESPACES:
        client = scene.client()
        listener = scene.listener(topic, group, client, fails=1, namespace=namespace)
        found = listener.wait(2)
        expect(bodies(found), 2 * [f"of {namespace}"], "listened to")
        expect([message["attempt"] for message in found], [1, 2], "attempts")


def recall(scene: Scene) -> None:
    """A delayed message of a namespace is recalled there, and another one comes."""
    topic, group = _made(scene, "DELAY")
    sender = scene.sender(topic, namespace=NAMESPACES[0])
    receiver = scene.receiver(topic, group, namespace=NAMESPACES[0])
    doomed = sender.send("recalled", delay_ms=DELAY_MS)
    sender.send("kept", delay_ms=DELAY_MS)
    expect(sender.recall(doomed.get("recall") or ""), doomed["id"], "id of what was recalled")
    expect(bodies(receiver.take(1)), ["kept"], "received")
    expect(bodies(receiver.receive()), [], "received later")


def orphan(scene: Scene) -> None:
    """A producer of the namespace is asked about a transaction there, and none of another."""
    topic, group = _made(scene, "TRANSACTION")
    clients = [scene.client() for _ in NAMESPACES]
    senders = [
        scene.sender(topic, client, check="commit", namespace=namespace)
        for client, namespace in zip(clients, NAMESPACES, strict=True)
    ]
    senders[0].send("orphan", end="none")
    asked = clients[0].wait_events("check", lambda seen: bool(seen), ARRIVAL_SECONDS_MAX)
    if not asked:
        raise Differs("no client was asked")
    expect((asked[0]["topic"], asked[0]["body"]), (topic, "orphan"), "asked about")
    receiver = scene.receiver(topic, group, namespace=NAMESPACES[0])
    expect(bodies(receiver.take(1)), ["orphan"], "received")
    expect(clients[1].events("check"), [], "asked in another namespace")


def dead_letters(scene: Scene) -> None:
    """Dead letters of a group are in its namespace."""
    topic, group = _made(scene, retries_max=0)
    for namespace in NAMESPACES:
        scene.sender(topic, namespace=namespace).send(f"of {namespace}")
        receiver = scene.receiver(topic, group, namespace=namespace)
        (message,) = receiver.take(1, acknowledged=False)
        receiver.change(message, 0)
        expect(bodies(receiver.receive()), [], "received after the last attempt")
    for namespace in NAMESPACES:
        # The topic is made with its first message; clients of some languages start only then.
        start = partial(scene.receiver, f"%DLQ%{group}", group, namespace=namespace)
        expect(bodies(until_done(start).take(1)), [f"of {namespace}"], "dead letters")
