"""Broadcasting: every member of a group reads everything and has its own progress.

A member is known by its id: under it its progress is found again. So the id has to be the same at
every start of this reader, and another for every reader. Where progress is kept the group says: on
the members' machines, or in the offset service (`broadcast_progress`).
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from rockoon.errors import InvalidArgument, MemberIdTaken, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.offset_store import OffsetStore, Persisted, RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom, Start
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig
from rockoon_proto.v1.offset_pb2 import BROADCASTING, CLUSTERING, ConsumeMode

log = limited(logging.getLogger(__name__))

MEMBER_VARIABLE = "ROCKOON_MEMBER"
# As the pods of a Kubernetes StatefulSet are called: they come back under their names.
ORDINAL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*-\d{1,4}")
# A process that was killed is a member until its lease ends.
FORMER_SELF_SECONDS_MAX = 30.0

Mode = Literal["clustering", "broadcasting"]
_MODES = {"clustering": CLUSTERING, "broadcasting": BROADCASTING}


def mode_named(name: str) -> ConsumeMode:
    """Return the mode of a name: "clustering" or "broadcasting".

    Raises:
        InvalidArgument: the name is neither.
    """
    mode = _MODES.get(name)
    if mode is None:
        raise InvalidArgument(reason=f"mode is {name!r}; there are {', '.join(_MODES)}")
    return mode


def member_id_of(
    cluster: Connection,
    mode: ConsumeMode,
    member_id: str | None,
    *,
    environment: Mapping[str, str] = os.environ,
    host_name: str | None = None,
) -> str:
    """Return who a member is.

    A broadcasting member is, in this order: what the user says, the connection's client id if one
    was given, the environment's ROCKOON_MEMBER, the host if its name ends in an ordinal as in a
    StatefulSet ("billing-0"). Otherwise it gets an id that no later start will have.

    Args:
        cluster: its client id makes the member id when there is no other.
        mode: what the member is.
        member_id: as the user gave it.
        environment, host_name: of this process.
    """
    if member_id:
        return member_id
    if mode == CLUSTERING:
        return f"{cluster.client_id}@{secrets.token_hex(2)}"
    if cluster.client_id_is_given:
        return cluster.client_id
    if name := environment.get(MEMBER_VARIABLE):
        return name
    host_name = host_name or socket.gethostname()
    return host_name if ORDINAL_NAME.fullmatch(host_name) else cluster.client_id


def store_of(cluster: Connection, group: str, mode: ConsumeMode, member_id: str) -> OffsetStore:
    """Return where a member's progress is kept unless the user says where."""
    if mode == CLUSTERING:
        return RemoteOffsetStore(cluster, group, member_id)
    return BroadcastOffsetStore(cluster, group, member_id)


class BroadcastOffsetStore:
    """Progress of a broadcasting member where its group wants it; an `OffsetStore`.

    The group is asked once, when the consumer starts.

    Args:
        cluster: where to find the offset service.
        group: whose member.
        member_id: its name.
    """

    def __init__(self, cluster: Connection, group: str, member_id: str) -> None:
        self.config: GroupConfig | None = None
        """What is set for the group; to be known before `load`."""
        self.in_service = False
        """Whether the offset service keeps the progress."""
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._store: OffsetStore | None = None

    async def load(self) -> None:
        """Get ready to answer.

        Raises:
            InvalidArgument: the offset service keeps the progress, and this member has no name of
                its own under which it could be found again.
            StoreLocked, StoreCorrupt, StoreNotWritable: as `LocalFileOffsetStore.load` says.
        """
        assert self.config is not None, "the consumer subscribes first"
        self.in_service = self.config.broadcast_progress == BROADCAST_SERVER
        is_nameless = self._member_id == self._cluster.client_id
        is_nameless = is_nameless and not self._cluster.client_id_is_given
        if self.in_service:
            if is_nameless:
                raise InvalidArgument(
                    reason=f"the progress of each member of group {self._group!r} is kept under "
                    "the member's name, and this one has none that is the same at every start: "
                    f"give it a `member_id`, set {MEMBER_VARIABLE}, or run it where the host's "
                    "name ends in an ordinal, as in a StatefulSet"
                )
            self._store = RemoteOffsetStore(self._cluster, self._group, self._member_id, own=True)
        else:
            from rockoon.offsets.local_offsets import LocalFileOffsetStore

            if is_nameless:
                log.warning(
                    "a broadcasting member of group %s has no id of its own: after a restart its "
                    "progress will not be found again, and it starts by policy. Give it a "
                    "`member_id`, or the connection a `client_id`, that is the same at every start",
                    self._group,
                )
            self._store = LocalFileOffsetStore(self._cluster, self._group, self._member_id)
        await self._store.load()

    @property
    def _kept(self) -> OffsetStore:
        assert self._store is not None, "it is loaded first"
        return self._store

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> Mapping[MessageQueue, Start | RockoonError]:
        return await self._kept.resolve(queues, consume_from, route_revision)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self._kept.update(queue, offset, increase_only=increase_only)

    def read_memory(self, queue: MessageQueue) -> int | None:
        return self._kept.read_memory(queue)

    async def read_store(self, queue: MessageQueue) -> int | None:
        return await self._kept.read_store(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._kept.read(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._kept.persist(queues)

    async def persist_all(self) -> Persisted:
        return await self._kept.persist_all()

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._kept.release(queues)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await self._kept.commit(queue, offset)

    def remove(self, queue: MessageQueue) -> None:
        self._kept.remove(queue)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return self._kept.clone(topic)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


def tell_group(store: OffsetStore, config: GroupConfig) -> None:
    """Tell a store what is set for its group, if it depends on that."""
    if isinstance(store, BroadcastOffsetStore):
        store.config = config


def kept_by_service(store: OffsetStore) -> bool:
    """Whether the offset service keeps what is in the store, so that its resets reach it."""
    return isinstance(store, RemoteOffsetStore) or (
        isinstance(store, BroadcastOffsetStore) and store.in_service
    )


def join_seconds_max(error: RockoonError, mode: ConsumeMode, usual_seconds: float) -> float:
    """Return how long joining is tried again after an error, 0: not at all.

    A broadcasting member bears its own name: whoever the offset service takes for alive under it
    is most likely this reader before it was killed.
    """
    if mode == BROADCASTING and isinstance(error, MemberIdTaken):
        return FORMER_SELF_SECONDS_MAX
    return usual_seconds if error.retriable else 0.0
