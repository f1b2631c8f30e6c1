"""Keeps a RouteTable equal to etcd: one snapshot, then the watch; both again after each failure.

    read everything at revision R → watch from R + 1 → apply
           ↑ etcd has compacted R + 1, or is another etcd      │ stream broken: pause, then
           └───────────────────────────────────────────────────┴─ watch from the last revision + 1

While etcd is unreachable the table does not change: only a change read from etcd removes a node,
even if its lease cannot be renewed.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from rockoon_core.clock import Backoff, wait_at_most
from rockoon_core.errors import EtcdUnavailable, NotReady, RouteNotReached
from rockoon_core.protocol import LEVEL
from rockoon_nameserver.etcd_data import (
    Header,
    KeyRange,
    KeyValue,
    PutKey,
    RangeRead,
    WatchBatch,
    absent,
    only,
)
from rockoon_nameserver.keyspace import (
    DeletionKey,
    Keyspace,
    UnreadableKey,
    identity_value,
    read_identity,
)
from rockoon_nameserver.route_store import Compacted, RouteStore
from rockoon_nameserver.route_table import Interest, RouteTable
from rockoon_proto.v1.access_pb2 import KeysUpdate
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate
from rockoon_proto.v1.settings_pb2 import SettingsUpdate

log = logging.getLogger(__name__)

# Share of the interval: a caller closer than this to a round waits for the one after it.
SHARE_MIN = 0.25


class Revised(Protocol):
    """Reply to a change; it contains the revision at which etcd made the change."""

    revision: int


Reply = TypeVar("Reply", bound=Revised)


def served(method: str) -> Any:
    """Return a method of a servicer with a `_follower`: it replies to a change as
    `EtcdFollower.served`.

    Args:
        method: path of the method that makes the change, from the servicer: "_topics.create".
    """
    find = attrgetter(method)

    async def call(servicer: Any, request: Any, _context: Any) -> Any:
        return await servicer._follower.served(find(servicer)(request))

    return call


class Rounds:
    """Common times for the periodic tasks of a nameserver.

    Waking a process costs more than the work itself, here, in etcd and in each node. So renewals of
    leases, heartbeats to watchers and probes of etcd happen at the same moments.

    Args:
        interval_seconds: time between rounds; 0: no waits.
        clock: monotonic seconds.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock

    def seconds_left(self) -> float:
        """Return the seconds until the next common time at which periodic tasks run: 0.25 to 1.25
        intervals. A nearer one is skipped.
        """
        if not self._interval_seconds:
            return 0.0
        left = self._interval_seconds - self._clock() % self._interval_seconds
        is_near = left < SHARE_MIN * self._interval_seconds
        return left + self._interval_seconds if is_near else left


# How long a new topic waits for a first broker: in a cluster that starts, the broker registers
# within milliseconds, and a caller that had to retry would lose more time.
BROKER_SECONDS_MAX = 1.0
# How long the reply to a change waits for the watch, which usually follows within milliseconds.
SERVED_SECONDS_MAX = 1.0
# How long a service may not know a revision that changed no routes. Clients that have received
# routes of that revision elsewhere make the service wait for it.
REVISION_SECONDS_MAX = 0.1
# Limit of the first pause after etcd did not reply.
FIRST_PAUSE_SECONDS = 0.02
# Services watch everything.
SERVICE_INTEREST = Interest(groups=True)
# A key that never exists: read for the header of the reply.
NOTHING = KeyRange(b"\0")


class AnotherEtcd(Exception):
    """etcd's revision went back, or its identity changed: its history was replaced."""


