"""Appending through the wire: what is taken, what is refused and why, and in which order."""

from pathlib import Path

from support.broker import bodies_of, running_broker
from support.fake_nameserver import FakeNameserver


async def test_what_was_appended_is_pulled(tmp_path: Path, nameserver: FakeNameserver) -> None:
    nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        first = await broker.append("T", 1, b"one", b"two")
        second = await broker.append("T", 1, b"three")
        assert (first.first_queue_offset, first.messages) == (0, 2)
        assert second.first_queue_offset == 2
        assert second.first_physical_offset > first.first_physical_offset
        reply = await broker.pull("T", 1)
        assert bodies_of(reply) == [b"one", b"two", b"three"]
        assert (reply.min_offset, reply.max_offset, reply.next_offset) == (0, 3, 3)
