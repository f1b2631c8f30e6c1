"""Keeps a RouteTable equal to etcd: one snapshot, then the watch, and again after every break.

    read everything at revision R → watch from R + 1 → apply
           ↑ etcd has compacted R + 1, or is another etcd      │ stream broken: pause, then
           └───────────────────────────────────────────────────┴─ watch from the last revision + 1

While etcd is away the table stays as it is: a node whose lease nobody can renew is not removed by
anything but etcd's own word.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress

from rockoon_core.errors import EtcdUnavailable, NotReady, RouteNotReached
from rockoon_nameserver.etcd_data import Header, KeyValue, Put, Span, WatchBatch, absent, only
from rockoon_nameserver.keyspace import (
    DeletionKey,
    Keyspace,
    UnreadableKey,
    identity_value,
    read_identity,
)
from rockoon_nameserver.rounds import Rounds
from rockoon_nameserver.route_store import Compacted, RouteStore
from rockoon_nameserver.route_table import Interest, RouteTable
from rockoon_proto.v1.access_pb2 import KeysUpdate
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate

log = logging.getLogger(__name__)

# How long a new topic waits for a first broker: that of a cluster which starts is there within a
# moment, and who has to come again comes late.
BROKER_SECONDS_MAX = 1.0
# How long an answer to a change waits for the watch, which is usually there within milliseconds.
SERVED_SECONDS_MAX = 1.0
# No such key: read for what else the answer says.
NOTHING = Span(b"\0")


class AnotherEtcd(Exception):
    """etcd's revision went back, or its identity changed: its history was replaced."""


