"""Calls from one copy of a log to the other copies."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from rockoon_core.channels import Channels
from rockoon_core.errors import BrokerUnavailable, StoreCorrupt
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_core.replication_rules import Boundary
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_proto.v1.replica_pb2_grpc import ReplicationStub

if TYPE_CHECKING:
    from rockoon_proto.v1.replica_pb2_grpc import ReplicationAsyncStub

CALL_SECONDS_MAX = 10.0


class PeerRecords(NamedTuple):
    """Records that another copy has sent after it verified their checksums.

    Attributes:
        data: whole records.
        boundaries: the epochs of that copy's log.
        committed_end: as that copy knows; 0: unknown.
    """

    data: bytes
    boundaries: tuple[Boundary, ...]
    committed_end: int = 0


class Peers:
    """Calls from one copy of a log to its other copies.

    Args:
        cluster: sent along, so that a node of another cluster refuses.
        address_of: address of a replica by its id; None while it is unknown.
        others: ids of the other replicas, the preferred ones first.
        crc32: like `zlib.crc32`.
    """

    def __init__(
        self,
        log_name: str,
        cluster: str,
        channels: Channels,
        address_of: Callable[[str], str | None],
        others: Callable[[], Sequence[str]],
        crc32: Callable[[bytes], int],
    ) -> None:
        self._log_name = log_name
        self._metadata = ((CLUSTER_METADATA_KEY, cluster),)
        self._channels = channels
        self._address_of = address_of
        self.others = others
        self._crc32 = crc32

    async def read(self, replica: str, offset: int, bytes_max: int) -> PeerRecords:
        """Return records of another copy; the first is complete even if longer than `bytes_max`.

        Raises:
            RockoonError: the copy does not reply, is damaged there too, or has no record there.
        """
        request = pb.ReadCopyRequest(log=self._log_name, offset=offset, bytes_max=bytes_max)
        reply: pb.ReadCopyReply = await self._call(replica, "ReadCopy", request)
        if self._crc32(reply.data) != reply.crc:
            raise StoreCorrupt(path=f"the reply of {replica}", reason="its checksum does not match")
        boundaries = (Boundary(each.epoch, each.first, each.end) for each in reply.boundaries)
        return PeerRecords(reply.data, tuple(boundaries), reply.committed_end)

    async def read_committed(self, replica: str, position: int) -> bytes:
        """Return one committed record of another copy, for a log whose own epochs are unknown.

        Past its committed end, the other copy may have records of a former leader.

        Raises:
            RockoonError: see `read`.
            ValueError: the other copy does not know the record to be committed.
        """
        records = await self.read(replica, position, 1)
        end = position + len(records.data)
        if not records.data or end > records.committed_end:
            raise ValueError(
                f"copy {replica} is committed up to {records.committed_end}, not {end}"
            )
        return records.data

    async def ask_check(self, replica: str, begin: int, end: int) -> None:
        """Request a check of a range of another copy's log. Raises RockoonError."""
        request = pb.CheckCopyRequest(log=self._log_name, begin=begin, end=end)
        await self._call(replica, "CheckCopy", request)

    async def _call(self, replica: str, method: str, request: Any) -> Any:
        address = self._address_of(replica)
        if address is None:
            raise BrokerUnavailable(broker=replica)
        stub: ReplicationAsyncStub = ReplicationStub(self._channels.get(address))
        try:
            return await getattr(stub, method)(
                request, timeout=CALL_SECONDS_MAX, metadata=self._metadata
            )
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, BrokerUnavailable, broker=address) from failure
