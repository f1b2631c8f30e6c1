"""Windows of receivers, compared with a model of each offset, under random operations."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.in_flight.deliveries import (
    INVISIBLE_MS_MAX,
    NO_HOLDER,
    UNDELIVERED_MIN,
    Deliveries,
    FifoCandidates,
    Holder,
    VisibilityChange,
)
from rockoon_offset.in_flight.receivers import Delivered, Heard, Receivers, VisibilityEntry
from rockoon_offset.in_flight.window import (
    ENTRIES_MIN,
    IN_FLIGHT_MAX,
    WINDOW_OFFSETS_MAX,
    ClientName,
)
from rockoon_offset.journal import frames
from rockoon_offset.progress.ledger import OFFSET_MAX, Ledger, OffsetCommit
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.progress.records import Acquired, Extended, Record, Settled, decode, encode
from support.seeds import seeds

GROUP, QUEUE = "g", MessageQueue("orders", "broker-a", 0)
SEEDS = pytest.mark.parametrize("seed", seeds(6))
STEPS = 300
# A message that is delivered again more often is granted alone.
REDELIVERIES = 2
LEASE_MS = 400
CLIENTS = ("a", "b")


class Held(NamedTuple):
    """A message of an acquisition."""

    number: int
    attempt: int
    visible_at_ms: int
    # The client whose reports extend it, and its limit; empty and 0: no reports do.
    holder: str = ""
    held_until_ms: int = 0

    def extended(self, before_ms: int, until_ms: int) -> "Held":
        """Return it after a report."""
        until_ms = min(until_ms, self.held_until_ms)
        is_due = self.visible_at_ms < before_ms and self.visible_at_ms < until_ms
        return self._replace(visible_at_ms=until_ms) if is_due else self


class Model:
    """The true state of a queue, offset by offset."""

    def __init__(self, offset: int) -> None:
        # All offsets below are settled, and so are those in `done`.
        self.begin = self.acquired_to = offset
        self.done: set[int] = set()
        self.held: dict[int, Held] = {}

    @property
    def floor(self) -> int:
        floor = self.begin
        while floor in self.done:
            floor += 1
        return floor

    def is_settled(self, offset: int) -> bool:
        return offset < self.begin or offset in self.done

    def commit(self, offset: int) -> None:
        for each in range(self.begin, offset):
            self.held.pop(each, None)
            self.done.add(each)
        self.acquired_to = max(self.acquired_to, offset)

    def free(self, end: int, now_ms: int) -> set[int]:
        """Return the messages that a receiver may get now."""
        return {
            offset
            for offset in range(self.begin, end)
            if offset not in self.done
            and (offset not in self.held or self.held[offset].visible_at_ms <= now_ms)
        }


class World:
    """A ledger with its records, a model of it, and random operations on both."""

    def __init__(self, seed: int, *, fifo: bool) -> None:
        self.chance = random.Random(seed)
        self.fifo = fifo
        self.ledger = Ledger()
        # Records that became durable together.
        self.batches: list[list[Record]] = []
        self.now_ms = 1_000
        self.end = 20
        self.groups = [self.chance.randrange(6) for _ in range(5_000)]
        # (number, offsets) of all deliveries so far.
        self.receipts: list[tuple[int, list[int]]] = []
        self.write(self.started("", 0))
        self.model = Model(0)
        self.open()

    @property
    def deliveries(self) -> Deliveries:
        return Deliveries(self.ledger, LEASE_MS)

    @property
    def epoch(self) -> int:
        progress = self.ledger.find(GROUP, QUEUE)
        assert progress is not None
        return progress.epoch

    def write(self, records: list[Any]) -> None:
        if records:
            self.batches.append(records)

    def started(self, member: str, offset: int) -> list[Record]:
        decision = Decision(offset, StartReason.COMMITTED, "why")
        return self.ledger.start(GROUP, 5, QUEUE, 7, decision, member, self.now_ms)

    def open(self) -> None:
        self.write(self.deliveries.open(GROUP, QUEUE))

    def anew(self, offset: int) -> None:
        """Release the messages of all receivers."""
        self.model = Model(offset)
        self.open()

    # Random operations.

    def step(self) -> None:
        doings: list[Callable[[], None]] = [
            *[self.acquire, self.acknowledge, self.pass_time] * 6,
            *[self.put_off, self.extend, self.grow, self.hear] * 3,
            self.leave,
            self.commit,
            self.restart,
            self.fail,
        ]
        self.chance.choice(doings)()
        self.compare()

    def pass_time(self) -> None:
        self.now_ms += self.chance.choice((1, 10, 100, 1_000))

    def grow(self) -> None:
        self.end += self.chance.randrange(10)

    def acquire(self) -> None:
        count = self.chance.randint(1, 12)
        visible_at_ms = self.now_ms + self.chance.choice((1, 50, 500))
        held_until_ms = self.now_ms + self.chance.choice((100, 2_000))
        holder = self.chance.choice(
            (NO_HOLDER, *(Holder(name, "", held_until_ms) for name in CLIENTS))
        )
        free = self.model.free(self.end, self.now_ms)
        if self.fifo:
            # Some receivers have read some messages before, or not enough.
            first = max(0, self.model.floor - self.chance.randrange(3))
            told = self.groups[first : min(self.end, first + self.chance.randint(0, 40))]
            candidates = FifoCandidates(first, told)
            group_count = self.chance.choice((1, 2, count))
            attempts, reopened = self.next_in_order(first + len(told), count, group_count)
            made = self.deliveries.acquire_in_order(
                GROUP,
                QUEUE,
                count,
                group_count,
                candidates,
                REDELIVERIES,
                self.now_ms,
                visible_at_ms,
                "",
                holder,
            )
            self.model.done -= reopened
            records = [each for each in made if isinstance(each, Acquired)]
            assert len(made) - len(records) == bool(reopened)
            assert offsets_of(records) == set(attempts) <= free | reopened
            self.require_order(records)
            self.write(list(made))
        else:
            records = self.deliveries.acquire(
                GROUP, QUEUE, count, self.end, self.now_ms, visible_at_ms, holder
            )
            assert len(offsets_of(records)) == min(count, len(free))
            assert offsets_of(records) <= free
            attempts = {offset: self.attempts(offset) + 1 for offset in free}
            self.write(list(records))
        for record in records:
            self.take(record, attempts)

    def attempts(self, offset: int) -> int:
        held = self.model.held.get(offset)
        return held.attempt if held else 0

    def next_in_order(
        self, end: int, count: int, group_count: int
    ) -> tuple[dict[int, int], set[int]]:
        """Return the messages of a receiver that knows the message groups below an offset: offset
        to attempt; and the settled ones that come again."""
        members: dict[int, list[int]] = {}
        for offset in range(self.model.floor, max(end, self.model.acquired_to)):
            group = self.groups[offset]
            if group in members or not self.model.is_settled(offset):
                members.setdefault(group, []).append(offset)
        in_flight = {at for at, held in self.model.held.items() if held.visible_at_ms > self.now_ms}
        runs, settled = [], {}
        for first, *behind in members.values():
            comes_again = first in self.model.held
            is_unsure = comes_again and max(in_flight, default=-1) >= end
            if first >= end or in_flight & {first, *behind} or is_unsure:
                continue
            run = {first: self.attempts(first) + 1}
            runs.append(run)
            if run[first] > REDELIVERIES + 1:
                continue
            done = {each for each in behind if self.model.is_settled(each)}
            settled[first] = {each for each in done if comes_again and each < end}
            for offset in behind:
                if offset >= end or self.attempts(offset) > REDELIVERIES + 1:
                    break
                if offset not in done - settled[first] and len(run) < group_count:
                    run[offset] = max(self.attempts(offset), 1)
        found: dict[int, int] = {}
        while len(found) < count and any(runs):
            for run in sorted(filter(None, runs), key=min)[: count - len(found)]:
                offset = min(run)
                found[offset] = run.pop(offset)
        return found, set().union(*(settled.get(first, set()) for first in found))

    def require_order(self, records: list[Acquired]) -> None:
        """The order of the records is that of each message group."""
        newest: dict[int, int] = {}
        for record in records:
            for offset in bits_of(record.first, record.messages):
                assert newest.get(self.groups[offset], -1) < offset
                newest[self.groups[offset]] = offset

    def take(self, record: Acquired, attempts: dict[int, int]) -> None:
        """Apply an acquisition to the model."""
        offsets = bits_of(record.first, record.messages)
        for offset in offsets:
            before = self.model.held.get(offset)
            assert record.attempt == attempts[offset]
            assert record.former == (before.number if before else 0)
            held = (record.holder, record.held_until_ms) if record.held_until_ms else ()
            self.model.held[offset] = Held(
                record.number, record.attempt, record.visible_at_ms, *held
            )
        self.model.acquired_to = max(self.model.acquired_to, offsets[-1] + 1)
        self.receipts.append((record.number, offsets))

    def receipt(self) -> tuple[int, int, int, list[int]]:
        """Return messages of a delivery, old or new: its number, the first, the set, all of
        them."""
        recent = self.receipts[-10:] if self.chance.random() < 0.8 else self.receipts
        number, offsets = self.chance.choice(recent or [(1, [0])])
        chosen = sorted(self.chance.sample(offsets, self.chance.randint(1, len(offsets))))
        first = chosen[0] - self.chance.randint(0, min(2, chosen[0]))
        return number, first, sum(1 << (offset - first) for offset in chosen), chosen

    def own(self, number: int, offsets: list[int]) -> list[int]:
        held = self.model.held
        return [each for each in offsets if each in held and held[each].number == number]

    def acknowledge(self) -> None:
        number, first, messages, offsets = self.receipt()
        own = self.own(number, offsets)
        records, refused = self.deliveries.acknowledge(
            GROUP, QUEUE, number, first, messages, self.now_ms
        )
        window = self.ledger.windows.find(GROUP, QUEUE)
        assert window is not None
        if window.since and number >= window.since:
            left = {each for each in offsets if not self.model.is_settled(each)}
            assert set(bits_of(first, refused)) == left - set(own)
        else:
            assert refused == messages
        for offset in own:
            del self.model.held[offset]
            self.model.done.add(offset)
        self.write(records)

    def put_off(self) -> None:
        number, first, messages, offsets = self.receipt()
        own = self.own(number, offsets)
        counted = self.chance.random() < 0.7
        at_ms = self.now_ms + self.chance.choice((0, 10, 300))
        reason = self.chance.choice(("", "", "it failed"))
        change = VisibilityChange(at_ms, counted, extend=False, reason=reason)
        changed = self.deliveries.change_visibility(GROUP, QUEUE, number, first, messages, change)
        assert set(bits_of(first, changed.refused)) == set(offsets) - set(own)
        assert bool(changed.number) == bool(own)
        for offset in own:
            attempt = self.model.held[offset].attempt - (not counted)
            self.model.held[offset] = Held(changed.number, attempt, at_ms)
        if own:
            self.receipts.append((changed.number, own))
        self.write(changed.records)

    def extend(self) -> None:
        number, first, messages, offsets = self.receipt()
        own = self.own(number, offsets)
        at_ms = self.now_ms + self.chance.choice((1, 70, 700))
        change = VisibilityChange(at_ms, counted=True, extend=True)
        changed = self.deliveries.change_visibility(GROUP, QUEUE, number, first, messages, change)
        assert changed.number == (number if own else 0)
        for offset in own:
            self.model.held[offset] = self.model.held[offset]._replace(visible_at_ms=at_ms)
        self.write(changed.records)

    def hear(self) -> None:
        """Report a client that called some time ago."""
        name, heard_ms = self.chance.choice(CLIENTS), self.now_ms - self.chance.choice((0, 40))
        self.deliveries.delivered(held.number for held in self.model.held.values())
        self.write(self.deliveries.extend_held(ClientName(GROUP, name, ""), heard_ms))
        for offset, held in self.model.held.items():
            if held.holder == name:
                fresh_ms = heard_ms + LEASE_MS * 3 // 4
                self.model.held[offset] = held.extended(fresh_ms, heard_ms + LEASE_MS)
        # A client of the same name with another key, or of another group, has nothing.
        for stranger in (ClientName(GROUP, name, "key"), ClientName("h", name, "")):
            assert self.deliveries.extend_held(stranger, self.now_ms + LEASE_MS) == []
            assert self.deliveries.release_held(stranger, self.now_ms) == []

    def leave(self) -> None:
        """A client leaves: its messages are visible now, and the attempt counts."""
        name = self.chance.choice(CLIENTS)
        records = self.deliveries.release_held(ClientName(GROUP, name, ""), self.now_ms)
        self.write(list(records))
        for record in records:
            assert isinstance(record, Acquired)
            offsets = bits_of(record.first, record.messages)
            for offset in offsets:
                before = self.model.held[offset]
                assert (before.number, before.attempt) == (record.former, record.attempt)
                self.model.held[offset] = Held(record.number, record.attempt, self.now_ms)
            self.receipts.append((record.number, offsets))
        assert name not in {held.holder for held in self.model.held.values()}

    def commit(self) -> None:
        """A reader without membership commits, forward or, forced, back."""
        force = self.chance.random() < 0.3
        offset = self.model.floor + self.chance.randint(0, 8)
        if force:
            offset = max(0, offset - 12)
        wish = OffsetCommit(GROUP, QUEUE, offset, self.epoch, "", "", force)
        self.write(self.ledger.commit(wish, 7, None, self.now_ms))
        if offset < self.model.floor:
            self.anew(offset)
        else:
            self.model.commit(offset)
            self.end = max(self.end, offset)

    def fail(self) -> None:
        """Begin the queue again."""
        kind = self.chance.choice(
            ("member", "silent member", "import", "topic", "group", "restore")
        )
        floor = self.model.floor
        match kind:
            case "member":
                self.write(self.started("m1", floor))
                assert self.ledger.windows.find(GROUP, QUEUE) is None
                epoch = self.epoch
                # It has read and committed, and then sent nothing.
                wish = OffsetCommit(GROUP, QUEUE, floor + 1, epoch, "m1", "", force=False)
                self.write(self.ledger.commit(wish, 7, None, self.now_ms))
                self.end = max(self.end, floor + 1)
                self.anew(floor + 1)
                # Its later commits are not those of its successors.
                assert self.epoch > epoch
            case "silent member":
                self.write(self.started("m2", floor))
                self.anew(floor)
            case "import":
                decision = Decision(floor + 2, StartReason.IMPORTED, "why")
                self.write(self.ledger.import_offset(GROUP, 5, QUEUE, 7, decision, self.now_ms))
                self.end = max(self.end, floor + 2)
                self.anew(floor + 2)
            case "topic":
                self.write(Reconciliation(self.ledger).delete_topics([QUEUE.topic]))
                assert self.ledger.windows.find(GROUP, QUEUE) is None
                self.write(self.started("", 0))
                self.anew(0)
            case "group":
                self.write(Reconciliation(self.ledger).delete_group(GROUP, 100))
                assert self.ledger.windows.find(GROUP, QUEUE) is None
                self.write(self.started("", 1))
                self.anew(1)
            case "restore":
                # An etcd with other revisions: no queue begins again.
                self.write(Reconciliation(self.ledger).accept_etcd(9, 50, {QUEUE: 7}, {GROUP: 5}))

    def restart(self) -> None:
        """Continue with the ledger of the journal, or of a snapshot."""
        kept = list(self.ledger.snapshot())
        if self.chance.random() < 0.5:
            kept = [record for batch in self.batches for record in batch]
        self.ledger = replayed(kept)
        # The service could not receive reports while it was away.
        self.write(self.deliveries.service_started(self.now_ms))
        until_ms = self.now_ms + LEASE_MS
        for offset, held in self.model.held.items():
            self.model.held[offset] = held.extended(until_ms, until_ms)
        self.open()

    # Rules.

    def compare(self) -> None:
        window, progress = self.ledger.windows.find(GROUP, QUEUE), self.ledger.find(GROUP, QUEUE)
        assert window is not None
        assert progress is not None
        model = self.model
        assert progress.offset == window.floor == model.floor
        held: dict[int, Held] = {}
        for each in window:
            for at_ms, messages in each.parts.items():
                for offset in bits_of(each.first, messages):
                    assert offset not in held
                    whose = (each.holder, each.held_until_ms) if each.held_until_ms else ()
                    held[offset] = Held(each.number, each.attempt, at_ms, *whose)
        assert held == model.held
        for name in CLIENTS:
            found = self.ledger.held.of(ClientName(GROUP, name, ""))
            own = {at for _, each in found for at in bits_of(each.first, each.messages)}
            assert own == {offset for offset in held if held[offset].holder == name}
        assert len(self.ledger.held) == len({x.number for x in held.values() if x.holder})
        done = set(bits_of(window.floor, window.settled))
        skipped = set(bits_of(window.floor, window.skipped))
        assert done == {each for each in model.done if each >= window.floor}
        inside = set(range(window.floor, window.acquired_to))
        assert (done | held.keys() | skipped) == inside
        assert len(done) + len(held) + len(skipped) == len(inside)
        assert window.acquired_to == max(model.acquired_to, window.floor)
        assert not skipped or self.fifo
        due = [each.visible_at_ms for each in held.values()]
        assert window.next_visible_at_ms() == min(due, default=None)
        counts = window.counts(self.now_ms)
        assert counts.in_flight == len([at for at in due if at > self.now_ms])
        assert counts.visible_again == len([at for at in due if at <= self.now_ms])
        assert window.unsettled == len(held)
        free = model.free(window.acquired_to, self.now_ms)
        assert window.first_ready(self.now_ms) == min(free, default=window.acquired_to)


def bits_of(first: int, messages: int) -> list[int]:
    return [first + bit for bit in range(messages.bit_length()) if messages >> bit & 1]


def offsets_of(records: list[Acquired]) -> set[int]:
    offsets = [each for record in records for each in bits_of(record.first, record.messages)]
    assert len(set(offsets)) == len(offsets)
    return set(offsets)


def replayed(records: list[Record]) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.apply(decode(encode(record)))
    return ledger


def state(ledger: Ledger) -> list[Record]:
    return sorted(ledger.snapshot(), key=repr)


@SEEDS
@pytest.mark.parametrize("fifo", [False, True], ids=["plain", "fifo"])
def test_each_message_is_settled_or_comes_again(seed: int, *, fifo: bool) -> None:
    world = World(seed, fifo=fifo)
    for _ in range(STEPS):
        world.step()
    records = [record for batch in world.batches for record in batch]
    assert state(replayed(records)) == state(world.ledger)
    assert state(replayed(list(world.ledger.snapshot()))) == state(world.ledger)
    # Each unsettled message comes in the end, and no settled one does.
    world.now_ms += 10_000
    while left := world.model.free(world.end, world.now_ms):
        world.acquire()
        world.now_ms += 10_000
        for number, offsets in world.receipts[-20:]:
            for offset in world.own(number, offsets):
                records, refused = world.deliveries.acknowledge(
                    GROUP, QUEUE, number, offset, 1, world.now_ms
                )
                assert records
                assert not refused
                del world.model.held[offset]
                world.model.done.add(offset)
        # In a FIFO group, messages settled behind a redelivered message may be free again.
        assert fifo or world.model.free(world.end, world.now_ms) <= left
    assert world.model.floor == max(world.end, world.model.acquired_to)
    world.compare()


@SEEDS
def test_a_journal_cut_at_any_byte_gives_back_what_it_had_up_to_there(seed: int) -> None:
    world = World(seed, fifo=bool(seed % 2))
    for _ in range(60):
        world.step()
    data, ends = bytearray(), [0]
    for batch in world.batches:
        payload = frames.pack(map(encode, batch))
        data += frames.encode(frames.FrameKind.RECORDS, len(data), 0, payload)
        ends.append(len(data))
    states = [
        state(replayed([record for batch in world.batches[:count] for record in batch]))
        for count in range(len(ends))
    ]
    cuts = {world.chance.randrange(len(data)) for _ in range(60)}
    for cut in sorted(cuts | set(ends) | {end - 1 for end in ends[1:]}):
        found = [
            decode(record)
            for frame in frames.valid_frames(bytes(data[:cut]))
            for record in frames.unpack(frame.payload)
        ]
        whole = len([end for end in ends if end <= cut]) - 1
        assert state(replayed(found)) == states[whole]


def open_ledger(offset: int = 0) -> tuple[Ledger, Deliveries]:
    ledger = Ledger()
    ledger.start(GROUP, 5, QUEUE, 7, Decision(offset, StartReason.FIRST, "why"), "", 0)
    deliveries = Deliveries(ledger)
    deliveries.open(GROUP, QUEUE)
    return ledger, deliveries


def test_receivers_have_only_so_many_messages_of_a_queue() -> None:
    _, deliveries = open_ledger()
    for _ in range(IN_FLIGHT_MAX // 1024):
        assert deliveries.acquire(GROUP, QUEUE, 1024, 1 << 30, 0, 10)
    assert deliveries.acquire(GROUP, QUEUE, 1, 1 << 30, 0, 10) == []
    # Messages that become visible can be acquired.
    assert deliveries.acquire(GROUP, QUEUE, 1, 1 << 30, 10, 20)
    deliveries.acknowledge(GROUP, QUEUE, 2, 1024, 1, 10)
    assert len(deliveries.acquire(GROUP, QUEUE, 1024, 1 << 30, 9, 20)) == 1


def test_receivers_run_only_so_far_ahead_of_a_message_that_nobody_settles() -> None:
    ledger, deliveries = open_ledger()
    deliveries.acquire(GROUP, QUEUE, 1, 1 << 30, 0, 1_000)
    reached = 1
    while got := deliveries.acquire(GROUP, QUEUE, 1024, 1 << 30, 0, 1_000):
        (record,) = got
        assert record.first == reached
        reached += record.messages.bit_count()
        deliveries.acknowledge(GROUP, QUEUE, record.number, record.first, record.messages, 0)
    assert reached == WINDOW_OFFSETS_MAX
    (kept,) = [each for each in ledger.snapshot() if type(each).__name__ == "WindowPut"]
    assert decode(encode(kept)) == kept


def test_a_first_offset_far_from_the_window_costs_nothing() -> None:
    _, deliveries = open_ledger(OFFSET_MAX)
    (record,) = deliveries.acquire(GROUP, QUEUE, 2, OFFSET_MAX + 2, 0, 10)
    # Below the floor all are settled, and none is acquired.
    assert deliveries.acknowledge(GROUP, QUEUE, record.number, 0, 0b11, 0) == ([], 0)
    later = VisibilityChange(20, True, False)
    assert deliveries.change_visibility(GROUP, QUEUE, record.number, 0, 0b11, later).refused == 0b11


def test_what_a_wrong_clock_put_off_for_ever_is_visible_when_the_service_starts() -> None:
    ledger, deliveries = open_ledger()
    deliveries.acquire(GROUP, QUEUE, 2, 4, 0, 1 << 50)
    deliveries.acquire(GROUP, QUEUE, 2, 4, 0, INVISIBLE_MS_MAX)
    (record,) = deliveries.service_started(0)
    assert state(replayed(list(ledger.snapshot()))) == state(ledger)
    assert isinstance(record, Extended)
    assert bits_of(record.first, record.messages) == [0, 1]
    assert offsets_of(deliveries.acquire(GROUP, QUEUE, 9, 4, 0, 10)) == {0, 1}
    assert deliveries.service_started(0) == []


def test_a_snapshot_knows_whose_try_an_acquisition_was() -> None:
    ledger, deliveries = open_ledger()
    deliveries.acquire_in_order(GROUP, QUEUE, 1, 1, FifoCandidates(0, [1]), 16, 0, 10, "a try")
    (acquisition,) = replayed(list(ledger.snapshot())).windows.of(GROUP, QUEUE)
    assert acquisition.attempt_id == "a try"


def test_what_is_extended_again_and_again_takes_no_more_memory() -> None:
    ledger, deliveries = open_ledger()
    # The first one stays at the front of the due ones.
    deliveries.acquire(GROUP, QUEUE, 1, 2, 0, 1)
    (record,) = deliveries.acquire(GROUP, QUEUE, 1, 2, 0, 10)
    window = ledger.windows.of(GROUP, QUEUE)
    for at_ms in range(11, 1_000):
        later = VisibilityChange(at_ms, True, True)
        deliveries.change_visibility(GROUP, QUEUE, record.number, 1, 1, later)
    assert window.next_visible_at_ms() == 1
    assert len(window._due) <= 70


class Written:
    """A store that records its writes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.records: list[Record] = []

    def require_writable(self) -> None:
        pass

    def write(self, records: list[Record]) -> None:
        self.records += records

    async def durable(self) -> None:
        pass


