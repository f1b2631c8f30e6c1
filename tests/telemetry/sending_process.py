"""A separate program that sends traced messages: nameserver, collector, topic, number; with
"transaction" instead of the number, one in a transaction."""

import asyncio
import sys

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import rockoon
from rockoon.tracing import Tracing
from rockoon.transactions.transaction import Resolution


async def send(nameserver: str, topic: str, count: int, tracing: Tracing) -> None:
    async with (
        rockoon.connect(nameserver, tracing=tracing) as cluster,
        cluster.producer() as producer,
    ):
        receipts = [producer.send(topic, b"%d" % number) for number in range(count)]
        for receipt in receipts:
            await receipt


async def commit(nameserver: str, topic: str, tracing: Tracing) -> None:
    async with (
        rockoon.connect(nameserver, tracing=tracing) as cluster,
        cluster.transactional_producer("payments", check=lambda _: Resolution.UNKNOWN) as producer,
        producer.transaction(topic, b"paid"),
    ):
        pass


def main() -> None:
    nameserver, endpoint, topic, count = sys.argv[1:]
    provider = TracerProvider(resource=Resource.create({"service.name": "sender"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    tracing = Tracing(1.0, provider)
    if count == "transaction":
        asyncio.run(commit(nameserver, topic, tracing))
    else:
        asyncio.run(send(nameserver, topic, int(count), tracing))
    provider.shutdown()


if __name__ == "__main__":
    main()
