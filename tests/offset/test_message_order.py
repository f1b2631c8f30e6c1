"""The order that receivers of a FIFO group are promised, if messages fail at random.

The model has the messages of each message group in order, and those that are done. Receivers crash,
acknowledge, and put messages back. The model checks each batch and computes the next one.
"""

import random
from dataclasses import dataclass, field
from operator import attrgetter

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.in_flight.deliveries import Deliveries, FifoCandidates, VisibilityChange
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import Acquired
from support.seeds import seeds

GROUP, QUEUE = "g", MessageQueue("orders", "broker-a", 0)
COUNT, KEYS = 200, 7
INVISIBLE_MS = 50
NEVER_DEAD = 1_000_000
FIRST = attrgetter("first")


@dataclass
class Stream:
    """One message group."""

    offsets: list[int] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    """In the order in which receivers were done with them."""
    acknowledged: set[int] = field(default_factory=set)
    """Those that come no more, as far as is known."""
    free_at_ms: int = 0
    """When none of its messages is in flight any more."""

    @property
    def next(self) -> list[int]:
        """From the first that is not acknowledged on."""
        left = [at for at, each in enumerate(self.offsets) if each not in self.acknowledged]
        return self.offsets[left[0] :] if left else []


class Queue:
    """A queue, and a receiver that does as chance says.

    Args:
        careful: behind a message that fails, it handles none of its message group.
    """

    def __init__(self, seed: int, *, careful: bool) -> None:
        self.chance = random.Random(seed)
        self.careful = careful
        self.keys = [self.chance.choice([0, self.chance.randrange(KEYS)]) for _ in range(COUNT)]
        self.streams = {key: Stream() for key in range(KEYS)}
        for offset, key in enumerate(self.keys):
            self.streams[key].offsets.append(offset)
        self.now_ms = 0
        ledger = Ledger()
        ledger.start(GROUP, 5, QUEUE, 7, Decision(0, StartReason.FIRST, "why"), "", 0)
        self.deliveries = Deliveries(ledger)
        self.deliveries.open(GROUP, QUEUE)

    def receive(self) -> dict[int, list[Acquired]]:
        """Acquire a batch; return one record for each message, by message group."""
        count = self.chance.randint(1, 16)
        visible_at_ms = self.now_ms + INVISIBLE_MS
        made = self.deliveries.acquire_in_order(
            GROUP,
            QUEUE,
            count,
            count,
            FifoCandidates(0, self.keys),
            NEVER_DEAD,
            self.now_ms,
            visible_at_ms,
            "",
        )
        got: dict[int, list[Acquired]] = {}
        for record in made:
            if isinstance(record, Acquired):
                for bit in range(record.messages.bit_length()):
                    if record.messages >> bit & 1:
                        offset = record.first + bit
                        each = record._replace(first=offset, messages=1)
                        got.setdefault(self.keys[offset], []).append(each)
        self.check(got, count)
        for key in got:
            self.streams[key].free_at_ms = visible_at_ms
        return got

    def check(self, got: dict[int, list[Acquired]], count: int) -> None:
        free = [each for each in self.streams.values() if each.free_at_ms <= self.now_ms]
        assert len(got) == min(count, len([each for each in free if each.next]))
        assert sum(map(len, got.values())) == min(count, sum(len(each.next) for each in free))
        most = max(map(len, got.values()), default=0)
        for key, some in got.items():
            stream = self.streams[key]
            assert stream in free, "a receiver has messages of it"
            offsets = [each.first for each in some]
            assert offsets == stream.next[: len(some)], "in order, without a hole"
            assert len(some) >= min(most - 1, len(stream.next)), "they take turns"
            # All messages from the first delivered one on have to be acknowledged again.
            stream.acknowledged -= set(stream.next)

    def handle(self, key: int, some: list[Acquired]) -> None:
        stream = self.streams[key]
        good = self.chance.randint(0, len(some)) if self.chance.random() < 0.3 else len(some)
        done = some[:good] if self.careful else sorted(self.chance.sample(some, good), key=FIRST)
        for each in done:
            records, refused = self.deliveries.acknowledge(
                GROUP, QUEUE, each.number, each.first, 1, self.now_ms
            )
            assert records
            assert not refused
            stream.handled.append(each.first)
            stream.acknowledged.add(each.first)
        if good == len(some):
            stream.free_at_ms = self.now_ms
        elif self.chance.random() < 0.7:
            # Otherwise it has crashed, and their time is over some time.
            stream.free_at_ms = self.now_ms + self.chance.choice((0, 20))
            for each in some:
                if each not in done:
                    change = VisibilityChange(stream.free_at_ms, counted=True, extend=False)
                    self.deliveries.change_visibility(
                        GROUP, QUEUE, each.number, each.first, 1, change
                    )


@pytest.mark.parametrize("careful", [True, False])
@pytest.mark.parametrize("seed", seeds(8))
def test_a_message_group_comes_in_order_whatever_fails(seed: int, *, careful: bool) -> None:
    queue = Queue(seed, careful=careful)
    held: list[tuple[int, list[Acquired]]] = []
    while any(each.next for each in queue.streams.values()):
        held += queue.receive().items()
        queue.chance.shuffle(held)
        while held and queue.chance.random() < 0.8:
            queue.handle(*held.pop())
        if queue.chance.random() < 0.3:
            # Receivers that have not come to them have crashed.
            queue.now_ms += INVISIBLE_MS
            held.clear()
    for stream in queue.streams.values():
        # A careless receiver handles messages behind one that fails, and later once more.
        last = {offset: at for at, offset in enumerate(stream.handled)}
        assert sorted(last, key=last.__getitem__) == stream.offsets
        assert not careful or stream.handled == stream.offsets