async def test_what_was_settled_is_written_whatever_fails_behind_it() -> None:
    ledger, deliveries = open_ledger()
    (record,) = deliveries.acquire(GROUP, QUEUE, 8, 8, 0, 10)
    store: Any = Written(ledger)
    none: Any = None
    receivers = Receivers(store, none, none, none, none, none, lambda: 0, 0.0)

    def entries(first: int) -> Iterator[Delivered]:
        yield Delivered(GROUP, QUEUE, record.number, first, 0b11)
        raise RuntimeError("no one foresaw")

    with pytest.raises(RuntimeError):
        await receivers.acknowledge(entries(0))
    with pytest.raises(RuntimeError):
        await receivers.change_visibility(
            VisibilityEntry(each, 10, counted=True, extend=True) for each in entries(2)
        )
    assert [type(each) for each in store.records] == [Settled, Extended]


async def test_other_calls_are_answered_during_a_long_report_of_clients() -> None:
    ledger, deliveries = open_ledger()
    count = 4_000
    clients = [ClientName(GROUP, f"client-{number}", "") for number in range(40)]
    for number in range(count):
        holder = Holder(clients[number % 40].client_id, "", 1 << 40)
        deliveries.acquire(GROUP, QUEUE, 1, count, 0, 10, holder)
    store: Any = Written(ledger)
    none: Any = None
    receivers = Receivers(store, none, none, none, none, none, lambda: 0, 0.0)
    store.records.clear()
    turns = set()
    async with asyncio.TaskGroup() as tasks:
        work = receivers.heard(Heard(each, 90_000) for each in clients)
        reporting = tasks.create_task(work, name="report")
        while not reporting.done():
            turns.add(len(store.records))
            await asyncio.sleep(0)
    assert len(store.records) == count
    assert len(turns) > 2, turns


