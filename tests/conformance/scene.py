"""Topics, groups and clients of one scenario in one language."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from conformance.client_process import ClientFailed, ClientGone, ClientProcess
from conformance.languages import Prepared
from conformance.progress import Progress
from conformance.target import Target

# RocketMQ accepts no shorter long poll of a receive.
INVISIBLE_MS = 10_000
AWAIT_MS = 5_000
ARRIVAL_SECONDS_MAX = 90.0
SETTINGS_SECONDS_MAX = 30.0
# Interval between checks for states without a notification.
LOOK_SECONDS = 0.5

Answer = TypeVar("Answer")
Message = dict[str, Any]


class Differs(AssertionError):
    """A result differs from the one that the scenario requires; the text has the difference."""


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `Differs` unless two are equal."""
    if found != wanted:
        raise Differs(f"{what}: {found!r}, not {wanted!r}"[:300])


def until_done(do: Callable[[], Answer], seconds_max: float = ARRIVAL_SECONDS_MAX) -> Answer:
    """Repeat an operation until the client reports success, as users do who wait for a server."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            return do()
        except ClientGone:
            raise
        except ClientFailed:
            if time.monotonic() > deadline:
                raise
            # The client's own pause applies; without a listener the call fails immediately.
            time.sleep(LOOK_SECONDS)


class Sender:
    """A producer.

    Args:
        topic: default topic of its messages.
    """

    def __init__(self, client: ClientProcess, name: str, topic: str) -> None:
        self._client = client
        self._name = name
        self._topic = topic

    def send(self, body: str, topic: str = "", **more: Any) -> dict[str, Any]:
        """Send, and return `id` and `recall`.

        Args:
            more: tag, keys, properties, group, delay_ms, end, lite, priority.
        """
        to = topic or self._topic
        return self._client.ask("send", name=self._name, topic=to, body=body, **more)

    def recall(self, handle: str) -> str:
        answer = self._client.ask("recall", name=self._name, topic=self._topic, handle=handle)
        return str(answer["id"])

    def stop(self) -> None:
        self._client.ask("stop", name=self._name)


class Receiver:
    """A simple consumer."""

    def __init__(self, client: ClientProcess, name: str) -> None:
        self._client = client
        self._name = name

    def receive(self, most: int = 32, invisible_ms: int = INVISIBLE_MS) -> list[Message]:
        answer = self._client.ask("receive", name=self._name, max=most, invisible_ms=invisible_ms)
        found: list[Message] = answer["messages"]
        return found

    def take(
        self, count: int, *, acknowledged: bool = True, invisible_ms: int = INVISIBLE_MS
    ) -> list[Message]:
        """Receive until there are this many messages.

        Raises:
            Differs: fewer messages arrived in time, or more.
        """
        found: list[Message] = []
        deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            # RocketMQ's proxy fails until a client's settings have reached it.
            batch = until_done(lambda: self.receive(invisible_ms=invisible_ms))
            for message in batch if acknowledged else ():
                self.acknowledge(message)
            found += batch
        if len(found) != count:
            raise Differs(f"{len(found)} messages, not {count}: {bodies(found)}"[:300])
        return found

    def acknowledge(self, message: Message) -> None:
        self._client.ask("ack", name=self._name, handle=message["handle"])

    def change(self, message: Message, after_ms: int) -> None:
        self._client.ask("change", name=self._name, handle=message["handle"], after_ms=after_ms)

    def stop(self) -> None:
        self._client.ask("stop", name=self._name)


class LiteReceiver(Receiver):
    """A simple consumer of lite topics."""

    def subscribe(self, lite_topic: str) -> None:
        """Read a lite topic, when the client has its settings: Python's client starts before."""
        ask = partial(self._client.ask, "subscribe", name=self._name, lite=lite_topic)
        until_done(ask, SETTINGS_SECONDS_MAX)


class Listener:
    """A push consumer."""

    def __init__(self, client: ClientProcess, name: str) -> None:
        self._client = client
        self._name = name

    def subscribe(self, lite_topic: str, **more: Any) -> None:
        """Read a lite topic: from its first message if `first`, else from the group's progress."""
        self._client.ask("subscribe", name=self._name, lite=lite_topic, **more)

    def unsubscribe(self, lite_topic: str) -> None:
        self._client.ask("unsubscribe", name=self._name, lite=lite_topic)

    def wait(self, count: int, seconds_max: float = ARRIVAL_SECONDS_MAX) -> list[Message]:
        """Return the calls of its listener when there are this many.

        Raises:
            Differs: fewer calls came in time.
        """
        found = self._client.wait_events("message", lambda seen: len(seen) >= count, seconds_max)
        if len(found) < count:
            raise Differs(f"{len(found)} calls, not {count}: {bodies(found)}"[:300])
        return found


