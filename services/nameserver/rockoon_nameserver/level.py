"""The cluster's feature level in etcd: see `rockoon_core.protocol.LEVEL`."""

import logging
from collections.abc import Sequence

from rockoon_core.errors import Busy, InvalidArgument
from rockoon_core.protocol import LEVEL
from rockoon_nameserver.etcd_data import PutKey, only, unchanged
from rockoon_nameserver.keyspace import Keyspace, identity_value, read_identity, read_level
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1.nameserver_pb2 import FinishUpgradeReply

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 8


class ClusterLevel:
    """Raises the cluster's feature level. This process keeps no state."""

    def __init__(self, etcd: RouteStore, keyspace: Keyspace) -> None:
        self._etcd = etcd
        self._keyspace = keyspace

    async def raise_it(self, lacking: Sequence[str]) -> FinishUpgradeReply:
        """Raise the level to that of this program. A repeated call changes nothing.

        Args:
            lacking: names of registered services that do not support it.

        Raises:
            InvalidArgument: a registered service does not support it.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """
        if lacking:
            names = ", ".join(lacking)
            reason = f"services of a former version are registered: {names}. Upgrade them first"
            raise InvalidArgument(reason=reason)
        key = self._keyspace.identity
        for _ in range(ATTEMPTS_MAX):
            found = await self._etcd.read(only(key))
            (item,) = found.items
            if read_level(item.value) >= LEVEL:
                return FinishUpgradeReply(
                    level=read_level(item.value), revision=found.header.revision
                )
            value = identity_value(read_identity(item.value), LEVEL)
            outcome = await self._etcd.transaction(
                [unchanged(key, item.mod_revision)], [PutKey(key, value)]
            )
            if outcome.succeeded:
                log.info("the cluster has feature level %d now", LEVEL)
                return FinishUpgradeReply(level=LEVEL, revision=outcome.revision)
        raise Busy(reason="the cluster's identity keeps changing: try again")
