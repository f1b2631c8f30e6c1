"""Imports of progress: stores the entries of a file, each separately.

An import may have tens of thousands of entries and works in slices. Each slice is durable before
the next slice starts. If an import fails, the former slices stay imported, and the next import of
the same file skips their entries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_core.errors import InvalidArgument, NameserverUnavailable, RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, QueueState, StartReason
from rockoon_format.names import group_fault, topic_fault
from rockoon_offset.brokers import Answers, Brokers
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.group_queues import GroupQueues, GroupQueuesMade, LoopShare, run_calls
from rockoon_offset.progress.ledger import OFFSET_MAX
from rockoon_offset.progress.progress_files import Entry, ReadEntries, printable
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import SEPARATOR, group_of, member_fault, member_of
from rockoon_offset.progress.records import ResetStep
from rockoon_offset.route_table import OffsetRoutes
from rockoon_offset.start.resolver import GroupSubscription, Subscriptions

ENTRIES_MAX = 100_000
SLICE_ENTRIES = 1_000
# Steps, and skipped entries, in one report.
REPORTED_MAX = 1_000
BROKER_BYTES_MAX = 255
QUEUE_ID_END = 1 << 31
CREATED_AGAIN = "the queue was deleted or created again during the import"


class ImportedStep(NamedTuple):
    """Change of one queue's progress by an import or a dry run."""

    step: ResetStep
    # The import creates the queue; its topic is a retry or dead-letter topic.
    creates_queue: bool


class ImportOptions(NamedTuple):
    """Options of one import, and the queues that it created."""

    operator: str
    dry_run: bool
    overwrite: bool
    made: GroupQueuesMade


@dataclass(slots=True)
class Imported:
    """Report of an import or a dry run: counts, and the first `REPORTED_MAX` of each kind."""

    steps: list[ImportedStep] = field(default_factory=list)
    steps_count: int = 0
    # Place and reason of each skipped entry.
    skipped: list[str] = field(default_factory=list)
    skipped_count: int = 0

    def add_step(self, step: ImportedStep) -> None:
        self.steps_count += 1
        if len(self.steps) < REPORTED_MAX:
            self.steps.append(step)

    def add_skipped(self, place: str, reason: object) -> None:
        self.skipped_count += 1
        if len(self.skipped) < REPORTED_MAX:
            self.skipped.append(printable(f"{printable(place)}: {reason}"))