class Scene:
    """Topics, groups and clients that only one scenario uses.

    Args:
        target: the running server.
        language: of its clients.
        prefix: start of the names of its topics and groups, unique.
        folder: for the logs of its clients.
        others: clients of every available language.
        progress: kills the clients if the run is interrupted; None if nothing interrupts it.
        restart: restarts the target; None: `target.restart`.
    """

    def __init__(
        self,
        target: Target,
        language: Prepared,
        prefix: str,
        folder: Path,
        others: Sequence[Prepared] = (),
        progress: Progress | None = None,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self._progress = progress
        self.restart = restart or target.restart
        self.target = target
        self.others = others
        self._language = language
        self._prefix = prefix
        self._folder = folder
        self._clients: list[ClientProcess] = []
        self._made = 0

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{self._prefix}-{kind}{self._made}"

    def topic(self, message_type: str = "NORMAL") -> str:
        topic = self._name("t")
        self.target.make_topic(topic, message_type)
        return topic

    def group(
        self, *, fifo: bool = False, retries_max: int | None = None, lite_parent: str = ""
    ) -> str:
        group = self._name("g")
        self.target.make_group(group, fifo=fifo, retries_max=retries_max, lite_parent=lite_parent)
        return group

    def client(self, language: Prepared | None = None) -> ClientProcess:
        """Start another client process, and return it."""
        which = language or self._language
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"client{len(self._clients)}.log"
        environment = dict(which.environment(self._folder / "home"))
        # Python's and Node.js's clients trust gRPC's authorities; other clients trust any.
        environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(self.target.authority)
        self._clients.append(ClientProcess(which.command, environment, log))
        if self._progress is not None:
            self._progress.add(self._clients[-1])
        return self._clients[-1]

    @property
    def language(self) -> str:
        """Return the language of the scenario's clients."""
        return self._language.language

    @property
    def first(self) -> ClientProcess:
        """Return the client process that makes all calls unless a scenario chooses another."""
        return self._clients[0] if self._clients else self.client()

    def _start(self, client: ClientProcess | None, role: str, **given: Any) -> str:
        name = self._name(role)
        by = client or self.first
        by.ask(
            role, name=name, **{"endpoint": self.target.endpoint, "tls": self.target.tls, **given}
        )
        return name

    def sender(self, topic: str, client: ClientProcess | None = None, **more: Any) -> Sender:
        """Create a producer; `check`: its answer to checks of orphaned transactions."""
        name = self._start(client, "producer", topics=[topic], **more)
        return Sender(client or self.first, name, topic)

    def receiver(
        self, topic: str, group: str, client: ClientProcess | None = None, **more: Any
    ) -> Receiver:
        """Create a simple consumer; `tag` or `sql`: its filter."""
        given = {"topic": topic, "group": group, "await_ms": AWAIT_MS, **more}
        return Receiver(client or self.first, self._start(client, "simple", **given))

    def listener(
        self, topic: str, group: str, client: ClientProcess | None = None, **more: Any
    ) -> Listener:
        """Create a push consumer; if `failing`, it fails with a message `fails` times."""
        name = self._start(client, "push", topic=topic, group=group, **more)
        return Listener(client or self.first, name)

    def lite_receiver(self, topic: str, group: str) -> "LiteReceiver":
        """Create a simple consumer of lite topics."""
        given = {"topic": topic, "group": group, "await_ms": AWAIT_MS}
        return LiteReceiver(self.first, self._start(None, "lite_simple", **given))

    def lite_listener(
        self, topic: str, group: str, client: ClientProcess | None = None, **more: Any
    ) -> Listener:
        """Create a push consumer of lite topics; further arguments are those of `listener`."""
        name = self._start(client, "lite_push", topic=topic, group=group, **more)
        return Listener(client or self.first, name)

    def close(self) -> None:
        """Kill all clients; an orderly end is a separate scenario."""
        for client in self._clients:
            client.kill()
            if self._progress is not None:
                self._progress.remove(client)


def bodies(messages: Sequence[Message]) -> list[str]:
    return [str(message["body"]) for message in messages]
