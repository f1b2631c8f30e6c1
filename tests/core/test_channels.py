"""Channels follow the processes at their addresses, as routes name them."""

import pytest

from rockoon_core.channels import Channels
from rockoon_proto.v1.nameserver_pb2 import Node
from rockoon_rpc.channel import Channel

ADDRESS = "broker-a.example:10911"


def process(ip_address: str, started_at_ms: int) -> Node:
    return Node(address=ADDRESS, ip_address=ip_address, started_at_ms=started_at_ms)


async def test_a_former_process_does_not_replace_the_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A nameserver that lags, or the lease of the former process, still lists it."""
    moves: list[str] = []
    monkeypatch.setattr(Channel, "move", lambda _, ip_address: moves.append(ip_address))
    channels = Channels()
    channels.get(ADDRESS)
    former, present = process("10.0.0.1", 100), process("10.0.0.2", 200)
    channels.learn([former])
    channels.learn([present, former])
    channels.learn([former, present])
    assert moves == ["10.0.0.1", "10.0.0.2"]
    # The same process, at another address.
    channels.learn([process("10.0.0.3", 200)])
    assert moves[2:] == ["10.0.0.3"]
    await channels.close()