def test_receivers_begin_by_writing_what_a_wrong_clock_has_put_off() -> None:
    ledger, deliveries = open_ledger()
    deliveries.acquire(GROUP, QUEUE, 1, 1, 0, 1 << 50)
    store: Any = Written(ledger)
    none: Any = None
    Receivers(store, none, none, none, none, none, lambda: 0, 0.0)
    assert [type(each) for each in store.records] == [Extended]


def test_a_group_that_keeps_no_order_any_more_gets_what_was_left_behind() -> None:
    ledger, deliveries = open_ledger()
    candidates = FifoCandidates(0, [1, 1, 1, 2])
    records = deliveries.acquire_in_order(GROUP, QUEUE, 2, 2, candidates, 16, 0, 10, "")
    assert [each.messages for each in records if isinstance(each, Acquired)] == [0b1001]
    assert offsets_of(deliveries.acquire(GROUP, QUEUE, 9, 6, 0, 10)) == {1, 2, 4, 5}
    window = ledger.windows.of(GROUP, QUEUE)
    assert (window.skipped, window.acquired_to) == (0, 6)


def test_a_reopened_message_waits_for_one_in_flight_behind_the_candidates() -> None:
    _, deliveries = open_ledger()
    groups, late = [1] * 4, Holder("late", "", 1_000_000)

    def acquire(count: int, candidates: int, now_ms: int, holder: Holder = NO_HOLDER) -> set[int]:
        told = FifoCandidates(0, groups[:candidates])
        records = deliveries.acquire_in_order(
            GROUP, QUEUE, count, count, told, 16, now_ms, now_ms + 100, "", holder
        )
        return offsets_of([each for each in records if isinstance(each, Acquired)])

    assert acquire(4, 4, 0, late) == {0, 1, 2, 3}
    deliveries.delivered([1])
    deliveries.acknowledge(GROUP, QUEUE, 1, 1, 0b11, 50)
    # 0 comes again, so that 1 and 2 are open again; then the first holder's 3 is extended.
    assert acquire(1, 4, 200) == {0}
    assert deliveries.extend_held(ClientName(GROUP, "late", ""), 250)
    deliveries.acknowledge(GROUP, QUEUE, 2, 0, 1, 260)
    assert acquire(4, 4, 270) == set()
    assert acquire(4, 3, 270) == set()


