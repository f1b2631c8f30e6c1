"""Compaction of running brokers over gRPC; no shared disk is needed.

The tasks read the log and the current generation from the broker and upload the parts of the new
generation to it. The driver publishes the new generation.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rockoon.errors import RockoonError
from rockoon_format.generation import LogTail, Manifest
from rockoon_proto.v1.broker_pb2 import DescribeCompactionReply, DescribeCompactionRequest
from rockoon_spark.broker_addresses import broker_addresses
from rockoon_spark.broker_calls import PLAN_RETRY_SECONDS, CompactionClient
from rockoon_spark.compaction.exchange import Exchange
from rockoon_spark.compaction.plan import CompactionInput
from rockoon_spark.compaction.sources import CompactionError, FormerPart, first_stored_after
from rockoon_spark.compaction.upload import Upload
from rockoon_spark.generations.broker_generation import BrokerGeneration
from rockoon_spark.source.broker_partition import BrokerPartition

_SEARCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """A broker; see `CompactionTarget`.

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
        """See `CompactionTarget`."""
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
        """See `CompactionTarget`."""
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
        """See `CompactionTarget`."""
        files = BrokerGeneration(self.broker, self.address, manifest.generation, self.endpoint)
        return [FormerPart(files, part) for part in manifest.parts]

    @contextmanager
    def incoming(self, _number: int, /) -> Iterator["_IncomingUpload"]:
        """See `CompactionTarget`. If two runs overlap, the broker refuses the later one."""
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
    """See `Incoming`."""

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
        addresses, failures = broker_addresses(endpoint)
    except RockoonError as error:
        raise CompactionError(f"the cluster at {endpoint} does not answer: {error}") from error
    if broker is not None:
        addresses = {name: address for name, address in addresses.items() if name == broker}
        failures = {name: failure for name, failure in failures.items() if name == broker}
    for name, failure in failures.items():
        raise CompactionError(f"broker {name!r} of the cluster at {endpoint}: {failure}")
    if broker is not None and not addresses:
        raise CompactionError(f"the cluster at {endpoint} has no broker {broker!r}")
    return [BrokerTarget(endpoint, name, addresses[name]) for name in sorted(addresses)]
