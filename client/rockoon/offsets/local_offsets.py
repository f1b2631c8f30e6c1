"""Progress of members of a broadcasting group, by default in a file on each machine.

    {directory}/{client id}/{group}/
        offsets.json        RocketMQ's file format; Java reads this file and vice versa
        offsets.json.bak    the previous version
        lock                held while a process uses the directory

Besides RocketMQ's `offsetTable` the file has an object `rockoon`, which Java ignores: the create
revision of each queue, and the revision from which each topic is read. In a file that Java wrote
last it is missing; then offsets are assumed to belong to the present queues.

Invariants:
- At every moment one of the two files is complete: a new file is written under another name and
  synced; then the old one is renamed to `.bak`, and the new one to its name.
- A damaged file never becomes the `.bak`: it is renamed to `.damaged` before the next write.

Source: LocalFileOffsetStore, ConfigManager.

In a broadcasting group, every member reads all messages and has its own progress. A member's
progress is stored under its id. The id must be the same at every start of this reader, and
different for every reader. The group's setting `broadcast_progress` selects where progress is
stored: on the members' machines, or in the offset service.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from rockoon.errors import (
    InvalidArgument,
    MemberIdTaken,
    RockoonError,
    StoreCorrupt,
    StoreLocked,
    StoreNotWritable,
)
from rockoon.net.connection import Connection
from rockoon.offsets.custom_offset_store import CustomOffsetStore, OffsetSnapshot
from rockoon.offsets.offset_store import OffsetStore, Persisted, RemoteOffsetStore
from rockoon.offsets.start import CREATE_REVISION_UNKNOWN, ConsumeFrom, Position, Start
from rockoon_core.disk import DirectoryLock, DirectoryLocked
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_format.config_json import (
    ConfigError,
    Json,
    LocalQueue,
    parse_json,
    read_local_offsets,
    write_local_offsets,
)
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig
from rockoon_proto.v1.offset_pb2 import BROADCASTING, CLUSTERING, ConsumeMode

log = limited(logging.getLogger(__name__))

DEFAULT_DIRECTORY = Path("~/.rockoon_offsets")
OnCorrupt = Literal["refuse", "policy"]
Answer = TypeVar("Answer")

_OWN_FIELD = "rockoon"


class OffsetsFile:
    """Progress in `offsets.json`; an `OffsetBackend`.

    Args:
        folder: directory for this client and group only; created if missing.
        on_corrupt: action if neither the file nor its `.bak` can be read: "refuse" raises,
            "policy" starts without progress.
    """

    def __init__(self, folder: Path, on_corrupt: OnCorrupt = "refuse") -> None:
        if on_corrupt not in ("refuse", "policy"):
            raise InvalidArgument(reason=f"on_corrupt is {on_corrupt!r}, not 'refuse' or 'policy'")
        self.path = folder / "offsets.json"
        self.backup_path = folder / "offsets.json.bak"
        self._folder = folder
        self._on_corrupt = on_corrupt
        self._lock: DirectoryLock | None = None
        self._snapshot = OffsetSnapshot()
        self._thread = ThreadPoolExecutor(1, "rockoon-offsets")
        self._closed = False

    async def load(self) -> OffsetSnapshot:
        """Lock the folder, read the file, and check that it can be written.

        Raises:
            StoreLocked: another process uses the folder.
            StoreCorrupt: neither file can be read, and `on_corrupt` is "refuse".
            StoreNotWritable: the folder cannot be created or written.
        """
        return await self._in_turn(self._load)

    async def write(self, changed: OffsetSnapshot) -> None:
        """Write the whole file. Raises StoreNotWritable: the write failed; the former file is
        unchanged."""
        await self._in_turn(lambda: self._merge(changed))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._in_turn(self._unlock)
            self._thread.shutdown(wait=False)

    async def _in_turn(self, work: Callable[[], Answer]) -> Answer:
        # A write whose caller was cancelled continues; the next one must not overtake it.
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _load(self) -> OffsetSnapshot:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = DirectoryLock(self._folder)
        except DirectoryLocked:
            raise StoreLocked(path=self._folder) from None
        except OSError as error:
            raise self._not_writable(error) from error
        self._snapshot = self._read()
        # A disk that cannot be written should fail here, not after the first messages.
        self._write(encode(self._snapshot))
        return OffsetSnapshot(dict(self._snapshot.positions), dict(self._snapshot.since))

    def _read(self) -> OffsetSnapshot:
        failures: dict[Path, str] = {}
        for path in (self.path, self.backup_path):
            try:
                snapshot = decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ConfigError) as error:
                failures[path] = str(error)
                continue
            if path == self.backup_path:
                why = failures.get(self.path, "it is missing")
                log.warning("%s: %s; using %s instead", self.path, why, path.name)
            self._rename_damaged(failures)
            return snapshot
        if not failures:
            return OffsetSnapshot()
        if self._on_corrupt == "refuse":
            path, reason = next(iter(failures.items()))
            raise StoreCorrupt(
                f"{path} is damaged ({reason}) and there is no {self.backup_path.name} to use "
                "instead; repair or remove it, or start with on_corrupt='policy'",
                path=path,
                reason=reason,
            )
        for path, reason in failures.items():
            log.error("%s is damaged: %s", path, reason)
        log.error("ALL PROGRESS IN %s IS LOST: every queue starts by policy", self._folder)
        self._rename_damaged(failures)
        return OffsetSnapshot()

    def _merge(self, changed: OffsetSnapshot) -> None:
        snapshot = OffsetSnapshot(
            {**self._snapshot.positions, **changed.positions},
            {**self._snapshot.since, **changed.since},
        )
        self._write(encode(snapshot))
        self._snapshot = snapshot

    def _rename_damaged(self, damaged: dict[Path, str]) -> None:
        for path in damaged:
            try:
                path.replace(path.with_name(f"{path.name}.damaged"))
            except OSError as error:
                raise self._not_writable(error) from error

    def _write(self, content: bytes) -> None:
        temporary = self.path.with_name("offsets.json.tmp")
        try:
            # A new file for each attempt: after a failed sync, the content of a file is undefined.
            temporary.unlink(missing_ok=True)
            temporary.touch(0o600)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self.backup_path)
            temporary.replace(self.path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> StoreNotWritable:
        reason = error.strerror or str(error)
        return StoreNotWritable(
            f"progress cannot be stored in {self._folder}: {reason}",
            path=self._folder,
            reason=reason,
        )


class LocalFileOffsetStore(CustomOffsetStore):
    """Progress in `{directory}/{client_id}/{group}/offsets.json`.

    Args:
        cluster: the connection, used for the ends of queues and the group's policies.
        group: the broadcasting group.
        client_id: id that is the same at every start of this reader, and different for every
            reader.
        directory: default `~/.rockoon_offsets`.
        on_corrupt: action if neither the file nor its `.bak` can be read: "refuse" raises,
            "policy" starts without progress and logs an error.

    Raises:
        InvalidArgument: the client id or the group cannot be the name of a directory.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str,
        client_id: str,
        *,
        directory: str | os.PathLike[str] | None = None,
        on_corrupt: OnCorrupt = "refuse",
    ) -> None:
        for name in (client_id, group):
            if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
                raise InvalidArgument(reason=f"{name!r} cannot be the name of a directory")
        folder = Path(directory or DEFAULT_DIRECTORY).expanduser() / client_id / group
        super().__init__(cluster, group, OffsetsFile(folder, on_corrupt))
        self.folder = folder