class EtcdFollower:
    """Follows etcd in `run`; all other methods read the table.

    Args:
        clock: monotonic seconds.
        probe_seconds: interval of probes, which detect that etcd does not reply.
        retry_seconds: longest pause between attempts while etcd is unreachable; the first pause is
            short: another member may reply immediately.
        reach_seconds_max: how long a reader waits for a revision.
        heartbeat_seconds: interval of updates to a watcher if nothing changes.
        log_revisions_max: see `RouteTable`.
    """

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        clock: Callable[[], float],
        *,
        probe_seconds: float = 1.0,
        retry_seconds: float = 0.5,
        reach_seconds_max: float = 5.0,
        heartbeat_seconds: float = 5.0,
        log_revisions_max: int = 10_000,
    ) -> None:
        self.table = RouteTable(keyspace, log_revisions_max=log_revisions_max)
        self._etcd = etcd
        self._keyspace = keyspace
        self._clock = clock
        self._probes = Rounds(probe_seconds, clock)
        self._retry_seconds = retry_seconds
        self._pauses = Backoff(min(FIRST_PAUSE_SECONDS, retry_seconds), retry_seconds)
        self._reach_seconds_max = reach_seconds_max
        self._heartbeats = Rounds(heartbeat_seconds, clock)
        self._closing = False
        self._cluster_id = 0
        self._identity = 0
        # The latest revision in a reply of etcd; the table may lag behind it.
        self._etcd_revision = 0
        # See RouteUpdate.history.
        self._history = secrets.randbits(62) | 1
        # Since when etcd does not reply; None while it does. Written by `run` only.
        self._unreachable_since: float | None = clock()
        self.trouble = "no request was sent yet"
        # Whether the present outage of etcd has been logged.
        self._logged_unreachable = False
        # Set, and replaced by a new one, when the table, `reachable` or `closing` changes.
        self._changed = asyncio.Event()
        # Set by a reader that waits for a revision that etcd may have reached without our keys.
        self._probe_wanted = asyncio.Event()

    @property
    def reachable(self) -> bool:
        return self._unreachable_since is None

    @property
    def etcd_cluster_id(self) -> int:
        """Cluster id of the etcd that counts the table's revisions; 0 before the first snapshot of
        the routes.

        Its cluster id differs between etcds of different configuration. The number stored in it
        differs between etcds of equal configuration, for example after one was wiped.
        """
        return self._cluster_id ^ self._identity

    @property
    def cluster_id(self) -> int:
        """The cluster's number in etcd; 0 before the first snapshot of the routes."""
        return self._identity

    @property
    def history(self) -> int:
        """Number of the table's history. It changes when etcd was restored: revisions of different
        histories cannot be compared.
        """
        return self._history + self.table.history

    @property
    def away_seconds(self) -> float:
        return 0.0 if self._unreachable_since is None else self._clock() - self._unreachable_since

    async def run(self) -> None:
        """Follow etcd until `close` is called and this task is cancelled."""
        new_history = False
        # `_closing` is needed besides cancelling: a TaskGroup that fails while it is cancelled
        # raises the failure alone (before Python 3.13), so an `except*` can lose the cancellation.
        while not self._closing:
            # Only a watch is a success. If slow reads counted, they would be repeated in a loop.
            followed_since = math.inf
            try:
                # Also after an outage: etcd may return restored from a backup, with a revision
                # above the table's.
                await self._load(new_history=new_history)
                new_history = False
                followed_since = self._clock()
                await self._follow()
            except* Compacted:
                log.info("etcd has compacted revision %d: reading all again", self.table.revision)
            except* AnotherEtcd as group:
                log.warning("%s: reading all again", group.exceptions[0])
                new_history = True
            except* EtcdUnavailable as group:
                self._record_unreachable(str(first_exception(group)))
            if self._clock() - followed_since >= self._retry_seconds:
                self._pauses.reset()
            await asyncio.sleep(self._pauses.next_seconds())

    async def wait_loaded(self) -> None:
        """Wait until the first snapshot of the routes was read from etcd."""
        while not self.table.loaded:
            await self._changed.wait()

    async def wait_reached(self, revision: int) -> None:
        """Wait until the route table includes a revision.

        Raises:
            NotReady: no snapshot was read in time, or this nameserver is stopping.
            RouteNotReached: the table did not reach the revision in time.
        """
        if self.table.loaded and self.table.revision >= revision:
            return
        try:
            async with asyncio.timeout(self._reach_seconds_max if self.table.loaded else 0):
                while self.table.revision < revision:
                    if self._closing:
                        raise NotReady(service="the nameserver", reason="it is stopping")
                    changed = self._changed
                    self._probe_wanted.set()
                    await changed.wait()
        except TimeoutError:
            self.refuse_unloaded()
            raise RouteNotReached(wanted=revision, revision=self.table.revision) from None

    async def wait_served(self, revision: int) -> None:
        """Wait until the route table includes a change that etcd has made, at most
        `SERVED_SECONDS_MAX`.

        No error after that: the change is made, even if this nameserver does not show it yet.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SERVED_SECONDS_MAX):
                while self.table.revision < revision and not self._closing:
                    await self._changed.wait()

    async def served(self, change: Awaitable[Reply]) -> Reply:
        """Return the reply to a change once this nameserver serves the change to clients.

        etcd's watch reports a change after the reply to the writer: without the wait, a caller
        that reads its own change here may not find it.
        """
        reply = await change
        await self.wait_served(reply.revision)
        return reply

    async def wait_broker(self) -> None:
        """Wait until a broker is live, at most `BROKER_SECONDS_MAX`; after that, return without an
        error.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(BROKER_SECONDS_MAX):
                while not self.table.has_broker and not self._closing:
                    await self._changed.wait()

    def refuse_unloaded(self) -> None:
        """Raises NotReady if the nameserver has not read its first snapshot."""
        if not self.table.loaded:
            raise NotReady(service="the nameserver", reason=f"waiting for etcd: {self.trouble}")

    async def updates(
        self,
        after_revision: int,
        interest: Interest,
        seen_revision: int = 0,
        held_history: int = 0,
    ) -> AsyncIterator[RouteUpdate]:
        """Yield a snapshot of the routes or the changes after a revision, then each change, until
        `close`.

        No updates are queued per reader: each has a position in the table's log, and receives all
        changes after it when it is ready for more. A reader whose position has left the log, which
        is bounded, receives a snapshot.

        Args:
            after_revision: position of the reader; 0 requests a snapshot.
            interest: topics and groups that the reader wants.
            seen_revision: the latest revision that the reader ever saw. If etcd has not reached it,
                the reader is notified that etcd went back.
            held_history: history of the reader's routes; 0: unknown. If it is not this
                nameserver's, a snapshot replaces them once the table has reached their revision.

        Raises:
            NotReady: before the first snapshot.
        """
        self.refuse_unloaded()
        position, seen = after_revision, max(after_revision, seen_revision)
        history = self.table.history
        is_foreign = held_history not in (0, self.history)
        due, sent_reachable = self._clock(), self.reachable
        # Changes of logs and access keys are not part of routes, but have revisions: a caller that
        # knows such a revision waits until the service that it calls has reached it.
        is_service = interest == SERVICE_INTEREST
        sent_revision, sent_at = 0, -math.inf
        ahead_since: float | None = None
        while not self._closing:
            changed = self._changed
            now = self._clock()
            # Either the reader's nameserver was further than this one, ...
            is_ahead = seen > max(self._etcd_revision, self.table.revision) and self.reachable
            ahead_since = (ahead_since or now) if is_ahead else None
            # ... or, if etcd has replied all the time, the reader's routes are of another history.
            is_lost = ahead_since is not None and now - ahead_since >= self._reach_seconds_max
            if is_lost or self.table.history != history:
                update = self.table.snapshot(interest)
                update.etcd_went_back = True
                seen, history, ahead_since, is_foreign = 0, self.table.history, None, False
            elif position <= self.table.revision:
                update = self.table.update_after(0 if is_foreign else position, interest)
                is_foreign = False
            else:
                update = RouteUpdate(revision=position)
            if max(seen, position) > self.table.revision:
                self._probe_wanted.set()
                due = min(due, (ahead_since or now) + self._reach_seconds_max)
            position = update.revision
            update.etcd_reachable = self.reachable
            # 0 until the reader's routes are of this history.
            update.history = 0 if is_foreign else self.history
            if is_service and update.revision > sent_revision:
                due = min(due, sent_at + REVISION_SECONDS_MAX)
            if has_changes(update) or sent_reachable != self.reachable or now >= due:
                due, sent_reachable = now + self._heartbeats.seconds_left(), self.reachable
                sent_revision, sent_at = update.revision, now
                yield update
                continue
            await wait_at_most(max(0.0, due - now), changed.wait())

    async def wakeups(self) -> AsyncIterator[bool]:
        """Yield when a watcher may need an update: immediately, after each change of the table or
        of `reachable`, and as a heartbeat.

        Yields:
            True if `heartbeat_seconds` have passed: the watcher needs an update without a change.

        Raises:
            NotReady: before the first snapshot.
        """
        self.refuse_unloaded()
        due = self._clock()
        while not self._closing:
            changed, now = self._changed, self._clock()
            is_due = now >= due
            if is_due:
                due = now + self._heartbeats.seconds_left()
            yield is_due
            await wait_at_most(max(0.0, due - self._clock()), changed.wait())

    async def stored(self) -> RangeRead:
        """Return all keys of the cluster as etcd has them now. Raises EtcdUnavailable."""
        return await self._etcd.read(self._keyspace.everything)

    async def access_keys(self, away_seconds_max: float | None = None) -> AsyncIterator[KeysUpdate]:
        """Yield all access keys, immediately and after each change; see `_each_change`."""
        async for _ in self._each_change(lambda: self.table.access_changes, away_seconds_max):
            yield KeysUpdate(
                keys=self.table.access_keys,
                revision=self.table.revision,
                etcd_reachable=self.reachable,
            )

    async def live_settings(
        self, service: str, node: str, away_seconds_max: float | None = None
    ) -> AsyncIterator[SettingsUpdate]:
        """Yield a node's live settings, immediately and after any change; see `_each_change`."""
        async for _ in self._each_change(lambda: self.table.settings_changes, away_seconds_max):
            yield SettingsUpdate(
                settings=self.table.live_settings(service, node),
                revision=self.table.revision,
                etcd_reachable=self.reachable,
            )

    async def _each_change(
        self, count: Callable[[], int], away_seconds_max: float | None
    ) -> AsyncIterator[None]:
        """Yield immediately, and whenever a count has changed, until `close`.

        Args:
            count: returns the number of changes so far.
            away_seconds_max: how long to continue while etcd is unreachable; None: forever.

        Raises:
            NotReady: before the first snapshot, or etcd has been unreachable for too long.
        """
        self.refuse_unloaded()
        sent = -1
        while not self._closing:
            changed = self._changed
            if sent != count():
                sent = count()
                yield
                continue
            try:
                async with asyncio.timeout(None if self.reachable else away_seconds_max):
                    await changed.wait()
            except TimeoutError:
                raise NotReady(service="this nameserver", reason="etcd is unreachable") from None

    def close(self) -> None:
        """End all `updates` of clients, and wake all calls that wait for a change."""
        self._closing = True
        self._announce_change()

    async def _load(self, *, new_history: bool) -> None:
        found = await self._etcd.read(self._keyspace.everything)
        since = self._keyspace.key(DeletionKey())
        while (identity := identity_in(found.items, self._keyspace)) is None:
            await self._make_identity(has_routes=bool(found.items))
            found = await self._etcd.read(self._keyspace.everything)
        if not any(item.key.startswith(since.removesuffix("since")) for item in found.items):
            # Deletions are recorded from this revision on.
            await self._etcd.transaction(
                [absent(self._keyspace.deletions())], [PutKey(since, b"{}")]
            )
            found = await self._etcd.read(self._keyspace.everything)
        header = found.header
        if self.table.loaded and header.revision < self.table.revision:
            new_history = True
        self._cluster_id, self._identity = header.cluster_id, identity
        self._etcd_revision = header.revision
        log_unreadable(self.table.load(header.revision, found.items, new_history=new_history))
        self._announce_change()

    async def _make_identity(self, *, has_routes: bool) -> None:
        """Write a number into etcd if the key does not exist: another nameserver may have been
        faster.

        If there are routes, they are older than these numbers: 0 keeps their present identity.
        """
        number = 0 if has_routes else secrets.randbits(63) | 1
        key = self._keyspace.identity
        # A new cluster has no services of former versions.
        value = identity_value(number, 0 if has_routes else LEVEL)
        await self._etcd.transaction([absent(only(key))], [PutKey(key, value)])

    async def _follow(self) -> None:
        """Apply events of etcd's watch until it fails, or etcd does not reply to a probe."""
        # The end of the table: no change between the read and its watch is lost.
        start = self.table.revision + 1
        async with self._etcd.watch(self._keyspace.everything, start) as (header, batches):
            # Its revision proves nothing: the member that accepted the watch may lag.
            self._check_same(header, at_least=0)
            self._record_reachable()
            # After the watch is open: replacing etcd later breaks the watch.
            await self._check_identity()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(batches), name="etcd watch")
                tasks.create_task(self._probe(), name="etcd probe")

    async def _read(self, batches: AsyncIterator[WatchBatch]) -> None:
        async for batch in batches:
            log_unreadable(self.table.apply(batch))
            self._announce_change()

    async def _probe(self) -> None:
        """Check that etcd replies, and advance the table over revisions without our keys.

        Keys of other applications raise etcd's revision, and the watch does not report them. If
        the revision rose and the watch has not followed by the next probe, `_confirm` counts: no
        key of ours put since and an unchanged number of keys mean that the table is valid for that
        revision too.
        """
        behind = False
        while True:
            before = self.table.revision
            # Cleared before the request: a later wish for a probe needs a later reply.
            is_wanted = self._probe_wanted.is_set()
            self._probe_wanted.clear()
            if is_wanted:
                header = await self._etcd.header()
            else:
                # Joined with the renewals of leases.
                header, _ = await self._etcd.read_jointly(NOTHING)
            self._check_same(header, at_least=before)
            self._etcd_revision = header.revision
            if header.revision <= self.table.revision:
                behind = False
            elif not behind and not is_wanted:
                behind = True
            else:
                await self._confirm()
                behind = False
            try:
                async with asyncio.timeout(self._probes.seconds_left()):
                    await self._probe_wanted.wait()
            except TimeoutError:
                pass

    async def _confirm(self) -> None:
        before = self.table.revision
        header, keys, put = await self._etcd.count_and_changes(self._keyspace.everything, before)
        # The number of keys too: a deletion is not a put.
        if self.table.revision == before and put == 0 and keys == self.table.key_count:
            self.table.advance(header.revision)
            self._announce_change()

    def _check_same(self, header: Header, *, at_least: int) -> None:
        if header.cluster_id != self._cluster_id or header.revision < at_least:
            raise AnotherEtcd(
                f"etcd was replaced (revision {header.revision} after {at_least}): "
                "its data was lost or restored"
            )

    async def _check_identity(self) -> None:
        """Raise AnotherEtcd if etcd's number changed: cluster id and revision may be the same after
        etcd was set up again."""
        found = await self._etcd.read(only(self._keyspace.identity))
        if identity_in(found.items, self._keyspace) != self._identity:
            raise AnotherEtcd("etcd was replaced: it was set up again")

    def _record_unreachable(self, trouble: str) -> None:
        self.trouble = trouble
        if not self._logged_unreachable:
            self._logged_unreachable = True
            log.warning("%s; reads are served from the cache, changes wait for etcd", trouble)
        if self._unreachable_since is None:
            self._unreachable_since = self._clock()
            self._announce_change()

    def _record_reachable(self) -> None:
        if self._unreachable_since is not None:
            log.info("etcd answers, routes are at revision %d", self.table.revision)
        self._unreachable_since = None
        self._logged_unreachable = False
        self.trouble = ""
        self._announce_change()

    def _announce_change(self) -> None:
        # A new event for each change: a task that holds the old event before it reads the table
        # misses no change, and no task has to clear it.
        self._changed.set()
        self._changed = asyncio.Event()


def identity_in(items: Iterable[KeyValue], keyspace: Keyspace) -> int | None:
    """Return the cluster's identity from the keys read: None if missing, 0 if unreadable."""
    for item in items:
        if item.key == keyspace.identity:
            try:
                return read_identity(item.value)
            except UnreadableKey:
                return 0
    return None


def has_changes(update: RouteUpdate) -> bool:
    return update.snapshot or any(
        (
            update.nodes,
            update.topics,
            update.groups,
            update.subscriptions,
            update.removed_nodes,
            update.removed_topics,
            update.removed_groups,
            update.removed_subscriptions,
            update.deletions,
        )
    )


def log_unreadable(complaints: list[str]) -> None:
    for complaint in complaints:
        log.warning("left out of the routes: %s", complaint)


def first_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
