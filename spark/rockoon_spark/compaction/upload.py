"""Handing files of a generation over to a broker, from whichever machine has made them."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from rockoon.errors import BrokerUnavailable, RockoonError
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
# How long one call may take: some time for the broker's disk, and what a slow network needs.
_CALL_SECONDS = 60.0
_BYTES_PER_SECOND_MIN = 4 << 20
# A broker that is restarted comes back within this.
_RETRY_SECONDS = 20.0
_FOLLOW_SECONDS_MAX = 2.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Upload:
    """The files of a generation to be, on their way to a broker; see `PartWriter`.

    Args:
        broker: its name.
        address: where it was when the run began.
        endpoint: nameservers that know where it is by now.
        upload_id: of this run alone.
    """

    broker: str
    address: str
    endpoint: str
    upload_id: str

    def write(self, name: str, content: bytes) -> None:
        """See `PartWriter`: the broker's checksum is of what it wrote."""
        sha256 = hashlib.sha256(content).digest()

        def put(stub: BrokerStub, timeout: float) -> PutGenerationFileReply:
            pieces = _pieces(self.upload_id, name, content)
            reply: PutGenerationFileReply = stub.PutGenerationFile(pieces, timeout=timeout)
            return reply

        reply = self._call(put, len(content), f"{name} cannot be handed over")
        if reply.sha256 != sha256:
            raise CompactionError(f"{name} did not arrive at broker {self.broker!r} as it was sent")

    def publish(self, manifest: Manifest) -> None:
        """Have the broker take all of it into force; see `Incoming`."""
        request = PublishGenerationRequest(upload_id=self.upload_id, manifest=manifest.to_json())

        def take(stub: BrokerStub, timeout: float) -> Any:
            return stub.PublishGeneration(request, timeout=timeout)

        what = f"generation {manifest.generation} is not in force"
        self._call(take, manifest.records_bytes, what)

    def discard(self) -> None:
        """Remove what was handed over; a broker that does not answer does it by itself."""
        request = DiscardGenerationRequest(upload_id=self.upload_id)
        with (
            suppress(grpc.RpcError),
            dialer().blocking_channel(self.address) as channel,
        ):
            BrokerStub(channel).DiscardGeneration(request, timeout=_RETRY_SECONDS)

    def _call(
        self, call: Callable[[BrokerStub, float], _Answer], length: int, what: str
    ) -> _Answer:
        """Call the broker, again after a failure that can pass: both calls may be repeated."""
        timeout = _CALL_SECONDS + length / _BYTES_PER_SECOND_MIN
        deadline = time.monotonic() + timeout + _RETRY_SECONDS
        backoff = Backoff()
        address = self.address
        while True:
            # A channel of its own for each attempt: the broker may have another address by then.
            with dialer().blocking_channel(address) as channel:
                try:
                    return call(BrokerStub(channel), timeout)
                except grpc.RpcError as failure:
                    error = from_rpc_error(failure, BrokerUnavailable, broker=self.broker)
            if not error.retriable or time.monotonic() >= deadline:
                raise _failed(what, error)
            time.sleep(backoff.next_seconds())
            found = address_now(self.endpoint, self.broker, _FOLLOW_SECONDS_MAX)
            address = found or address


def _failed(what: str, error: RockoonError) -> CompactionError:
    return CompactionError(f"{what}: {error}")


def _pieces(upload_id: str, name: str, content: bytes) -> Iterator[PutGenerationFileRequest]:
    yield PutGenerationFileRequest(upload_id=upload_id, file_name=name, data=content[:_PIECE_BYTES])
    for at in range(_PIECE_BYTES, len(content), _PIECE_BYTES):
        yield PutGenerationFileRequest(data=content[at : at + _PIECE_BYTES])
