"""A separate program that handles a number of messages: nameserver, collector, topic, number."""

import asyncio
import sys

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import rockoon
from rockoon.tracing import Tracing


async def read(nameserver: str, topic: str, count: int, tracing: Tracing) -> None:
    seen: list[rockoon.Message] = []
    done = asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        seen.append(message)
        if len(seen) == count:
            done.set()

    async with (
        rockoon.connect(nameserver, tracing=tracing) as cluster,
        cluster.push_consumer(f"readers-of-{topic}", {topic: "*"}, handle, consume_from="first"),
    ):
        await done.wait()


def main() -> None:
    nameserver, endpoint, topic, count = sys.argv[1:]
    provider = TracerProvider(resource=Resource.create({"service.name": "reader"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    asyncio.run(read(nameserver, topic, int(count), Tracing(0.0, provider)))
    provider.shutdown()


if __name__ == "__main__":
    main()
