"""The generation of a running broker, read by repeated calls."""

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
from rockoon_spark.endpoint import AnyEndpoint
from rockoon_spark.generations.parts import CurrentGeneration, ReadFile
from rockoon_spark.records.columns import Bytes
from rockoon_spark.records.selection import Coverage
from rockoon_spark.source.log_source import GenerationReplaced

# Maximum size of one reply.
_REPLY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BrokerGeneration:
    """`GenerationFiles` of a broker's current generation.

    Args:
        broker: name of the broker.
        address: its address when the read was planned.
        number: number of the generation.
        endpoint: nameservers, asked for the broker's new address if it no longer answers.
    """

    broker: str
    address: str
    number: int
    endpoint: AnyEndpoint

    @property
    def name(self) -> str:
        return f"generation {self.number} of broker {self.broker!r}"

    @contextmanager
    def opened(self) -> Iterator[ReadFile]:
        with GenerationClient(
            self.broker, self.address, READ_RETRY_SECONDS, self.endpoint
        ) as client:

            def read(name: str, start: int, stop: int) -> Bytes:
                return self._read(client, name, start, stop)

            yield read

    def _read(self, client: GenerationClient, name: str, start: int, stop: int) -> Bytes:
        chunks: list[bytes] = []
        at = start
        while at < stop:
            request = ReadGenerationRequest(
                generation=self.number,
                file_name=name,
                offset=at,
                max_bytes=min(stop - at, _REPLY_BYTES),
            )
            try:
                data = client.read(request).data
            except GenerationNotFound as error:
                raise GenerationReplaced(
                    f"{self.name} was replaced by a newer one while it was read: read again"
                ) from error
            if not data:
                raise GenerationError(f"{self.name}: {name} ends before byte {stop}")
            chunks.append(data)
            at += len(data)
        return np.frombuffer(chunks[0] if len(chunks) == 1 else b"".join(chunks), np.uint8)


def current_generation(
    broker: str, address: str, endpoint: AnyEndpoint
) -> CurrentGeneration | None:
    """Return the current generation of a broker; None if it has none.

    Args:
        broker, address, endpoint: see `BrokerGeneration`.

    Raises:
        RockoonError: the broker does not answer.
        GenerationError: the manifest in its answer is invalid.
    """
    with CompactionClient(broker, address, PLAN_RETRY_SECONDS, endpoint) as client:
        reply: DescribeCompactionReply = client.read(DescribeCompactionRequest())
    if not reply.manifest:
        return None
    manifest = Manifest.from_json(reply.manifest)
    marks = {each.topic: each.dropped_below for each in reply.dropped}
    files = BrokerGeneration(broker, address, manifest.generation, endpoint)
    return CurrentGeneration(files, manifest, Coverage.of(manifest, marks))
