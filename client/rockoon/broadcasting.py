"""What is different when every member of a group reads everything, and keeps its own progress.

A member is known by its id: under it its progress is found again. So the id has to be the same at
every start of this reader, and another for every reader.
"""

import logging
import secrets

from rockoon.connection import Cluster
from rockoon.errors import InvalidArgument, MemberIdTaken, RockoonError
from rockoon.offset_store import OffsetStore, RemoteOffsetStore
from rockoon_proto.v1.offset_pb2 import BROADCASTING, CLUSTERING, ConsumeMode

log = logging.getLogger(__name__)

# A process that was killed is a member until its lease ends.
FORMER_SELF_SECONDS_MAX = 30.0

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


def member_id_of(cluster: Cluster, group: str, mode: ConsumeMode, member_id: str | None) -> str:
    """Return who a member is.

    Args:
        cluster: its client id makes the member id when none is given.
        group: for people.
        mode: a broadcasting member without an id of its own is warned of.
        member_id: as the user gave it.
    """
    if member_id:
        return member_id
    if mode == CLUSTERING:
        return f"{cluster.client_id}@{secrets.token_hex(2)}"
    if not cluster.client_id_is_given:
        log.warning(
            "a broadcasting member of group %s has no id of its own: after a restart its progress "
            "will not be found again, and it starts by policy. Give it a `member_id`, or the "
            "connection a `client_id`, that is the same at every start",
            group,
        )
    return cluster.client_id


def store_of(cluster: Cluster, group: str, mode: ConsumeMode, member_id: str) -> OffsetStore:
    """Return where a member's progress is kept unless the user says where."""
    if mode == CLUSTERING:
        return RemoteOffsetStore(cluster, group, member_id)
    from rockoon.local_offsets import LocalFileOffsetStore

    return LocalFileOffsetStore(cluster, group, member_id)


def join_seconds_max(error: RockoonError, mode: ConsumeMode, usual_seconds: float) -> float:
    """Return how long joining is tried again after an error, 0: not at all.

    The lock on a broadcasting member's progress says that no other process here bears its id, so
    whoever the offset service takes for alive is most likely this reader before it was killed.
    """
    if mode == BROADCASTING and isinstance(error, MemberIdTaken):
        return FORMER_SELF_SECONDS_MAX
    return usual_seconds if error.retriable else 0.0
