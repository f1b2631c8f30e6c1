"""Compaction of running brokers over gRPC; no shared disk is needed.

The tasks read the log and the current generation from the broker and upload the parts of the new
generation to it. The driver publishes the new generation.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from rockoon.errors import BrokerUnavailable, RockoonError
from rockoon.net.tls import dialer
from rockoon_core.clock import Backoff
from rockoon_core.failed_call import from_rpc_error
from rockoon_format.generation import LogTail, Manifest
from rockoon_proto.v1.broker_pb2 import (
    DescribeCompactionReply,
    DescribeCompactionRequest,
    DiscardGenerationRequest,
    PublishGenerationRequest,
    PutGenerationFileReply,
    PutGenerationFileRequest,
)
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_spark.broker_calls import (
    PLAN_RETRY_SECONDS,
    CompactionClient,
    address_now,
    cluster_topology,
)
from rockoon_spark.compaction.exchange import Exchange
from rockoon_spark.compaction.plan import CompactionInput
from rockoon_spark.compaction.sources import CompactionError, FormerPart, first_stored_after
from rockoon_spark.generations.broker_generation import BrokerGeneration
from rockoon_spark.source.broker_partition import BrokerPartition

_CHUNK_BYTES = 1 << 20
# Timeout of a call: a constant for the broker's disk, plus the transfer time of a slow network.
_CALL_SECONDS = 60.0
_BYTES_PER_SECOND_MIN = 4 << 20
# For how long a call is repeated: long enough for a restart of the broker.
_RETRY_SECONDS = 20.0
_FOLLOW_SECONDS_MAX = 2.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Upload:
    """`PartWriter` that uploads the files of a new generation to a broker.

    Args:
        broker: its name.
        address: its address at the start of the run.
        endpoint: nameservers, asked for its address if a call fails.
        upload_id: unique for this run.
    """

    broker: str
    address: str
    endpoint: str
    upload_id: str

    def write(self, name: str, content: bytes) -> None:
        """Upload a file to the broker; see `PartWriter`. The broker returns the checksum of the
        bytes that it wrote.
        """
        sha256 = hashlib.sha256(content).digest()

        def put(stub: BrokerStub, timeout: float) -> PutGenerationFileReply:
            chunks = _chunks(self.upload_id, name, content)
            reply: PutGenerationFileReply = stub.PutGenerationFile(chunks, timeout=timeout)
            return reply

        reply = self._call(put, len(content), f"{name} cannot be uploaded")
        if reply.sha256 != sha256:
            raise CompactionError(
                f"broker {self.broker!r} received {name} with a wrong checksum: run again"
            )

    def link(self, _generation: int, _former_name: str, _name: str) -> None:
        """Do nothing: the broker links files that this job does not upload, by their checksums. See
        `PartWriter`."""

    def publish(self, manifest: Manifest) -> None:
        """Request that the broker makes the uploaded generation the current one; see `Incoming`."""
        request = PublishGenerationRequest(upload_id=self.upload_id, manifest=manifest.to_json())

        def publish(stub: BrokerStub, timeout: float) -> Any:
            return stub.PublishGeneration(request, timeout=timeout)

        what = f"generation {manifest.generation} cannot be published"
        self._call(publish, manifest.records_bytes, what)

    def discard(self) -> None:
        """Remove the uploaded files from the broker; if it does not answer, it removes them
        later.
        """
        request = DiscardGenerationRequest(upload_id=self.upload_id)
        with (
            suppress(grpc.RpcError),
            dialer().blocking_channel(self.address) as channel,
        ):
            BrokerStub(channel).DiscardGeneration(request, timeout=_RETRY_SECONDS)

    def _call(
        self, call: Callable[[BrokerStub, float], _Answer], length: int, what: str
    ) -> _Answer:
        """Call the broker; repeat after a retriable failure, which is safe for both calls."""
        timeout = _CALL_SECONDS + length / _BYTES_PER_SECOND_MIN
        deadline = time.monotonic() + timeout + _RETRY_SECONDS
        backoff = Backoff()
        address = self.address
        while True:
            # A new channel for each attempt, because the broker's address may have changed.
            with dialer().blocking_channel(address) as channel:
                try:
                    return call(BrokerStub(channel), timeout)
                except grpc.RpcError as failure:
                    error = from_rpc_error(failure, BrokerUnavailable, broker=self.broker)
            if not error.retriable or time.monotonic() >= deadline:
                raise CompactionError(f"{what}: {error}")
            time.sleep(backoff.next_seconds())
            found = address_now(self.endpoint, self.broker, _FOLLOW_SECONDS_MAX)
            address = found or address


def _chunks(upload_id: str, name: str, content: bytes) -> Iterator[PutGenerationFileRequest]:
    yield PutGenerationFileRequest(upload_id=upload_id, file_name=name, data=content[:_CHUNK_BYTES])
    for at in range(_CHUNK_BYTES, len(content), _CHUNK_BYTES):
        yield PutGenerationFileRequest(data=content[at : at + _CHUNK_BYTES])


_SEARCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """`CompactionTarget` for the store of a running broker.

    Args:
        endpoint: nameservers of its cluster.
        broker: its name.
        address: "host:port".
    """

    endpoint: str
    broker: str
    address: str

    @property
    def name(self) -> str:
        return f"broker {self.broker}"

    def inspect(
        self, _exchange: Exchange, /, *, min_lag_ms: int, split_bytes: int
    ) -> CompactionInput:
        found = self._describe(0)
        former = Manifest.from_json(found.manifest) if found.manifest else None
        if min_lag_ms:
            start, end = found.log_min_offset, found.log_end
            partitions = self.partitions(start, end, min(split_bytes, _SEARCH_BYTES))
            time_ms = found.as_of_ms - min_lag_ms
            early = first_stored_after(partitions, time_ms, end)
            # A generation never ends before the previous one.
            chosen = max(early, former.log_end if former else 0, start)
            if chosen:
                found = self._describe(chosen)
                former = Manifest.from_json(found.manifest) if found.manifest else None
            else:
                # Not _describe(0): an end of 0 requests the whole log.
                found.log_end = 0
                found.log_tail.Clear()
        tail = found.log_tail
        return CompactionInput(
            now_ms=found.as_of_ms,
            log_start=found.log_min_offset,
            log_end=found.log_end,
            log_tail=LogTail(tail.start, tail.tail_bytes, tail.crc32),
            retention_ms={topic.name: topic.tombstone_retention_ms for topic in found.topics},
            dropped_below={each.topic: each.dropped_below for each in found.dropped},
            former=former,
            number=found.state.generation + 1,
        )

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[BrokerPartition]:
        whole = BrokerPartition(
            broker=self.broker,
            address=self.address,
            endpoint=self.endpoint,
            start=start,
            stop=stop,
            at_record=True,
        )
        return whole.cut(split_bytes)

    def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
        files = BrokerGeneration(self.broker, self.address, manifest.generation, self.endpoint)
        return [FormerPart(files, part) for part in manifest.parts]

    @contextmanager
    def incoming(self, _number: int, /) -> Iterator["_IncomingUpload"]:
        """Return the context in which a generation is uploaded; see `CompactionTarget`. If two runs
        overlap, the broker refuses the later one.
        """
        upload = Upload(self.broker, self.address, self.endpoint, f"job-{uuid.uuid4().hex}")
        incoming = _IncomingUpload(upload)
        try:
            yield incoming
        finally:
            if not incoming.is_published:
                upload.discard()

    def _describe(self, log_end: int) -> DescribeCompactionReply:
        request = DescribeCompactionRequest(log_end=log_end)
        try:
            with CompactionClient(
                self.broker, self.address, PLAN_RETRY_SECONDS, self.endpoint
            ) as client:
                return client.read(request)
        except RockoonError as error:
            raise CompactionError(
                f"{self.name} did not describe its log and generation: {error}"
            ) from error


class _IncomingUpload:
    """`Incoming` for a generation that is uploaded to a broker."""

    def __init__(self, upload: Upload) -> None:
        self.writer = upload
        self.is_published = False

    def publish(self, manifest: Manifest) -> None:
        self.writer.publish(manifest)
        self.is_published = True


def broker_targets(endpoint: str, broker: str | None = None) -> list[BrokerTarget]:
    """Return the brokers of a cluster, or one of them, in the order of their names.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.
        broker: name of the only broker to return; None for all.

    Raises:
        CompactionError: a requested broker does not answer, or no nameserver does.
    """
    try:
        topology = cluster_topology(endpoint)
    except RockoonError as error:
        raise CompactionError(f"the cluster at {endpoint} does not answer: {error}") from error
    addresses, failures = topology.addresses, topology.failures
    if broker is not None:
        addresses = {name: address for name, address in addresses.items() if name == broker}
        failures = {name: failure for name, failure in failures.items() if name == broker}
    for name, failure in failures.items():
        raise CompactionError(f"broker {name!r} of the cluster at {endpoint}: {failure}")
    if broker is not None and not addresses:
        raise CompactionError(f"the cluster at {endpoint} has no broker {broker!r}")
    return [BrokerTarget(endpoint, name, addresses[name]) for name in sorted(addresses)]