class RouteFollower:
    """See the module. `run` does the work; everything else looks at the table.

    Args:
        etcd: a connection.
        keyspace: the cluster's keys.
        clock: monotonic seconds.
        probe_seconds: how often etcd is asked for a sign of life.
        retry_seconds: pause between attempts while it is away.
        reach_seconds_max: how long a reader waits for a revision.
        heartbeat_seconds: how often a watcher hears from us when nothing happens.
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
        self._reach_seconds_max = reach_seconds_max
        self._heartbeats = Rounds(heartbeat_seconds, clock)
        self._closing = False
        self._cluster_id = 0
        self._identity = 0
        # The latest that etcd itself has told; the table may lag behind it.
        self._etcd_revision = 0
        # See RouteUpdate.history.
        self._history = secrets.randbits(62) | 1
        # When etcd was found not to answer; None while it does. Written by `run` only.
        self._away_since: float | None = clock()
        self.trouble = "it has not been asked yet"
        # Whether the present absence of etcd has been logged: once is enough.
        self._logged_away = False
        # Set, and replaced by a new one, when the table, `reachable` or `closing` changes.
        self._changed = asyncio.Event()
        # Set by a reader that waits for a revision that etcd may have reached without us.
        self._probe_wanted = asyncio.Event()

    @property
    def reachable(self) -> bool:
        return self._away_since is None

    @property
    def etcd_cluster_id(self) -> int:
        """Identity of the etcd that counted the table's revisions; 0 before the first snapshot.

        Its cluster id tells etcds apart that are set up differently; the number in it those that
        are set up alike, as when one was wiped and started again.
        """
        return self._cluster_id ^ self._identity

    @property
    def cluster_id(self) -> int:
        """Identity of the cluster: the number in etcd; 0 before the first snapshot."""
        return self._identity

    @property
    def history(self) -> int:
        """See RouteUpdate.history."""
        return self._history + self.table.history

    @property
    def away_seconds(self) -> float:
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    async def run(self) -> None:
        """Follow etcd for ever; `close` and cancel it to end."""
        reload = True
        new_history = False
        # Not only by cancelling: a TaskGroup that fails while it is cancelled raises the failure
        # alone (before Python 3.13), so the wish to end can be lost in an `except*`.
        while not self._closing:
            try:
                if reload:
                    await self._load(new_history=new_history)
                    reload = new_history = False
                await self._follow()
            except* Compacted:
                log.info("etcd has compacted revision %d: reading all again", self.table.revision)
                reload = True
            except* AnotherEtcd as group:
                log.warning("%s: reading all again", group.exceptions[0])
                reload = new_history = True
            except* EtcdUnavailable as group:
                self._went_away(str(first_of(group)))
                # It may come back restored from a backup, and have counted past what we know.
                reload = True
                await asyncio.sleep(self._retry_seconds)

    async def wait_loaded(self) -> None:
        """Wait for the first snapshot."""
        while not self.table.loaded:
            await self._changed.wait()

    async def wait_reached(self, revision: int) -> None:
        """Wait until the table includes a revision.

        Raises:
            NotReady: there was no snapshot yet, and none came; or this nameserver is stopping.
            RouteNotReached: not in time.
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
        """Wait until the table includes a change that etcd has made, `SERVED_SECONDS_MAX` at most.

        Not an error after that: the change is made whether or not this nameserver can tell of it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SERVED_SECONDS_MAX):
                while self.table.revision < revision and not self._closing:
                    await self._changed.wait()

    async def wait_broker(self) -> None:
        """Wait until some broker is live, `BROKER_SECONDS_MAX` at most; not an error after that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BROKER_SECONDS_MAX):
                while not self.table.has_broker and not self._closing:
                    await self._changed.wait()

    def refuse_unloaded(self) -> None:
        """Raises NotReady while there has been no snapshot."""
        if not self.table.loaded:
            raise NotReady(service="the nameserver", reason=f"waiting for etcd: {self.trouble}")

    async def updates(
        self,
        after_revision: int,
        interest: Interest,
        seen_revision: int = 0,
        held_history: int = 0,
    ) -> AsyncIterator[RouteUpdate]:
        """A snapshot or what came after a revision, then every change, until `close`.

        Nothing is queued per reader: each has a place in the table's log and is given what came
        after it, however much that is, when it is ready for more. One that falls out of the log,
        which is bounded, gets a snapshot.

        Args:
            after_revision: where the reader is; 0 asks for a snapshot.
            interest: what it wants to know.
            seen_revision: the latest that it has ever seen; when etcd knows none as late, the
                reader is told that etcd went back.
            held_history: of what the reader holds; 0: not known. What it holds of another one is
                replaced by a snapshot, once we are as far.

        Raises:
            NotReady: there has been no snapshot yet.
        """
        self.refuse_unloaded()
        place, seen = after_revision, max(after_revision, seen_revision)
        history = self.table.history
        is_foreign = held_history not in (0, self.history)
        due, told_reachable = self._clock(), self.reachable
        # A change of access keys is no news of routes, but routes are true for its revision then:
        # who has been told it elsewhere may be waiting for those who follow here.
        told_keys = self.table.access_changes
        ahead_since: float | None = None
        while not self._closing:
            changed = self._changed
            now = self._clock()
            # What the reader has seen came from a nameserver that was further than this one, ...
            is_ahead = seen > max(self._etcd_revision, self.table.revision) and self.reachable
            ahead_since = (ahead_since or now) if is_ahead else None
            # ... or, when etcd has answered all the time, from another history.
            is_lost = ahead_since is not None and now - ahead_since >= self._reach_seconds_max
            if is_lost or self.table.history != history:
                update = self.table.snapshot(interest)
                update.etcd_went_back = True
                seen, history, ahead_since, is_foreign = 0, self.table.history, None, False
            elif place <= self.table.revision:
                update = self.table.update_after(0 if is_foreign else place, interest)
                is_foreign = False
            else:
                update = RouteUpdate(revision=place)
            if max(seen, place) > self.table.revision:
                self._probe_wanted.set()
                due = min(due, (ahead_since or now) + self._reach_seconds_max)
            place = update.revision
            update.etcd_reachable = self.reachable
            # Not before what it holds is of ours.
            update.history = 0 if is_foreign else self.history
            is_new = told_reachable != self.reachable or told_keys != self.table.access_changes
            if says_something(update) or is_new or now >= due:
                due, told_reachable = now + self._heartbeats.seconds_left(), self.reachable
                told_keys = self.table.access_changes
                yield update
                continue
            try:
                async with asyncio.timeout(max(0.0, due - now)):
                    await changed.wait()
            except TimeoutError:
                pass

    async def turns(self) -> AsyncIterator[bool]:
        """Now, after each change of the table or of `reachable`, and every `heartbeat_seconds`.

        Yields:
            whether a watcher is to hear a sign of life.

        Raises:
            NotReady: there has been no snapshot yet.
        """
        self.refuse_unloaded()
        due = self._clock()
        while not self._closing:
            changed, now = self._changed, self._clock()
            is_due = now >= due
            if is_due:
                due = now + self._heartbeats.seconds_left()
            yield is_due
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - self._clock())):
                    await changed.wait()

    async def access_keys(self, away_seconds_max: float | None = None) -> AsyncIterator[KeysUpdate]:
        """All access keys now, and again whenever one has changed, until `close`.

        Args:
            away_seconds_max: how long to go on while etcd is away; None for ever.

        Raises:
            NotReady: there has been no snapshot yet, or etcd has been away for too long.
        """
        self.refuse_unloaded()
        told = -1
        while not self._closing:
            changed = self._changed
            if told != self.table.access_changes:
                told = self.table.access_changes
                yield KeysUpdate(
                    keys=self.table.access_keys,
                    revision=self.table.revision,
                    etcd_reachable=self.reachable,
                )
                continue
            try:
                async with asyncio.timeout(None if self.reachable else away_seconds_max):
                    await changed.wait()
            except TimeoutError:
                raise NotReady(service="this nameserver", reason="etcd is away") from None

    def close(self) -> None:
        """End all `updates`, and whatever else waits for a change."""
        self._closing = True
        self._announce_change()

    async def _load(self, *, new_history: bool) -> None:
        found = await self._etcd.read(self._keyspace.everything)
        since = self._keyspace.key(DeletionKey())
        while (identity := identity_in(found.items, self._keyspace)) is None:
            await self._make_identity(has_routes=bool(found.items))
            found = await self._etcd.read(self._keyspace.everything)
        if not any(item.key.startswith(since.removesuffix("since")) for item in found.items):
            # Deletions are noted from now on.
            await self._etcd.transaction([absent(self._keyspace.deletions())], [Put(since, b"{}")])
            found = await self._etcd.read(self._keyspace.everything)
        header = found.header
        if self.table.loaded and header.revision < self.table.revision:
            new_history = True
        self._cluster_id, self._identity = header.cluster_id, identity
        self._etcd_revision = header.revision
        complain(self.table.load(header.revision, found.items, new_history=new_history))
        self._announce_change()

    async def _make_identity(self, *, has_routes: bool) -> None:
        """Give etcd its number, unless somebody else was quicker.

        Routes that are older than such numbers keep the identity under which they are known.
        """
        number = 0 if has_routes else secrets.randbits(63) | 1
        key = self._keyspace.identity
        await self._etcd.transaction([absent(only(key))], [Put(key, identity_value(number))])

    async def _follow(self) -> None:
        """Apply the watch until it breaks or etcd does not answer the probes."""
        # Where the table ends: between a read and its watch no change can be lost.
        start = self.table.revision + 1
        async with self._etcd.watch(self._keyspace.everything, start) as (header, batches):
            # Its revision proves nothing: the member that took the watch may be behind the others.
            self._check_same(header, at_least=0)
            self._came_back()
            # After the watch is open: an etcd that is exchanged later breaks the watch.
            await self._check_identity()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(batches), name="etcd watch")
                tasks.create_task(self._probe(), name="etcd probe")

    async def _read(self, batches: AsyncIterator[WatchBatch]) -> None:
        async for batch in batches:
            complain(self.table.apply(batch))
            self._announce_change()

    async def _probe(self) -> None:
        """Ask etcd for a sign of life, and learn when it has moved on without our keys.

        Its revision may rise by others' keys, of which the watch says nothing. If it did and the
        watch has not followed by the next probe, we look: no key of ours put since and as many as
        we know means that nothing of ours happened, so the table is true for that revision too.
        """
        behind = False
        while True:
            before = self.table.revision
            # Before the question: who wants a probe from here on has seen more than its answer.
            is_wanted = self._probe_wanted.is_set()
            self._probe_wanted.clear()
            if is_wanted:
                header = await self._etcd.header()
            else:
                # When leases are renewed too.
                header, _ = await self._etcd.read_with_others(NOTHING)
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
        # The count as well: a deletion is no put, and shows in nothing else.
        if self.table.revision == before and put == 0 and keys == self.table.key_count:
            self.table.advance(header.revision)
            self._announce_change()

    def _check_same(self, header: Header, *, at_least: int) -> None:
        if header.cluster_id != self._cluster_id or header.revision < at_least:
            raise AnotherEtcd(
                f"etcd is not the one it was (revision {header.revision} after {at_least}): "
                "its data was lost or restored"
            )

    async def _check_identity(self) -> None:
        """An etcd that came back may have been set up again, with revisions that go on for all we
        know; only the number in it cannot be the same."""
        found = await self._etcd.read(only(self._keyspace.identity))
        if identity_in(found.items, self._keyspace) != self._identity:
            raise AnotherEtcd("etcd is not the one it was: it was set up again")

    def _went_away(self, trouble: str) -> None:
        self.trouble = trouble
        if not self._logged_away:
            self._logged_away = True
            log.warning("%s; reads go on from the cache, changes have to wait", trouble)
        if self._away_since is None:
            self._away_since = self._clock()
            self._announce_change()

    def _came_back(self) -> None:
        if self._away_since is not None:
            log.info("etcd answers, routes are at revision %d", self.table.revision)
        self._away_since = None
        self._logged_away = False
        self.trouble = ""
        self._announce_change()

    def _announce_change(self) -> None:
        # A new event for each change: whoever took the old one before looking misses nothing, and
        # nobody has to clear it.
        self._changed.set()
        self._changed = asyncio.Event()


def identity_in(items: Iterable[KeyValue], keyspace: Keyspace) -> int | None:
    """The number among some keys; 0 where somebody wrote something else in its place."""
    for item in items:
        if item.key == keyspace.identity:
            try:
                return read_identity(item.value)
            except UnreadableKey:
                return 0
    return None


def says_something(update: RouteUpdate) -> bool:
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


def complain(complaints: list[str]) -> None:
    for complaint in complaints:
        log.warning("left out of the routes: %s", complaint)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