def encode(snapshot: OffsetSnapshot) -> bytes:
    """Return the content of an `offsets.json` that RocketMQ can read."""
    offsets = {
        LocalQueue(queue.topic, queue.broker, queue.queue_id): position.offset
        for queue, position in snapshot.positions.items()
    }
    root = json.loads(write_local_offsets(offsets))
    create_revisions = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker,
            "queueId": queue.queue_id,
            "at": create_revision,
        }
        for queue, position in sorted(snapshot.positions.items())
        if (create_revision := position.create_revision) != CREATE_REVISION_UNKNOWN
    ]
    root[_OWN_FIELD] = {"births": create_revisions, "since": dict(sorted(snapshot.since.items()))}
    return json.dumps(root, indent="\t", separators=(",", ":"), ensure_ascii=False).encode()


def decode(content: bytes) -> OffsetSnapshot:
    """Parse an `offsets.json` of RocketMQ or Rockoon. Raises ConfigError: it is damaged."""
    if not content.strip():
        raise ConfigError("it is empty")
    offsets = read_local_offsets(content)
    root = parse_json(content)
    own = root.get(_OWN_FIELD) if isinstance(root, dict) else None
    create_revisions: dict[MessageQueue, int] = {}
    since: dict[str, int] = {}
    if isinstance(own, dict):
        listed, topics = own.get("births"), own.get("since")
        if not isinstance(listed, list) or not isinstance(topics, dict):
            raise ConfigError(f"{_OWN_FIELD}: births or since is missing")
        create_revisions = dict(_create_revision(each) for each in listed)
        since = {topic: _number(revision, "since") for topic, revision in topics.items()}
    positions = {
        (queue := MessageQueue(*local)): Position(
            offset, create_revisions.get(queue, CREATE_REVISION_UNKNOWN)
        )
        for local, offset in offsets.items()
        if offset >= 0  # RocketMQ's -1: unknown
    }
    return OffsetSnapshot(positions, since)


def _create_revision(entry: Json) -> tuple[MessageQueue, int]:
    if not isinstance(entry, dict):
        raise ConfigError(f"{_OWN_FIELD}: births: not an object")
    topic, broker = entry.get("topic"), entry.get("brokerName")
    if not isinstance(topic, str) or not isinstance(broker, str):
        raise ConfigError(f"{_OWN_FIELD}: births: an entry names no queue")
    queue = MessageQueue(topic, broker, _number(entry.get("queueId"), "queueId"))
    return queue, _number(entry.get("at"), "at")


