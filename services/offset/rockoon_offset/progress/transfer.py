"""Progress out and in: JSON Lines, and RocketMQ's consumerOffset.json."""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rockoon_core.errors import InvalidArgument, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, QueueState, StartReason
from rockoon_format.config_json import (
    ConfigError,
    ConsumerOffsets,
    DataVersion,
    GroupTopic,
    read_consumer_offsets,
    write_consumer_offsets,
)
from rockoon_format.names import group_fault
from rockoon_offset.brokers import Brokers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.commit_check import OFFSET_MAX
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import SEPARATOR, group_of, member_fault, member_of, reader_of
from rockoon_offset.progress.records import Progress, ResetStep
from rockoon_offset.route_table import RouteTable
from rockoon_offset.start.subscriptions import Subscriptions
from rockoon_offset.wire import progress_to_json

ENTRIES_MAX = 100_000
CREATED_AGAIN = "the queue was deleted or created again meanwhile"


class Entry(NamedTuple):
    """An offset that somebody wants stored."""

    # A reader's name, as in the ledger.
    group: str
    queue: MessageQueue
    offset: int


class Imported(NamedTuple):
    """What an import did, or would do; one sentence for each entry that was not taken."""

    steps: list[ResetStep]
    skipped: list[str]


def to_json_lines(progress: Iterable[Progress]) -> bytes:
    """Everything there is, one Progress a line."""
    return b"".join(map(progress_to_json, progress))


def to_rocketmq(progress: Iterable[Progress], broker: str, changes: int, now_ms: int) -> bytes:
    """The consumerOffset.json of one broker.

    Args:
        progress: of any brokers.
        broker: whose queues are wanted.
        changes: a number that grows when anything changes.
        now_ms: when.
    """
    offsets: dict[GroupTopic, dict[int, int]] = {}
    for entry in progress:
        if entry.queue.broker == broker:
            # A member's own becomes topic@group@member, which no group of RocketMQ's answers to.
            key = GroupTopic(entry.group, entry.queue.topic)
            offsets.setdefault(key, {})[entry.queue.queue_id] = entry.offset
    return write_consumer_offsets(ConsumerOffsets(offsets, DataVersion(changes, 0, now_ms)))


def from_json_lines(content: bytes) -> list[Entry]:
    """Raises InvalidArgument, naming the line."""
    entries = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entries.append(entry_of(line))
        except ValueError as fault:
            raise InvalidArgument(reason=f"line {number} is no progress: {fault}") from fault
    return entries


