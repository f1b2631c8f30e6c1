"""Delayed messages at a broker that does not know its topics yet."""

from pathlib import Path

from rockoon_format.batch import encode_batch
from rockoon_format.properties import encode
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, bodies_of, running_broker
from support.broker_routes import BrokerRoutes

# Late enough for the first broker to stop, also on a busy machine.
DELAY_MS = 2500


async def test_what_is_due_before_any_routes_were_seen_waits_for_them(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        frames, lengths = encode_batch(
            b"T", 0, [b"later"], [encode({"TIMER_DELAY_MS": str(DELAY_MS)})], NOW_MS, BORN_HOST
        )
        request = pb.AppendRequest(
            topic="T",
            queue_id=0,
            frames=frames,
            record_lengths=lengths.astype("<u4").tobytes(),
            handling=pb.DELAYED,
        )
        await broker.call("Append", request)
        (waiting,) = (await broker.call("ListDelayed", pb.ListDelayedRequest())).messages
    await nameserver.stop()
    # The file with the topics of the former run.
    (tmp_path / "config" / "topics.json").unlink()
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        reply = await broker.call("ListDelayed", pb.ListDelayedRequest())
        while reply.as_of_ms < waiting.deliver_at_ms + 200:
            reply = await broker.call("ListDelayed", pb.ListDelayedRequest())
        assert reply.counts.undeliverable == 0
        assert len(reply.messages) == 1
        await nameserver.start()
        await broker.until(lambda seen: seen.topics == 1)
        assert bodies_of(await broker.pull("T", wait_ms=30_000)) == [b"later"]
