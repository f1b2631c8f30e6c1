"""Sessions and raw peers: the bound of all messages that have not arrived whole."""

from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import Event
from support import http2_frames as wire
from support.session_pairs import IMPLEMENTATIONS, MANY, ONE, RawClient, RawServer, of_kind, request

each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

RESOURCE_EXHAUSTED = 8
PART, FRAME = 10_000, 64 << 10
LIMITS = Limits(unfinished_bytes_max=10 * PART)
# The beginning of a longer message.
FRONT = wire.framed(bytes(20 * PART))[: PART + 5]


def begun(client: RawClient, path: str, numbers: range) -> list[Event]:
    """Begin calls, and send a part of the first request of each."""
    return client.send(
        *[request(stream, path=path) + wire.data(stream, FRONT) for stream in numbers]
    )


def refused(found: list[Event]) -> list[int]:
    return [event[1] for event in of_kind(found, events.RESET)]


@each
@pytest.mark.parametrize("path", [ONE, MANY])
def test_the_message_beyond_the_bound_ends_its_call_alone(implementation: Any, path: str) -> None:
    client = RawClient(implementation, LIMITS)
    # Ten parts are as many bytes as the bound.
    assert refused(begun(client, path, range(1, 21, 2))) == []
    assert refused(client.send(wire.data(5, bytes(1)))) == [5]
    assert client.status(5) == RESOURCE_EXHAUSTED
    assert client.session.open_streams == 9
    # Its bytes are free for another call.
    assert refused(client.send(wire.data(7, bytes(PART)))) == []
    assert refused(client.send(wire.data(9, bytes(1)))) == [9]
    assert client.status(7) is None


@each
def test_a_whole_message_arrives_beside_unfinished_ones(implementation: Any) -> None:
    client = RawClient(implementation, LIMITS)
    begun(client, MANY, range(1, 21, 2))
    whole = wire.framed(bytes(PART))
    found = client.send(request(21) + wire.data(21, whole, end=True))
    assert of_kind(found, events.CALL)[0][-1] == bytes(PART)
    found = client.send(request(23, path=MANY) + wire.data(23, whole))
    assert of_kind(found, events.MESSAGE) == [(events.MESSAGE, 23, bytes(PART))]
    # It is not reported before the call is complete.
    client.send(request(25) + wire.data(25, whole))
    assert client.status(25) == RESOURCE_EXHAUSTED


@each
@pytest.mark.parametrize("over", ["complete", "reset by the peer", "reset", "finished", "refused"])
def test_a_call_that_is_over_frees_its_bytes(implementation: Any, over: str) -> None:
    client = RawClient(implementation, LIMITS)
    for stream in range(1, 101, 2):
        if over == "complete":
            request_parts = wire.framed(bytes(9 * PART))
            client.send(request(stream), wire.data(stream, request_parts[:PART]))
            found = client.send(
                wire.data(stream, request_parts[PART : 5 * PART]),
                wire.data(stream, request_parts[5 * PART :], end=True),
            )
            assert [event[:2] for event in found] == [(events.CALL, stream)]
            client.session.respond(stream, b"")
            continue
        begun(client, MANY, range(stream, stream + 2, 2))
        if over == "reset by the peer":
            assert refused(client.send(wire.rst_stream(stream))) == [stream]
        elif over == "reset":
            client.session.reset(stream, 8)
        elif over == "finished":
            client.session.finish(stream, 0, "")
        else:
            assert refused(client.send(wire.data(stream, b"", end=True))) == [stream]
    assert client.session.open_streams == 0


@each
def test_messages_of_a_stream_use_the_bound_one_by_one(implementation: Any) -> None:
    client = RawClient(implementation, LIMITS)
    client.send(request(1, path=MANY))
    message = wire.framed(bytes(9 * PART))
    for _ in range(5):
        parts = [message[at : at + PART] for at in range(0, len(message), PART)]
        found = client.send(*[wire.data(1, part) for part in parts])
        assert [event[:2] for event in found] == [(events.MESSAGE, 1)]
        assert found[0][2] == bytes(9 * PART)


@each
def test_a_message_of_many_megabytes_arrives_whole(implementation: Any) -> None:
    # The kernel has the memory of one that is longer than 16 MiB when a quarter has arrived.
    client = RawClient(implementation)
    client.send(request(1, path=MANY), request(3, path=MANY))
    content = bytes(range(256)) * (20 << 12)
    for stream in (1, 3):
        message = wire.framed(content)
        parts = [message[at : at + FRAME] for at in range(0, len(message), FRAME)]
        found = client.send(*[wire.data(stream, part) for part in parts])
        assert [event[:2] for event in found] == [(events.MESSAGE, stream)]
        assert found[0][2] == content


@each
def test_an_answer_beyond_the_bound_ends_its_call(implementation: Any) -> None:
    server = RawServer(implementation, LIMITS)
    first, second = server.call(), server.call()
    for stream in (first, second):
        server.send(server.answer(stream), wire.data(stream, FRONT))
    found = server.send(*[wire.data(second, bytes(PART)) for _ in range(9)])
    assert [event[:3] for event in found] == [(events.ANSWER, second, RESOURCE_EXHAUSTED)]
    assert server.reset_code(second) is not None
    found = server.send(*[wire.data(first, bytes(PART)) for _ in range(9)])
    assert found == []