def entry_of(line: bytes) -> Entry:
    """Raises ValueError with a sentence about the line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as fault:
        # The latter when it is nested by the thousand.
        raise ValueError(f"it is not JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind for every fault
    wanted = ("group", "topic", "broker", "queue_id", "offset")
    if absent := [name for name in wanted if name not in fields]:
        raise ValueError(f"it has no {', '.join(absent)}")
    group, topic, broker = (name_in(fields, name) for name in wanted[:3])
    queue_id, offset = (number_in(fields, name) for name in wanted[3:])
    member = name_in(fields, "member") if fields.get("member") else ""
    return Entry(reader_of(group, member), MessageQueue(topic, broker, queue_id), offset)


def name_in(fields: dict[str, Any], field: str) -> str:
    value = fields[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}, not a name")  # noqa: TRY004
    return value


def number_in(fields: dict[str, Any], field: str) -> int:
    """A number, or one written as text, as JSON made from Protobuf has it."""
    value = fields[field]
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}, not a whole number")  # noqa: TRY004
    return value


def from_rocketmq(content: bytes, broker: str) -> list[Entry]:
    """The entries of a consumerOffset.json as RocketMQ or Rockoon wrote it.

    Raises:
        InvalidArgument: it is none, or `broker` is empty.
    """
    if not broker:
        raise InvalidArgument(reason="consumerOffset.json does not say whose it is: name a broker")
    try:
        table = read_consumer_offsets(content)
    except ConfigError as failure:
        raise InvalidArgument(reason=f"not a consumerOffset.json: {failure}") from failure
    return [
        Entry(group, MessageQueue(topic, broker, queue_id), offset)
        for (group, topic), queues in table.offsets.items()
        for queue_id, offset in queues.items()
    ]


class Importer:
    """Stores offsets that came from elsewhere.

    Args:
        store: progress.
        table: the queues that exist.
        subscriptions: groups that do not exist are created, with their subscription.
        brokers: offsets are brought into the queue if they lie outside.
        watch: who is told.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: RouteTable,
        subscriptions: Subscriptions,
        brokers: Brokers,
        watch: GroupWatch,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._subscriptions = subscriptions
        self._brokers = brokers
        self._watch = watch
        self._now_ms = now_ms

    async def take(
        self, entries: list[Entry], operator: str, *, dry_run: bool, overwrite: bool
    ) -> Imported:
        """Import entries, each for itself.

        Args:
            entries: at most 100000.
            operator: who, for the record.
            dry_run: only say what would change.
            overwrite: replace what is stored, also by smaller offsets.

        Raises:
            InvalidArgument: too many entries.
            Busy, StoreFailed: nothing was taken.
        """
        if len(entries) > ENTRIES_MAX:
            raise InvalidArgument(reason=f"more than {ENTRIES_MAX} entries at once")
        self._store.admit()
        create_revisions = {
            entry.queue: self._table.create_revision_or_none(entry.queue) for entry in entries
        }
        states = await self._brokers.queue_states(create_revisions)
        done = Imported([], [])
        for entry in entries:
            queue = entry.queue
            step = self._step(entry, create_revisions[queue], states[queue], overwrite=overwrite)
            if isinstance(step, str):
                done.skipped.append(f"{entry.group} on {entry.queue}: {step}")
                continue
            if not dry_run:
                refusal = await self._store_step(entry.group, step, operator, overwrite=overwrite)
                if refusal:
                    done.skipped.append(f"{entry.group} on {entry.queue}: {refusal}")
                    continue
            done.steps.append(step)
        await self._store.durable()
        return done

    def _step(
        self, entry: Entry, asked: int | None, state: QueueState | RockoonError, *, overwrite: bool
    ) -> ResetStep | str:
        """What an entry would change, or why it is skipped.

        Args:
            entry: which.
            asked: create revision of its queue when the broker was asked; None if there was none.
            state: what the broker said.
            overwrite: see `take`.
        """
        group, separator, member = entry.group.partition(SEPARATOR)
        if fault := group_fault(group) or (separator and member_fault(member)):
            return fault
        if not 0 <= entry.offset <= OFFSET_MAX:
            return f"{entry.offset} is not an offset"
        try:
            create_revision = self._table.create_revision(entry.queue)
        except RockoonError as reason:
            return str(reason)
        if create_revision != asked:
            return CREATED_AGAIN
        if isinstance(state, RockoonError):
            return str(state)
        stored = self._store.ledger.find(entry.group, entry.queue)
        if stored is not None and not overwrite:
            return f"offset {stored.offset} is stored already"
        offset = min(max(entry.offset, state.min_offset), state.max_offset)
        return ResetStep(
            queue=entry.queue,
            from_offset=None if stored is None else stored.offset,
            to_offset=offset,
            min_offset=state.min_offset,
            max_offset=state.max_offset,
            clamped=offset != entry.offset,
            incarnation=create_revision,
            epoch=0 if stored is None else stored.epoch,
        )

    async def _store_step(
        self, reader: str, step: ResetStep, operator: str, *, overwrite: bool
    ) -> str:
        """Store one entry; returns why not, or nothing."""
        group, member = group_of(reader), member_of(reader)
        try:
            subscription = await self._subscriptions.find_or_record(
                group, step.queue.topic, create_group=True
            )
            if member:
                self._make_known(group, subscription.group.incarnation, member, step.queue.topic)
        except RockoonError as reason:
            return str(reason)
        if self._table.create_revision_or_none(step.queue) != step.incarnation:
            return CREATED_AGAIN
        if not overwrite and self._store.ledger.find(reader, step.queue) is not None:
            return "an offset was stored meanwhile"
        text = f"imported by {operator or 'an operator'}: {step.to_offset}"
        self._store.write(
            self._store.ledger.import_offset(
                reader,
                subscription.group.incarnation,
                step.queue,
                step.incarnation,
                Decision(step.to_offset, StartReason.IMPORTED, text),
                self._now_ms(),
            )
        )
        self._watch.progress_reset(group, [step.queue], member)
        return ""

    def _make_known(self, group: str, incarnation: int, member: str, topic: str) -> None:
        """A member that has progress has come; queues that are there now are not new to it."""
        found = self._table.topics.get(topic)
        revision = max(found.create_revisions.values(), default=0) if found else 0
        known = self._store.ledger.known.reads(
            group, incarnation, member, topic, revision, self._now_ms()
        )
        self._store.write(self._store.ledger.members_changed(*known))
