"""Clients of one language that send and consume without end, and the answers that they received."""

import itertools
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from conformance.client_process import ClientFailed, ClientGone, ClientProcess, NotOffered
from conformance.languages import Prepared
from conformance.scene import LOOK_SECONDS, Receiver, Scene, Sender
from support.settle_history import GroupHistory, Kind, Step

# Between two rounds of sends: consumers of the slowest language keep up.
ROUND_SECONDS = 0.05
BATCH = 8
PLAIN_STREAMS = ("n",)
FIFO_STREAMS = ("a", "b")
# A producer waits for a group that is this many messages behind it.
BEHIND_MAX = 60
# One of this many messages is not acknowledged at its first delivery, so that it must be delivered
# again. Meanwhile a FIFO group must receive nothing else of its stream.
LEFT_OUT = 10
FIFO_LEFT_OUT = 100


@dataclass
class Sent:
    """Answers to a producer.

    Args:
        topic: the topic of its messages.
        streams: message groups, if the messages have an order.
    """

    topic: str
    streams: Sequence[str]
    is_fifo: bool
    acknowledged: list[str] = field(default_factory=list)


@dataclass
class Group:
    """Observations of a group's consumers; `steps` has the time of each."""

    name: str
    sent: Sent
    tells: bool
    is_pushed: bool
    steps: list[tuple[float, Step]] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)

    def note(self, kind: Kind, message: str, at: float, batch: int = 0) -> None:
        """Add a step at a time of the monotonic clock."""
        self.steps.append((at, Step(kind, message, batch)))
        if kind is Kind.DELIVERED:
            self.delivered.add(message)

    def history(self) -> GroupHistory:
        ordered = [step for _, step in sorted(self.steps, key=lambda each: each[0])]
        return GroupHistory(self.name, ordered, is_fifo=self.sent.is_fifo, tells=self.tells)


