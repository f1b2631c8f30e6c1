"""Generations of compacted topics on followers: a follower copies its leader's current generation.

Until then the follower keeps the messages that the leader has deleted (rule 12 of
docs/understand/replication.md), so a slow copy costs only disk space. The follower reads the files
with the calls of a compaction job, and verifies them like an upload.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from rockoon_broker.broker import Broker
from rockoon_core.errors import BrokerUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import CLUSTER_METADATA_KEY
from rockoon_format.generation import GenerationError, Manifest, part_names
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
# After a leader that does not answer, and after invalid files.
RETRY_SECONDS = 5.0
REFUSED_SECONDS = 60.0
CALL_SECONDS_MAX = 30.0
PIECE_BYTES = 1 << 20


class GenerationCopying:
    """Keeps the generation of a copy equal to its leader's. Used by the event loop's thread.

    Args:
        broker: made from the copy.
        replica: knows the leader and the leader's active generation.
        cluster: sent with calls, so that a node of another cluster refuses them.
    """

    def __init__(self, broker: Broker, replica: Replica, cluster: str) -> None:
        self._broker = broker
        self._replica = replica
        self._metadata = ((CLUSTER_METADATA_KEY, cluster),)
        # Identity of a generation that does not continue the one here; a later one will.
        self._ignored_identity = 0
        self._attempts = 0

    async def run(self) -> None:
        """Copy the leader's generation whenever it differs, until cancelled."""
        while True:
            seconds = LOOK_SECONDS
            wanted = self._replica.member.leader_generation
            known = (0, self._broker.store.compaction.identity, self._ignored_identity)
            if self._replica.role is Role.FOLLOWER and wanted not in known:
                try:
                    seconds = await self._get(wanted)
                except (RockoonError, GenerationError, OSError) as failure:
                    log.info("could not copy the leader's generation, retrying: %s", failure)
                    seconds = RETRY_SECONDS
            await asyncio.sleep(seconds)

    async def _get(self, wanted: int) -> float:
        """Copy the leader's active generation; return the seconds until the next check.

        Raises:
            RockoonError: the leader does not answer.
            GenerationError: its answer has no valid manifest.
            OSError: the disk.
        """
        channel = self._replica.leader_channel()
        if channel is None:
            return LOOK_SECONDS
        stub: BrokerAsyncStub = BrokerStub(channel)
        try:
            told = await stub.DescribeCompaction(
                pb.DescribeCompactionRequest(), timeout=CALL_SECONDS_MAX, metadata=self._metadata
            )
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, BrokerUnavailable, broker="the leader") from failure
        if not told.manifest:
            return LOOK_SECONDS
        manifest = Manifest.from_json(told.manifest)
        store = self._broker.store
        own = store.compaction.manifest
        if own is not None and not may_replace(manifest, own):
            log.info(
                "keeping generation %d, up to %d of the log; the leader has another %d, up to %d",
                *(own.generation, own.log_end),
                *(manifest.generation, manifest.log_end),
            )
            self._ignored_identity = wanted
            return LOOK_SECONDS
        uploads = self._broker.compaction.uploads
        while uploads.has_ended(upload_id := self._upload_id(told.manifest)):
            # Discarded while the leader was away, or ended by an attempt that the disk refused.
            self._attempts += 1
        for part in manifest.parts:
            sizes = (part.records_bytes, part.entries_bytes)
            for name, size in zip(part_names(part.number), sizes, strict=True):
                # Files that an earlier process has received are not copied again.
                if uploads.size_of(upload_id, name) != size:
                    pieces = self._pieces(stub, manifest.generation, name, size)
                    await uploads.put(upload_id, name, pieces)
        while min(store.visible_end, store.durable_end) < manifest.log_end:  # noqa: ASYNC110 - rare
            await asyncio.sleep(LOOK_SECONDS)
        if self._replica.role is not Role.FOLLOWER:
            return LOOK_SECONDS
        marks = {each.topic: each.dropped_below for each in told.dropped}
        refusal = await self._broker.compaction.copy(upload_id, told.manifest, manifest, marks)
        self._attempts += bool(refusal)
        return REFUSED_SECONDS if refusal else LOOK_SECONDS

    def _upload_id(self, manifest: bytes) -> str:
        return f"copy-{hashlib.sha256(manifest).hexdigest()[:32]}-{self._attempts}"

    async def _pieces(
        self, stub: "BrokerAsyncStub", generation: int, name: str, size: int
    ) -> AsyncIterator[bytes]:
        at = 0
        while at < size:
            request = pb.ReadGenerationRequest(
                generation=generation, file_name=name, offset=at, max_bytes=PIECE_BYTES
            )
            try:
                reply = await stub.ReadGeneration(
                    request, timeout=CALL_SECONDS_MAX, metadata=self._metadata
                )
            except grpc.RpcError as failure:
                raise from_rpc_error(failure, BrokerUnavailable, broker="the leader") from failure
            if not reply.data:
                # Shorter than its manifest states; the completion of the upload reports it.
                return
            at += len(reply.data)
            yield reply.data


def may_replace(leader: Manifest, own: Manifest) -> bool:
    """Return whether the leader's generation may replace the one of this copy.

    If this copy led and no follower copied its generation, the next leader's generation may have
    the same number, or cover less of the log, while this copy has already deleted more of its log.
    """
    return leader.generation > own.generation and leader.log_end >= own.log_end