def test_the_index_of_held_messages_keeps_no_more_than_twice_what_is_held() -> None:
    ledger, deliveries = open_ledger()
    for number in range(4 * ENTRIES_MIN):
        holder = Holder(f"client-{number % 7}", "", 1 << 40)
        (record,) = deliveries.acquire(GROUP, QUEUE, 1, 1 << 30, 0, 10, holder)
        if number >= 10:
            deliveries.acknowledge(GROUP, QUEUE, record.number, record.first, 1, 0)
        assert len(ledger.held) <= ENTRIES_MIN
    held = [ledger.held.of(ClientName(GROUP, f"client-{each}", "")) for each in range(7)]
    assert [len(each) for each in held] == [2, 2, 2, 1, 1, 1, 1]
    assert len(ledger.held) == 10


def test_messages_that_a_killed_gateway_did_not_deliver_are_visible_after_a_lease() -> None:
    _, deliveries = open_ledger()
    client, holder = ClientName(GROUP, "c", ""), Holder("c", "", 1_000_000)
    deliveries.acquire(GROUP, QUEUE, 1, 2, 0, LEASE_MS, holder)
    (second,) = deliveries.acquire(GROUP, QUEUE, 1, 2, 0, LEASE_MS, holder)
    deliveries.delivered([second.number])
    # The client lives: another gateway reports it.
    (extended,) = deliveries.extend_held(client, LEASE_MS - 1)
    assert isinstance(extended, Extended)
    assert extended.number == second.number
    assert offsets_of(deliveries.acquire(GROUP, QUEUE, 9, 2, LEASE_MS, 2 * LEASE_MS)) == {0}