def _number(value: Json, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{_OWN_FIELD}: {name} is not a number")
    return value


MEMBER_VARIABLE = "ROCKOON_MEMBER"
# Pod names of a Kubernetes StatefulSet, which are the same after a restart.
ORDINAL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*-\d{1,4}")
# A killed process remains a member until its lease ends.
FORMER_SELF_SECONDS_MAX = 30.0
Mode = Literal["clustering", "broadcasting"]
_MODES = {"clustering": CLUSTERING, "broadcasting": BROADCASTING}


def mode_named(name: str) -> ConsumeMode:
    """Return the mode with a name: "clustering" or "broadcasting". Raises InvalidArgument: the name
    is neither."""
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
    """Return the id of a member.

    For a broadcasting member it is the first of: `member_id`, the connection's client id if the
    program has set one, the environment variable ROCKOON_MEMBER, the host name if it ends in an
    ordinal as in a StatefulSet ("billing-0"). Otherwise the id is unique to this start.

    Args:
        cluster: the connection, whose client id is the basis of other ids.
        mode: mode of the member.
        member_id: id set by the program, if any.
        environment, host_name: environment and name of this process.
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
    """Return the default store for a member's progress."""
    if mode == CLUSTERING:
        return RemoteOffsetStore(cluster, group, member_id)
    return BroadcastOffsetStore(cluster, group, member_id)


class BroadcastOffsetStore:
    """Progress of a broadcasting member, stored where its group's setting says; an `OffsetStore`.

    The setting is read once, when the consumer starts.

    Args:
        cluster: the connection to the offset service.
        member_id: id of the member.
    """

    def __init__(self, cluster: Connection, group: str, member_id: str) -> None:
        self.config: GroupConfig | None = None
        """Configuration of the group; must be set before `load`."""
        self.in_service = False
        """Whether the offset service stores the progress."""
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._store: OffsetStore | None = None

    async def load(self) -> None:
        """Open the store that the group's setting selects. Raises InvalidArgument: the offset
        service stores the progress, and this member's id would be another one after a restart;
        StoreLocked, StoreCorrupt, StoreNotWritable: as `LocalFileOffsetStore.load`."""
        assert self.config is not None, "the consumer subscribes before it loads"
        self.in_service = self.config.broadcast_progress == BROADCAST_SERVER
        is_nameless = self._member_id == self._cluster.client_id
        is_nameless = is_nameless and not self._cluster.client_id_is_given
        if self.in_service:
            if is_nameless:
                raise InvalidArgument(
                    reason=f"group {self._group!r} stores the progress of each member under the "
                    "member's id, and this member has no id that is the same at every start: "
                    f"set `member_id` or {MEMBER_VARIABLE}, or use a host name that ends in an "
                    "ordinal, as in a StatefulSet"
                )
            self._store = RemoteOffsetStore(self._cluster, self._group, self._member_id, own=True)
        else:
            from rockoon.offsets.local_offsets import LocalFileOffsetStore

            if is_nameless:
                log.warning(
                    "a broadcasting member of group %s has no fixed id: after a restart its "
                    "progress is not found and it starts by policy. Set a `member_id`, or a "
                    "`client_id` of the connection, that is the same at every start",
                    self._group,
                )
            self._store = LocalFileOffsetStore(self._cluster, self._group, self._member_id)
        await self._store.load()

    @property
    def _opened(self) -> OffsetStore:
        assert self._store is not None, "the store is loaded before its use"
        return self._store

    async def resolve(
        self, queues: Sequence[MessageQueue], consume_from: ConsumeFrom, route_revision: int = 0
    ) -> Mapping[MessageQueue, Start | RockoonError]:
        return await self._opened.resolve(queues, consume_from, route_revision)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self._opened.update(queue, offset, increase_only=increase_only)

    def read_memory(self, queue: MessageQueue) -> int | None:
        return self._opened.read_memory(queue)

    async def read_store(self, queue: MessageQueue) -> int | None:
        return await self._opened.read_store(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._opened.read(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._opened.persist(queues)

    async def persist_all(self) -> Persisted:
        return await self._opened.persist_all()

    async def release(self, queues: Collection[MessageQueue]) -> Persisted:
        return await self._opened.release(queues)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await self._opened.commit(queue, offset)

    def remove(self, queue: MessageQueue) -> None:
        self._opened.remove(queue)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return self._opened.clone(topic)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


def pass_group_config(store: OffsetStore, config: GroupConfig) -> None:
    """Pass the group's configuration to a store that depends on it."""
    if isinstance(store, BroadcastOffsetStore):
        store.config = config


def kept_by_service(store: OffsetStore) -> bool:
    """Return whether the offset service has the store's progress, so that resets reach it."""
    return isinstance(store, RemoteOffsetStore) or (
        isinstance(store, BroadcastOffsetStore) and store.in_service
    )


def join_seconds_max(error: RockoonError, mode: ConsumeMode, usual_seconds: float) -> float:
    """Return how long joining is retried after an error, in seconds; 0 for no retry.

    A broadcasting member has a fixed id: a live member with that id is most likely this reader's
    former process.
    """
    if mode == BROADCASTING and isinstance(error, MemberIdTaken):
        return FORMER_SELF_SECONDS_MAX
    return usual_seconds if error.retriable else 0.0
