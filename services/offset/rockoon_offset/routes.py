"""The routes as this service knows them: a table in step with what the nameservers tell."""

import logging
from collections.abc import Callable

from rockoon_core.errors import NotReady
from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.route_table import Change, RouteTable, create_revisions_in
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate
from rockoon_runtime.process import Stop

log = logging.getLogger(__name__)

# Topics and groups that a refusal names.
MISSING_NAMED_MAX = 10


class Routes:
    """The routes, kept up to date by `run`.

    Incarnations are revisions of one etcd. The routes of another one, be it a replacement or a
    wrong address, say nothing about progress: the table stays as it was, as if no nameserver
    answered, until the etcd is the old one again or an operator accepts the new one. A service that
    comes to the nameservers of another cluster when it starts takes nobody's place there: it ends.

    Args:
        nameservers: whom to ask.
        on_change: called after each update, before anybody waiting for it goes on.
        store: knows whose incarnations progress has.
        accepted_etcd_cluster_id: another etcd that may take over; 0 for none.

    Attributes:
        table: what is known; empty at first.
        loaded: set when a nameserver has told routes, whether they were taken or not.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        on_change: Callable[[Change], None],
        store: ProgressStore,
        accepted_etcd_cluster_id: int,
    ) -> None:
        self._on_change = on_change
        self._store = store
        self._reconciliation = Reconciliation(store.ledger)
        self._accepted = accepted_etcd_cluster_id
        # The other etcd whose routes are told now; 0 for none.
        self._refused = 0
        self._refusal = ""
        self._follower = RouteFollower(
            nameservers,
            self._take,
            self._refuse_cluster,
            lambda: store.ledger.counters.route_revision,
        )
        self.table = RouteTable()
        self.loaded = self._follower.loaded

    async def run(self, stop: Stop) -> None:
        """Follow until cancelled; `stop` is failed if the nameservers are another cluster's."""
        await self._follower.run(stop)

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes up to a revision are known; False when they are not in time."""
        return await self._follower.wait_revision(revision, seconds)

    def require(self) -> None:
        """Whether the table may decide what exists.

        Raises:
            NotReady: no routes have arrived, or they are those of another etcd.
        """
        if not self.loaded.is_set():
            raise NotReady(service="the offset service", reason="no nameserver has answered yet")
        if self._refused:
            raise NotReady(service="the offset service", reason=self._refusal)

    def _refuse_cluster(self, update: RouteUpdate) -> str:
        """Why the service is not to join this cluster; empty when it may."""
        if self._is_of_our_etcd(update) or self._may_take_over(update):
            try:
                self._store.cluster.go_over(update.cluster_id)
            except OSError as failure:
                log.warning("which cluster progress belongs to is not written down: %s", failure)
        elif self._store.cluster.is_foreign(update.cluster_id):
            self._refuse(update.etcd_cluster_id, self._missing_in(update))
            return self._refusal
        return ""

    def _may_take_over(self, update: RouteUpdate) -> bool:
        """Whether a new etcd is the accepted one, and has what was read."""
        accepted = self._accepted != 0 and update.etcd_cluster_id == self._accepted
        return accepted and update.snapshot and not self._missing_in(update)

    async def _take(self, update: RouteUpdate) -> None:
        told = update.etcd_cluster_id
        if self._is_of_our_etcd(update):
            if self._refused:
                log.info("the nameservers follow etcd %016x again", told)
                self._refused, self._refusal = 0, ""
            if update.snapshot:
                self._store.write(self._reconciliation.etcd_told(told))
            self._on_change(self.table.apply(update))
        elif told not in (0, self._refused):
            if self._may_take_over(update):
                self._accept(update)
            else:
                self._refuse(told, self._missing_in(update))

    def _is_of_our_etcd(self, update: RouteUpdate) -> bool:
        ledger, told = self._store.ledger, update.etcd_cluster_id
        known = ledger.counters.etcd_cluster_id
        if known and told:
            return known == told
        if told and update.snapshot:
            return self._reconciliation.vouched_for(create_revisions_in(update))
        return not self._refused

    def _missing_in(self, update: RouteUpdate) -> list[str]:
        return self._reconciliation.missing_in(
            {topic.config.name for topic in update.topics},
            {group.config.name for group in update.groups},
        )

    def _accept(self, update: RouteUpdate) -> None:
        log.warning("progress is moved to etcd %016x, as the settings say", update.etcd_cluster_id)
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

    def _refuse(self, told: int, missing: list[str]) -> None:
        known = self._store.ledger.counters.etcd_cluster_id
        before = f"etcd {known:016x}" if known else "another one"
        self._refused = told
        self._refusal = (
            f"the nameservers follow etcd {told:016x}, and progress belongs to {before}. It is "
            "kept, and no reader starts: point the nameservers at the old etcd, or restart this "
            f"service with accept_etcd_cluster_id = {told:016x}"
        )
        if missing:
            named = ", ".join(missing[:MISSING_NAMED_MAX])
            more = ", ..." if len(missing) > MISSING_NAMED_MAX else ""
            self._refusal += f" when the new one has what was read: it lacks {named}{more}"
        log.error("%s", self._refusal)
