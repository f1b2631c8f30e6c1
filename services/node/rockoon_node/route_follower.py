"""Follower of the routes: watches them on any nameserver, and resumes a broken watch."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from rockoon_core.errors import NotAuthenticated, RockoonError, WrongCluster
from rockoon_node.key_follower import Watching
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate, WatchRoutesRequest
from rockoon_runtime.process import ExitStatus, Fatal, Stop

log = logging.getLogger(__name__)

# Bound on waiting updates that cannot be merged (snapshots, another etcd); few arrive together.
UPDATES_MAX = 16


class MergedUpdates:
    """Consecutive changes of the routes, merged into one update: for each name, the last change.

    The merged update gives the same routes as the single updates. Only changes of one etcd are
    merged. A topic that was deleted and created again is listed as it is now, as a nameserver does
    for a late reader (see RouteUpdate in nameserver.proto).

    Args:
        first: the first change, not a snapshot.
    """

    def __init__(self, first: RouteUpdate) -> None:
        self._last = first
        # Name → current value; None: removed.
        self._nodes: dict[tuple[int, str], Any] = {}
        self._topics: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._subscriptions: dict[tuple[str, str], Any] = {}
        # (topic, group) → last deletion.
        self._deletions: dict[tuple[str, str], Any] = {}
        # A single update is returned unchanged.
        self._is_single = True
        self._merge(first)

    def can_add(self, update: RouteUpdate) -> bool:
        last = self._last
        same = (update.etcd_cluster_id, update.history) == (last.etcd_cluster_id, last.history)
        return same and not update.snapshot

    def add(self, update: RouteUpdate) -> None:
        self._is_single = False
        self._last = update
        self._merge(update)

    def update(self) -> RouteUpdate:
        if self._is_single:
            return self._last
        last = self._last
        merged = RouteUpdate(
            revision=last.revision,
            nodes=present(self._nodes.values()),
            topics=present(self._topics.values()),
            groups=present(self._groups.values()),
            subscriptions=present(self._subscriptions.values()),
            removed_topics=[name for name, topic in self._topics.items() if topic is None],
            removed_groups=[name for name, group in self._groups.items() if group is None],
            etcd_reachable=last.etcd_reachable,
            cluster=last.cluster,
            etcd_cluster_id=last.etcd_cluster_id,
            cluster_id=last.cluster_id,
            deletions=self._deletions.values(),
            deletions_since=last.deletions_since,
            history=last.history,
        )
        for (kind, name), node in self._nodes.items():
            if node is None:
                merged.removed_nodes.add(kind=kind, name=name)
        for (group, topic), subscription in self._subscriptions.items():
            if subscription is None:
                merged.removed_subscriptions.add(group=group, topic=topic)
        return merged

    def _merge(self, update: RouteUpdate) -> None:
        # Additions first, then removals: the order in which an update is applied.
        self._nodes.update({(node.kind, node.name): node for node in update.nodes})
        self._nodes.update({(node.kind, node.name): None for node in update.removed_nodes})
        self._topics.update({topic.config.name: topic for topic in update.topics})
        self._topics.update(dict.fromkeys(update.removed_topics))
        self._groups.update({group.config.name: group for group in update.groups})
        self._groups.update(dict.fromkeys(update.removed_groups))
        self._deletions.update({(each.topic, each.group): each for each in update.deletions})
        self._subscriptions.update(
            {(each.group, each.topic): each for each in update.subscriptions}
        )
        self._subscriptions.update(
            {(each.group, each.topic): None for each in update.removed_subscriptions}
        )


class PendingUpdates:
    """Queue between the task that reads a watch and the task that applies its updates.

    Applying an update can cost time in proportion to the whole state (a broker writes all its
    topics), so a thousand single updates would be slow. Waiting changes are merged.
    """

    def __init__(self) -> None:
        self._waiting: deque[RouteUpdate | MergedUpdates] = deque()
        self._ended = False
        # Guards the two attributes above; notified when one changes.
        self._changed = asyncio.Condition()

    async def put(self, update: RouteUpdate) -> None:
        """Add an update to the queue; waits while `UPDATES_MAX` unmergeable updates wait."""
        async with self._changed:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, MergedUpdates) and last.can_add(update):
                last.add(update)
            else:
                await self._changed.wait_for(lambda: len(self._waiting) < UPDATES_MAX)
                self._waiting.append(update if update.snapshot else MergedUpdates(update))
            self._changed.notify_all()

    async def end(self) -> None:
        """End the queue: no more updates follow."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def get(self) -> RouteUpdate | None:
        """Wait for the first waiting update and remove it; None after the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            self._changed.notify_all()
        return first.update() if isinstance(first, MergedUpdates) else first


def present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


# After callers have known newer routes for this time, another nameserver is used.
BEHIND_SECONDS_MAX = 0.75


class RouteFollower:
    """Delivers every change of the routes to a service, from any nameserver.

    While no nameserver answers, the routes stay.

    Args:
        apply: applies an update. The next update follows when it has returned; updates that arrive
            during a call are merged (see `PendingUpdates`). A nameserver that lags never sends
            older routes to a reader, so a lower revision than the last means that etcd itself went
            back: it was restored, or is a new one.
        refuse: returns the reason why the routes belong to another cluster; empty if they do not.
        seen: returns the latest revision ever applied, also before a restart.

    Attributes:
        revision: revision of the applied routes; 0 at first.
        following: a nameserver with a reachable etcd sends changes as they happen.
        accepted: set when routes of the right cluster have arrived.
        loaded: set when the first update was applied.
        attempted: set also when no nameserver has answered.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        apply: Callable[[RouteUpdate], Awaitable[None]],
        refuse: Callable[[RouteUpdate], str] = lambda _: "",
        seen: Callable[[], int] = lambda: 0,
    ) -> None:
        self._nameservers = nameservers
        self._apply = apply
        self._refuse = refuse
        self._seen = seen
        self._watching = Watching(nameservers, "routes")
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.revision = 0
        # Since when callers know newer routes that have not arrived here.
        self._behind_since: float | None = None
        # The current watch; whether it has sent an update; whether it is ended for the next one.
        self._call: Any = None
        self._has_update = self._switches = False
        # Etcd that `revision` belongs to; 0: unknown.
        self._etcd_cluster_id = 0
        self._history = 0
        self.following = False
        self.accepted = asyncio.Event()
        self.loaded = asyncio.Event()

    @property
    def attempted(self) -> asyncio.Event:
        return self._watching.attempted

    async def run(self, stop: Stop) -> None:
        """Follow the routes of the nameservers until cancelled.

        Args:
            stop: failed if the nameservers belong to another cluster, or do not accept the cluster
                secret of the service.
        """
        await self._watching.run(self._follow, self._is_final, stop)

    def _is_final(self, reason: RockoonError) -> bool:
        return isinstance(reason, WrongCluster | NotAuthenticated) and not self.loaded.is_set()

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes of a revision are applied. Returns False after `seconds`."""
        if self.revision >= revision:
            return True
        reached = asyncio.get_running_loop().create_future()
        entry = (revision, reached)
        # No await since the comparison above, so no update is missed.
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await reached
        except TimeoutError:
            self.doubt()
            return False
        finally:
            self._waiting.remove(entry)
        return True

    def doubt(self) -> None:
        """Report that a caller knows newer routes. If they do not arrive, switch to the next
        nameserver.

        A silent connection is detected only after seconds, and such callers wait.
        """
        now = asyncio.get_running_loop().time()
        if self._behind_since is None:
            self._behind_since = now
        is_long = now - self._behind_since >= BEHIND_SECONDS_MAX
        # Only once until the next update: a watch that starts slowly must not be ended again.
        if not is_long or not self.following:
            return
        if not self._has_update:
            # The next nameserver is silent too: no nameserver has the newer routes.
            self.following = False
        elif len(self._nameservers.addresses) > 1:
            self._has_update, self._switches, self._behind_since = False, True, now
            self._call.cancel()

    async def _follow(self, address: str) -> None:
        try:
            await self._watch(address)
        finally:
            # Without a watch the routes may be out of date. During a switch to the next nameserver,
            # `following` stays: callers that know newer routes wait for their revision anyway.
            self.following = self.following and self._switches
            self._has_update = self._switches = False

    async def _watch(self, address: str) -> None:
        """Watch a nameserver's routes until the watch ends. Raises Fatal: the nameserver belongs to
        another cluster."""
        # Services that do not use groups still need their revisions: callers may wait for them.
        request = WatchRoutesRequest(
            after_revision=self.revision,
            include_groups=True,
            seen_revision=self._seen(),
            history=self._history,
        )
        stub = self._nameservers.stub(address)
        self._call = call = stub.WatchRoutes(request, metadata=self._nameservers.metadata)
        # Reading does not wait for applying: waiting updates are merged.
        pending = PendingUpdates()
        failed: list[grpc.RpcError] = []
        refusal = ""

        async def read() -> None:
            try:
                async for update in call:
                    await pending.put(update)
            except grpc.RpcError as failure:
                failed.append(failure)
            except asyncio.CancelledError:
                # `doubt` has cancelled the call, or the task was cancelled.
                if not self._switches:
                    raise
            finally:
                call.cancel()
            await pending.end()

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read(), name=f"routes from {address}")
            while (update := await pending.get()) is not None:
                if self._continues_another(update):
                    # Changes since our revision, but of another etcd: they do not apply here.
                    log.warning(
                        "nameserver %s uses another etcd: reading a snapshot of its routes", address
                    )
                    # Requests a snapshot with the next watch.
                    self.revision = 0
                    reading.cancel()
                    return
                refusal = self._refuse(update)
                if refusal:
                    reading.cancel()
                    break
                self.accepted.set()
                self._nameservers.learn(update.nodes)
                await self._apply(update)
                self._etcd_cluster_id = update.etcd_cluster_id or self._etcd_cluster_id
                self._history = update.history or self._history
                self.following = update.etcd_reachable
                # After `_apply`: callers of `wait_revision` read the routes immediately.
                self._set_revision(update.revision)
        if refusal:
            raise Fatal(ExitStatus.CONFIGURATION, refusal)
        if failed:
            raise failed[0]
        if self._switches:
            log.info(
                "nameserver %s does not send routes that callers know: trying the next one", address
            )
        else:
            log.info("nameserver %s ended the watch", address)

    def _continues_another(self, update: RouteUpdate) -> bool:
        known, new = self._etcd_cluster_id, update.etcd_cluster_id
        return not update.snapshot and known != new and 0 not in (known, new)

    def _set_revision(self, revision: int) -> None:
        self.revision = revision
        self._behind_since = None
        self._has_update = True
        self.loaded.set()
        self._watching.answered()
        for wanted, reached in self._waiting:
            if wanted <= revision and not reached.done():
                reached.set_result(None)
