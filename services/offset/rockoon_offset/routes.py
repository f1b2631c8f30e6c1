"""Routes of the offset service: a route table that follows the nameservers."""

import logging
from collections.abc import Callable

from rockoon_core.errors import NotReady
from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.route_table import AppliedUpdate, OffsetRoutes, create_revisions_in
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate
from rockoon_runtime.process import Stop

log = logging.getLogger(__name__)

# Missing topics and groups that the error text of a refused etcd lists.
MISSING_NAMED_MAX = 10


class FollowedRoutes:
    """Routes of the offset service. `run` keeps them equal to those of the nameservers.

    Incarnations are revisions of one etcd. Revisions of another etcd (a replacement, or a wrong
    address) cannot be compared with them. Routes of another etcd are therefore refused, and the
    table stays as if no nameserver answered, until the nameservers use the former etcd again or an
    operator accepts the new one. If the nameservers belong to another cluster when the service
    starts, the service ends.

    Args:
        nameservers: the source of the routes.
        on_change: called after each update, before callers of `wait_revision` resume.
        store: knows the etcd that the incarnations of progress belong to.
        accepted_etcd_cluster_id: another etcd whose routes may be accepted; 0 for none.

    Attributes:
        table: the accepted routes; empty at first.
        loaded: set once a nameserver has sent routes, accepted or refused.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        on_change: Callable[[AppliedUpdate], None],
        store: ProgressStore,
        accepted_etcd_cluster_id: int,
    ) -> None:
        self._on_change = on_change
        self._store = store
        self._reconciliation = Reconciliation(store.ledger)
        self._accepted = accepted_etcd_cluster_id
        # Cluster id of the etcd whose routes are refused at present; 0 for none.
        self._refused = 0
        self._refusal = ""
        self._follower = RouteFollower(
            nameservers,
            self._apply,
            self._refuse_cluster,
            lambda: store.ledger.counters.route_revision,
        )
        self.table = OffsetRoutes()
        self.loaded = self._follower.loaded

    async def run(self, stop: Stop) -> None:
        """Follow the nameservers until cancelled. Fails `stop` if they serve another cluster."""
        await self._follower.run(stop)

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the table has reached a revision. Returns False after `seconds`."""
        return await self._follower.wait_revision(revision, seconds)

    def require(self) -> None:
        """Raise NotReady before the first routes, and for routes of another etcd."""
        if not self.loaded.is_set():
            raise NotReady(service="the offset service", reason="no nameserver has answered yet")
        if self._refused:
            raise NotReady(service="the offset service", reason=self._refusal)

    def _refuse_cluster(self, update: RouteUpdate) -> str:
        """Return the reason why the service must not join this cluster; empty if it may."""
        if self._is_of_our_etcd(update) or self._may_take_over(update):
            try:
                self._store.cluster.move_to(update.cluster_id)
            except OSError as failure:
                log.warning(
                    "could not write the cluster id file: %s; retried with the next routes", failure
                )
        elif self._store.cluster.is_foreign(update.cluster_id):
            self._refuse(update.etcd_cluster_id, self._missing_in(update))
            return self._refusal
        return ""

    def _may_take_over(self, update: RouteUpdate) -> bool:
        """True if an operator accepted the new etcd, which has all names with progress."""
        accepted = self._accepted != 0 and update.etcd_cluster_id == self._accepted
        return accepted and update.snapshot and not self._missing_in(update)

    async def _apply(self, update: RouteUpdate) -> None:
        etcd = update.etcd_cluster_id
        if self._is_of_our_etcd(update):
            self._store.raise_level(update.level)
            if self._refused:
                log.info("the nameservers use etcd %016x again; their routes are applied", etcd)
                self._refused, self._refusal = 0, ""
            if update.snapshot:
                self._store.write(self._reconciliation.etcd_seen(etcd))
            self._on_change(self.table.apply(update))
        elif etcd not in (0, self._refused):
            if self._may_take_over(update):
                self._accept(update)
            else:
                self._refuse(etcd, self._missing_in(update))

    def _is_of_our_etcd(self, update: RouteUpdate) -> bool:
        ledger, etcd = self._store.ledger, update.etcd_cluster_id
        known = ledger.counters.etcd_cluster_id
        if known and etcd:
            return known == etcd
        if etcd and update.snapshot:
            return self._reconciliation.vouched_for(create_revisions_in(update))
        return not self._refused

    def _missing_in(self, update: RouteUpdate) -> list[str]:
        return self._reconciliation.missing_in(
            {topic.config.name for topic in update.topics},
            {group.config.name for group in update.groups},
        )

    def _accept(self, update: RouteUpdate) -> None:
        log.warning(
            "progress is moved to etcd %016x, as accept_etcd_cluster_id requires",
            update.etcd_cluster_id,
        )
        change = self.table.apply(update)
        self._store.write(
            self._reconciliation.accept_etcd(
                update.etcd_cluster_id,
                update.revision,
                create_revisions_in(update),
                self.table.group_incarnations(),
            )
        )
        self._on_change(change)

    def _refuse(self, etcd: int, missing: list[str]) -> None:
        known = self._store.ledger.counters.etcd_cluster_id
        before = f"etcd {known:016x}" if known else "another etcd"
        self._refused = etcd
        self._refusal = (
            f"the nameservers use etcd {etcd:016x}, but progress belongs to {before}. Progress is "
            "kept, and no reader starts: point the nameservers at the old etcd, or restart this "
            f"service with accept_etcd_cluster_id = {etcd:016x}"
        )
        if missing:
            named = ", ".join(missing[:MISSING_NAMED_MAX])
            more = ", ..." if len(missing) > MISSING_NAMED_MAX else ""
            self._refusal += (
                " once the new etcd has all topics and groups with progress: "
                f"it lacks {named}{more}"
            )
        log.error("%s", self._refusal)
