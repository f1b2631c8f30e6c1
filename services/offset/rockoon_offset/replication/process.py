"""Start and shutdown of an offset service with a replicated journal."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from grpc import aio

from rockoon_core.disk import DirectoryLock, DirectoryLocked, Disk
from rockoon_core.errors import StoreLocked
from rockoon_node.frontend import NodeFrontend
from rockoon_node.store_directory import keep_private
from rockoon_offset.metrics import TABLE, of_process
from rockoon_offset.parts import SERVICE_NAMES, OffsetParts, assembled, now_ms
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.replication.leader_endpoint import LeaderEndpoint
from rockoon_offset.replication.serving import JOURNAL, OffsetCopy
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1.in_flight_pb2_grpc import (
    InFlightServiceServicer,
    add_InFlightServiceServicer_to_server,
)
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE
from rockoon_proto.v1.offset_pb2_grpc import (
    OffsetServiceServicer,
    add_OffsetServiceServicer_to_server,
)
from rockoon_replica.copy_process import CopyProcess
from rockoon_replica.log_copy import LogCopy
from rockoon_replica.metrics import TABLE as TABLE_OF_COPIES
from rockoon_replica.metrics import of_copy
from rockoon_replica.replica_file import FILE, MARKER
from rockoon_replica.service import ReplicationService
from rockoon_replica.service import add_to_server as add_replication
from rockoon_replica.settings import replica_identities
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.telemetry.metrics import Measurement

STORE_ID_FILE = "store_id"


class CopyMetrics:
    """Measures the metrics of a replica, and of its service while it leads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copy: LogCopy[OffsetCopy] | None = None

    def follow(self, copy: LogCopy[OffsetCopy]) -> None:
        """Set the replica to measure, after an earlier one."""
        self._copy = copy

    async def measure(self) -> Iterable[Measurement]:
        """Return the metrics of the replica, and of the service if the replica leads."""
        if self._copy is None:
            return of_process(self._root, is_ready=False)
        parts = self._copy.service.parts
        led = [] if parts is None else await parts.metrics.measure()
        is_ready = self._copy.record.is_ready
        return [*of_process(self._root, is_ready=is_ready), *of_copy(self._copy), *led]


async def serve_copy(
    settings: OffsetSettings,
    frontend: NodeFrontend,
    stop: Stop,
    disk: Disk,
    announce: Callable[[str, str, str], None],
) -> None:
    """Run a replica of the offset service's journal until `stop` is requested.

    Raises:
        SettingsError, ListenError: a setting cannot be used.
        Fatal: the store cannot be used.
    """
    replication = ReplicationService(replica_identities(settings))
    metrics, root = CopyMetrics(settings.store_path), settings.store_path
    endpoint = LeaderEndpoint()

    def register(server: aio.Server) -> None:
        # LeaderEndpoint creates its methods from the service descriptors.
        add_OffsetServiceServicer_to_server(cast(OffsetServiceServicer, endpoint), server)
        add_InFlightServiceServicer_to_server(cast(InFlightServiceServicer, endpoint), server)
        add_replication(replication, server)

    def parts_over(store: ProgressStore) -> OffsetParts:
        return assembled(settings, store, frontend.nameservers)

    with locked(root):
        async with (
            frontend.telemetry(
                TABLE + TABLE_OF_COPIES, metrics.measure, settings.process_name
            ) as telemetry,
            frontend.server(register, SERVICE_NAMES, tracer=telemetry.tracer) as server,
        ):
            await CopyProcess(
                kind=OFFSET_SERVICE,
                service="offset",
                settings=settings,
                frontend=frontend,
                server=server,
                replication=replication,
                address=frontend.address(server),
                stop=stop,
                disk=disk,
                now_ms=now_ms,
                config=root,
                id_file=STORE_ID_FILE,
                # These files last: an id without its promises could break a promise.
                moved_last=(JOURNAL, STORE_ID_FILE, MARKER, FILE),
                announce=announce,
                follow=metrics.follow,
            ).run(lambda store_id: OffsetCopy(settings, store_id, endpoint, stop, disk, parts_over))


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the directory of a store for this process. Raises Fatal."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(root)
    except DirectoryLocked:
        raise Fatal(ExitStatus.STORE, str(StoreLocked(path=root))) from None
    except OSError as failure:
        raise Fatal(ExitStatus.STORE, f"cannot open {root}: {failure}") from failure
    with suppress(OSError):
        keep_private(root)
    try:
        yield
    finally:
        lock.release()