class Importer:
    """Imports committed offsets of groups from files.

    Args:
        group_queues: creates missing retry and dead-letter queues.
        watch: notified of changed progress.
        now_ms: wall clock, epoch milliseconds.
    """

    def __init__(
        self,
        store: ProgressStore,
        table: OffsetRoutes,
        subscriptions: Subscriptions,
        group_queues: GroupQueues,
        brokers: Brokers,
        watch: GroupWatch,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._table = table
        self._subscriptions = subscriptions
        self._group_queues = group_queues
        self._brokers = brokers
        self._watch = watch
        self._now_ms = now_ms

    async def import_entries(
        self, entries: ReadEntries, operator: str, *, dry_run: bool, overwrite: bool
    ) -> Imported:
        """Import entries, each separately. After an error, completed slices stay imported.

        Args:
            entries: at most `ENTRIES_MAX`.
            operator: person and reason; stored with the progress.
            dry_run: only report the changes.
            overwrite: replace stored progress, also by smaller offsets.

        Raises:
            InvalidArgument: too many entries.
            NameserverUnavailable: a group or topic cannot be created.
            Busy, StoreNotWritable, StoreFailed, NotLeader, NotEnoughReplicas: see `ProgressStore`.
        """
        if len(entries) > ENTRIES_MAX:
            raise InvalidArgument(reason=f"more than {ENTRIES_MAX} entries at once")
        self._store.require_writable()
        report, share = Imported(), LoopShare()
        valid: list[Entry] = []
        for entry in entries:
            await share.pause_when_used()
            if not isinstance(entry, Entry):
                report.add_skipped(entry.place, entry.reason)
            elif fault := entry_fault(entry):
                report.add_skipped(name_of(entry), fault)
            else:
                valid.append(entry)
        made = await self._group_queues.make(valid, share, dry_run=dry_run)
        options = ImportOptions(operator, dry_run, overwrite, made)
        for first in range(0, len(valid), SLICE_ENTRIES):
            self._store.require_writable()
            await self._import_slice(valid[first : first + SLICE_ENTRIES], options, report, share)
            await self._store.durable()
        return report

    async def _import_slice(
        self, entries: Sequence[Entry], options: ImportOptions, report: Imported, share: LoopShare
    ) -> None:
        create_revisions = {
            entry.queue: revision
            for entry in entries
            if (revision := self._table.create_revision_or_none(entry.queue)) is not None
        }
        states = await self._brokers.queue_states(create_revisions)
        subscriptions: Mapping[tuple[str, str], GroupSubscription | RockoonError] = {}
        if not options.dry_run:
            subscriptions = await self._subscribed(
                {
                    (group_of(entry.group), entry.queue.topic)
                    for entry in entries
                    if not isinstance(self._step(entry, create_revisions, states, options), str)
                }
            )
        for entry in entries:
            await share.pause_when_used()
            # Again: progress and routes may have changed. No await follows for this entry.
            step = self._step(entry, create_revisions, states, options)
            if isinstance(step, str):
                report.add_skipped(name_of(entry), step)
                continue
            if not options.dry_run:
                subscription = subscriptions.get((group_of(entry.group), entry.queue.topic))
                if not isinstance(subscription, GroupSubscription):
                    report.add_skipped(name_of(entry), subscription or CREATED_AGAIN)
                    continue
                self._store_step(entry.group, subscription, step, options.operator)
            report.add_step(ImportedStep(step, options.made.includes(entry.queue)))

    def _step(
        self,
        entry: Entry,
        asked: Mapping[MessageQueue, int],
        states: Answers[QueueState],
        options: ImportOptions,
    ) -> ResetStep | str:
        """Return the change that an entry makes, or the reason why it is skipped.

        Args:
            asked: create revisions of the queues at the time of the broker calls.
        """
        queue = entry.queue
        if refusal := options.made.refusal(queue):
            return str(refusal)
        if options.dry_run and options.made.includes(queue):
            # The queue does not exist yet, so its ends are unknown.
            return ResetStep(queue, None, entry.offset, 0, 0, clamped=False, incarnation=0, epoch=0)
        try:
            create_revision = self._table.create_revision(queue)
        except RockoonError as reason:
            return str(reason)
        if create_revision != asked.get(queue):
            return CREATED_AGAIN
        state = states[queue]
        if isinstance(state, RockoonError):
            return str(state)
        stored = self._store.ledger.find(entry.group, queue)
        if stored is not None and not options.overwrite:
            return f"offset {stored.offset} is stored already"
        offset = min(max(entry.offset, state.min_offset), state.max_offset)
        return ResetStep(
            queue=queue,
            from_offset=None if stored is None else stored.offset,
            to_offset=offset,
            min_offset=state.min_offset,
            max_offset=state.max_offset,
            clamped=offset != entry.offset,
            incarnation=create_revision,
            epoch=0 if stored is None else stored.epoch,
        )

    async def _subscribed(
        self, readers: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], GroupSubscription | RockoonError]:
        """Return the subscriptions of (group, topic) pairs; missing ones and groups are created.
        Raises NameserverUnavailable: no nameserver answers."""
        found: dict[tuple[str, str], GroupSubscription | RockoonError] = {}

        async def find(group: str, topic: str) -> None:
            try:
                found[group, topic] = await self._subscriptions.find_or_record(
                    group, topic, create_group=True
                )
            except NameserverUnavailable:
                raise
            except RockoonError as reason:
                found[group, topic] = reason

        await run_calls(find(group, topic) for group, topic in readers)
        return found

    def _store_step(
        self, reader: str, subscription: GroupSubscription, step: ResetStep, operator: str
    ) -> None:
        group, member = group_of(reader), member_of(reader)
        incarnation = subscription.group.incarnation
        if member:
            self._make_known(group, incarnation, member, step.queue.topic)
        text = f"imported by {operator or 'an operator'}: {step.to_offset}"
        self._store.write(
            self._store.ledger.import_offset(
                reader,
                incarnation,
                step.queue,
                step.incarnation,
                Decision(step.to_offset, StartReason.IMPORTED, text),
                self._now_ms(),
            )
        )
        self._watch.progress_reset(group, [step.queue], member)

    def _make_known(self, group: str, incarnation: int, member: str, topic: str) -> None:
        """Record a member with imported progress: existing queues are not new to it."""
        found = self._table.topics.get(topic)
        revision = max(found.create_revisions.values(), default=0) if found else 0
        known = self._store.ledger.known.reads(
            group, incarnation, member, topic, revision, self._now_ms()
        )
        self._store.write(self._store.ledger.members_changed(*known))


def name_of(entry: Entry) -> str:
    return f"{entry.group} on {entry.queue}"


def entry_fault(entry: Entry) -> str:
    """Return the reason why an entry is invalid; empty if it is valid."""
    group, separator, member = entry.group.partition(SEPARATOR)
    queue = entry.queue
    name_fault: str | None = group_fault(group) or (separator and member_fault(member))
    name_fault = name_fault or topic_fault(queue.topic)
    if name_fault:
        return name_fault
    if not 0 < len(queue.broker.encode(errors="backslashreplace")) <= BROKER_BYTES_MAX:
        return f"the broker's name is empty or longer than {BROKER_BYTES_MAX} bytes"
    if not 0 <= queue.queue_id < QUEUE_ID_END:
        return f"{queue.queue_id} is not a queue id"
    if not 0 <= entry.offset <= OFFSET_MAX:
        return f"{entry.offset} is not an offset"
    return ""