def test_acquisitions_without_a_delivery_take_no_more_memory_than_what_is_held() -> None:
    _, deliveries = open_ledger()
    for _ in range(2 * UNDELIVERED_MIN):
        holder = Holder("c", "", 1 << 40)
        (record,) = deliveries.acquire(GROUP, QUEUE, 1, 1 << 30, 0, 10, holder)
        deliveries.acknowledge(GROUP, QUEUE, record.number, record.first, 1, 0)
        assert len(deliveries._undelivered) <= UNDELIVERED_MIN


def test_a_change_by_the_client_is_not_extended_by_its_reports() -> None:
    ledger, deliveries = open_ledger()
    client = ClientName(GROUP, "c", "key")
    holder = Holder("c", "key", 1_000_000)
    (record,) = deliveries.acquire(GROUP, QUEUE, 3, 3, 0, 60_000, holder)
    deliveries.delivered([record.number])
    change = VisibilityChange(10_000, counted=True, extend=False)
    deliveries.change_visibility(GROUP, QUEUE, record.number, 0, 0b1, change)
    (extended,) = deliveries.extend_held(client, 20_000)
    assert isinstance(extended, Extended)
    assert (bits_of(extended.first, extended.messages), extended.visible_at_ms) == ([1, 2], 80_000)
    # Three quarters of the lease remain: this is enough.
    assert deliveries.extend_held(client, 30_000) == []
    passed = VisibilityChange(70_000, counted=True, extend=False, to=Holder("d", "", 1_000_000))
    changed = deliveries.change_visibility(GROUP, QUEUE, record.number, 1, 0b1, passed)
    window = ledger.windows.of(GROUP, QUEUE)
    acquisition = window.find(changed.number)
    assert acquisition is not None
    assert (acquisition.holder, acquisition.attempt) == ("d", 1)
    (left,) = deliveries.release_held(client, 50_000)
    assert isinstance(left, Acquired)
    assert (bits_of(left.first, left.messages), left.visible_at_ms) == ([2], 50_000)


@pytest.mark.parametrize(
    "fields", [(), ("r",), ("", "c"), ("r", "c", "key"), ("", "c", "", 7), ("", "c", "", 7, "call")]
)
def test_an_acquisition_is_written_as_short_as_before_where_it_says_nothing_more(
    fields: tuple[Any, ...],
) -> None:
    record = Acquired(GROUP, QUEUE, 5, 0, 3, 0b101, 1, 9, "", *fields)
    assert decode(encode(record)) == record
    written = encode(record)
    if not any(fields):
        assert written == b'["acquired","g","orders","broker-a",0,5,0,3,"5",1,9,""]'
