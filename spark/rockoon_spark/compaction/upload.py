"""Upload of a generation's files to a broker, by driver and executors."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from rockoon.errors import BrokerUnavailable
from rockoon.net.tls import dialer
from rockoon_core.backoff import Backoff
from rockoon_core.failed_call import from_rpc_error
from rockoon_format.generation import Manifest
from rockoon_proto.v1.broker_pb2 import (
    DiscardGenerationRequest,
    PublishGenerationRequest,
    PutGenerationFileReply,
    PutGenerationFileRequest,
)
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_spark.broker_addresses import address_now
from rockoon_spark.compaction.sources import CompactionError

_PIECE_BYTES = 1 << 20
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
        """See `PartWriter`. The broker returns the checksum of the bytes that it wrote."""
        sha256 = hashlib.sha256(content).digest()

        def put(stub: BrokerStub, timeout: float) -> PutGenerationFileReply:
            pieces = _pieces(self.upload_id, name, content)
            reply: PutGenerationFileReply = stub.PutGenerationFile(pieces, timeout=timeout)
            return reply

        reply = self._call(put, len(content), f"{name} cannot be uploaded")
        if reply.sha256 != sha256:
            raise CompactionError(
                f"broker {self.broker!r} received {name} with a wrong checksum: run again"
            )

    def publish(self, manifest: Manifest) -> None:
        """Let the broker make the uploaded generation the current one; see `Incoming`."""
        request = PublishGenerationRequest(upload_id=self.upload_id, manifest=manifest.to_json())

        def publish(stub: BrokerStub, timeout: float) -> Any:
            return stub.PublishGeneration(request, timeout=timeout)

        what = f"generation {manifest.generation} cannot be published"
        self._call(publish, manifest.records_bytes, what)

    def discard(self) -> None:
        """Remove the uploaded files; if the broker does not answer, it removes them later."""
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


def _pieces(upload_id: str, name: str, content: bytes) -> Iterator[PutGenerationFileRequest]:
    yield PutGenerationFileRequest(upload_id=upload_id, file_name=name, data=content[:_PIECE_BYTES])
    for at in range(_PIECE_BYTES, len(content), _PIECE_BYTES):
        yield PutGenerationFileRequest(data=content[at : at + _PIECE_BYTES])