class Crew:
    """A producer, two simple consumers of a group on a topic, two of a FIFO group on another topic,
    and a push consumer with its own group on each, if the language has push consumers.

    Args:
        scene: of this crew only; the crew closes it.
        language: of its clients.
        blind: the program does not see the answers to acknowledgements.
    """

    def __init__(self, scene: Scene, language: Prepared, *, blind: bool) -> None:
        self.language = language
        self.replies_failed = 0
        self.sends_failed = 0
        self.rounds = 0
        self.faults: list[str] = []
        self._scene = scene
        self._changed = threading.Condition()
        self._resting = threading.Event()
        self._is_idle = False
        self._taken = 0
        self._batches = itertools.count(1)
        self._over = threading.Event()
        plain = Sent(scene.topic(), PLAIN_STREAMS, is_fifo=False)
        ordered = Sent(scene.topic("FIFO"), FIFO_STREAMS, is_fifo=True)
        self.topics = (plain, ordered)
        self.groups: list[Group] = []
        self._threads: list[threading.Thread] = []
        sender = scene.sender(plain.topic, scene.client())
        for sent in self.topics:
            group = self._group(sent, tells=not blind, is_pushed=False)
            for _ in range(2):
                receiver = scene.receiver(sent.topic, group.name, scene.client())
                self._go(partial(self._receive, receiver, group))
        self._pushed = scene.client()
        for sent in self.topics:
            group = self._group(sent, tells=False, is_pushed=True)
            try:
                scene.listener(sent.topic, group.name, self._pushed)
            except NotOffered:
                self.groups.remove(group)
        self._go(partial(self._send, sender))

    def _group(self, sent: Sent, *, tells: bool, is_pushed: bool) -> Group:
        name = self._scene.group(fifo=sent.is_fifo)
        self.groups.append(Group(name, sent, tells=tells, is_pushed=is_pushed))
        return self.groups[-1]

    def _go(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except ClientGone as gone:
                if not self._over.is_set():
                    self.faults.append(f"a client is gone: {' '.join(str(gone).split())[:300]}")

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _send(self, sender: Sender) -> None:
        while not self._over.wait(ROUND_SECONDS):
            with self._changed:
                self._is_idle = self._resting.is_set()
                self._changed.notify_all()
            if self._is_idle or self._is_behind():
                continue
            for sent in self.topics:
                for stream in sent.streams:
                    self._send_one(sender, sent, stream)
            with self._changed:
                self.rounds += 1
                self._changed.notify_all()

    def _is_behind(self) -> bool:
        self._take_pushed()
        with self._changed:
            return any(
                len(group.sent.acknowledged) - len(group.delivered) > BEHIND_MAX
                for group in self.groups
            )

    def _send_one(self, sender: Sender, sent: Sent, stream: str) -> None:
        """Send the next number of a stream, repeatedly until the answer is OK."""
        body = f"{stream}-{self.rounds}"
        more = {"group": stream} if sent.is_fifo else {}
        while True:
            try:
                sender.send(body, topic=sent.topic, **more)
            except ClientGone:
                raise
            except ClientFailed:
                self.sends_failed += 1
                self._over.wait(LOOK_SECONDS)
            else:
                with self._changed:
                    sent.acknowledged.append(body)
                return

    def _receive(self, receiver: Receiver, group: Group) -> None:
        left_out = FIFO_LEFT_OUT if group.sent.is_fifo else LEFT_OUT
        seen = set[str]()
        while not self._over.is_set():
            try:
                messages = receiver.receive(BATCH)
            except ClientGone:
                raise
            except ClientFailed:
                self.replies_failed += 1
                self._over.wait(LOOK_SECONDS)
                continue
            batch = next(self._batches)
            for message in messages:
                self._note(group, Kind.DELIVERED, message["body"], batch)
            for message in messages:
                body = str(message["body"])
                is_first = body not in seen
                seen.add(body)
                if is_first and zlib.crc32(body.encode()) % left_out == 0:
                    continue
                self._note(group, Kind.TRIED, body)
                try:
                    receiver.acknowledge(message)
                except ClientGone:
                    raise
                except ClientFailed:
                    self.replies_failed += 1
                else:
                    if group.tells:
                        self._note(group, Kind.SETTLED, body)

    def _note(self, group: Group, kind: Kind, body: str = "", batch: int = 0) -> None:
        with self._changed:
            group.note(kind, body, time.monotonic(), batch)
            self._changed.notify_all()

    def _take_pushed(self) -> None:
        """Add the calls of listeners to the steps of their groups."""
        with self._changed:
            events = self._pushed.events("message")
            for event in events[self._taken :]:
                for group in self.groups:
                    if group.is_pushed and event["topic"] == group.sent.topic:
                        group.note(Kind.DELIVERED, event["body"], event["at"])
            self._taken = len(events)

    def missing(self, wanted: dict[str, set[str]]) -> list[str]:
        """Return the messages that have not been received, as text by group.

        Args:
            wanted: messages by topic.
        """
        self._take_pushed()
        found = []
        with self._changed:
            for group in self.groups:
                away = sorted(wanted[group.sent.topic] - group.delivered)
                if away:
                    found.append(f"{group.name} has not got {len(away)}: {', '.join(away[:3])}")
        return found

    def acknowledged(self) -> dict[str, set[str]]:
        """Return the messages that producers know to be stored, by topic."""
        with self._changed:
            return {sent.topic: set(sent.acknowledged) for sent in self.topics}

    def rest(self, seconds_max: float) -> bool:
        """End sending after the present round; return whether the round ended in time."""
        self._resting.set()
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle, seconds_max)

    def work(self) -> None:
        self._resting.clear()

    def wait_rounds(self, count: int, seconds_max: float) -> bool:
        """Wait until this many rounds are acknowledged; return whether they were in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.rounds >= count, seconds_max)

    def nothing_is_left(self) -> None:
        """Inform the crew that all of its groups have settled all messages."""
        self.settle_pipe(self._pushed)
        self._take_pushed()
        for group in self.groups:
            self._note(group, Kind.ALL_SETTLED)

    @staticmethod
    def settle_pipe(client: ClientProcess) -> None:
        """Wait until all output of a client has been read."""
        try:
            client.ask("say that you are here")
        except NotOffered:
            return

    def close(self) -> None:
        self._over.set()
        self._scene.close()
        for thread in self._threads:
            thread.join(LOOK_SECONDS)
