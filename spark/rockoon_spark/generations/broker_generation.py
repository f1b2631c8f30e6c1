"""The generation of a broker that runs, read from it piece by piece."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rockoon.errors import GenerationNotFound
from rockoon_format.generation import GenerationError, Manifest
from rockoon_proto.v1.broker_pb2 import (
    DescribeCompactionReply,
    DescribeCompactionRequest,
    ReadGenerationRequest,
)
from rockoon_spark.broker_calls import (
    PLAN_RETRY_SECONDS,
    READ_RETRY_SECONDS,
    CompactionClient,
    GenerationClient,
)
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.generations.in_force import GenerationInForce
from rockoon_spark.generations.parts import GenerationReplaced, ReadPiece
from rockoon_spark.records.columns import Bytes

# What one call gives, at most.
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BrokerGeneration:
    """A generation in force.

    Args:
        broker: name of the broker whose it is.
        address: where the broker was when the read was planned.
        number: the generation's.
        endpoint: nameservers that know where it is by then.
    """

    broker: str
    address: str
    number: int
    endpoint: str

    @property
    def name(self) -> str:
        """See `GenerationFiles`."""
        return f"generation {self.number} of broker {self.broker!r}"

    @contextmanager
    def opened(self) -> Iterator[ReadPiece]:
        """See `GenerationFiles`."""
        with GenerationClient(
            self.broker, self.address, READ_RETRY_SECONDS, self.endpoint
        ) as client:

            def read(name: str, start: int, stop: int) -> Bytes:
                return self._read(client, name, start, stop)

            yield read

    def _read(self, client: GenerationClient, name: str, start: int, stop: int) -> Bytes:
        pieces: list[bytes] = []
        at = start
        while at < stop:
            request = ReadGenerationRequest(
                generation=self.number,
                file_name=name,
                offset=at,
                max_bytes=min(stop - at, _PIECE_BYTES),
            )
            try:
                data = client.read(request).data
            except GenerationNotFound as gone:
                raise GenerationReplaced(
                    f"{self.name} went while it was read: the broker has a newer one; read again"
                ) from gone
            if not data:
                raise GenerationError(f"{self.name}: {name} ends before byte {stop}")
            pieces.append(data)
            at += len(data)
        return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)


def generation_in_force(broker: str, address: str, endpoint: str) -> GenerationInForce | None:
    """What a broker serves of compacted topics; None if nothing.

    Args:
        broker, address, endpoint: see `BrokerGeneration`.

    Raises:
        RockoonError: the broker does not answer.
        GenerationError: it answers with what is no manifest.
    """
    with CompactionClient(broker, address, PLAN_RETRY_SECONDS) as client:
        reply: DescribeCompactionReply = client.read(DescribeCompactionRequest())
    if not reply.manifest:
        return None
    manifest = Manifest.from_json(reply.manifest)
    marks = {each.topic: each.dropped_below for each in reply.dropped}
    files = BrokerGeneration(broker, address, manifest.generation, endpoint)
    return GenerationInForce(files, manifest, Coverage.of(manifest, marks))
