"""Sessions and raw peers: honest frames that are no waste, and unread streams."""

from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.implementation import compiled
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from support import http2_frames as wire
from support.session_pairs import (
    IMPLEMENTATIONS,
    MANY,
    Pair,
    RawClient,
    of_kind,
    request,
    whole_request,
)

each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

MIB = 1 << 20


def wasted(client: RawClient) -> tuple[int, int]:
    """Frames without effect, and resets."""
    found = of_kind(client.events, events.WASTE)
    return sum(event[1] for event in found), sum(event[2] for event in found)


@each
@pytest.mark.parametrize("ends", ["finish", "reset", "unknown-method", "not-grpc"])
def test_an_upload_that_the_server_ends_early_is_no_waste(implementation: Any, ends: str) -> None:
    """The client sends what its windows allow, until it has read the status."""
    client = RawClient(implementation)
    path = "/test.Service/Other" if ends == "unknown-method" else MANY
    kind = "text/plain" if ends == "not-grpc" else "application/grpc"
    client.send(request(1, path=path, content_type=kind))
    if ends == "finish":
        client.session.finish(1, 8, "too much")
    elif ends == "reset":
        client.session.reset(1, ErrorCode.CANCEL)
    client.read()
    client.send(*[wire.data(1, bytes(1_000))] * 2_000)
    assert client.goaway_code() is None
    assert wasted(client)[0] < 50
    # The next call is answered.
    assert [event[1] for event in of_kind(client.send(whole_request(3)), events.CALL)] == [3]


@each
def test_data_beyond_the_window_of_an_ended_stream_is_waste(implementation: Any) -> None:
    client = RawClient(implementation, Limits(stream_window_bytes=64 << 10))
    client.send(request(1, path=MANY))
    client.session.finish(1, 8, "too much")
    client.read()
    client.send(*[wire.data(1, bytes(1_000))] * 500)
    assert wasted(client)[0] > 300 or client.goaway_code() is not None


@each
def test_empty_data_frames_do_not_end_a_connection(implementation: Any) -> None:
    client = RawClient(implementation)
    for stream in range(1, 301, 2):
        # Some clients send an empty frame behind the headers, and between two messages.
        call = request(stream, path=MANY) + wire.data(stream, b"")
        call += wire.data(stream, wire.framed(b"a")) + wire.data(stream, b"")
        client.send(call + wire.data(stream, wire.framed(b"b")))
        client.send(wire.data(stream, b""))
        client.send(wire.data(stream, b"", end=True))
        client.session.finish(stream, 0, "")
        client.read()
    assert client.goaway_code() is None
    assert len(of_kind(client.events, events.MESSAGE)) == 300
    assert len(of_kind(client.events, events.ENDED)) == 150
    # A flood of empty frames is waste, for which the owner has a budget.
    client.send(request(301, path=MANY))
    client.send(wire.data(301, b"") * 5_000)
    assert client.goaway_code() is None
    assert wasted(client)[0] > 4_000


@each
def test_an_empty_data_frame_of_no_open_stream_breaks_the_protocol(implementation: Any) -> None:
    client = RawClient(implementation)
    client.send(wire.data(5, b""))
    assert client.goaway_code() == ErrorCode.PROTOCOL_ERROR


@each
def test_a_stream_beyond_the_limit_counts_as_many_resets(implementation: Any) -> None:
    client = RawClient(implementation, Limits(streams_max=10))
    client.send(*[request(stream, path=MANY) for stream in range(1, 61, 2)])
    assert client.session.open_streams == 10
    assert wasted(client)[1] == 20 * 20


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("reader", ["server", "client"])
def test_unread_streams_do_not_block_the_others(implementation: Any, reader: str) -> None:
    """Each unread stream keeps as many bytes as its window has."""
    limits = Limits(unread_bytes_max=0, message_bytes_max=16 * MIB)
    pair = Pair(implementation, implementation, limits, client_limits=limits)
    numbers = [pair.opened() for _ in range(31)]
    *unread, other = numbers
    target, source = pair.server, pair.client
    if reader == "client":
        target, source = source, target
    for stream in unread:
        target.hold(stream)
        # Some beyond the window.
        for _ in range(6):
            source.send(stream, bytes(MIB))
        pair.move()
    pair.of_server(), pair.of_client()
    for number in range(40):
        source.send(other, bytes([number]) * (256 << 10))
    pair.move()
    found = pair.of_server() if reader == "server" else pair.of_client()
    received = [event for event in of_kind(found, events.MESSAGE) if event[1] == other]
    assert [message[0] for _, _, message in received] == list(range(40))
    # When all are read, each stream has its whole window again.
    for stream in unread:
        target.resume(stream)
    pair.move()
    assert source.unsent_bytes == 0


def test_frames_behind_the_goaway_of_an_idle_client_are_not_read() -> None:
    kernel = compiled()
    if kernel is None:
        pytest.skip("the kernel has no http2; the other session keeps the connection")
    client = RawClient(kernel)
    client.send(wire.goaway(0, ErrorCode.NO_ERROR) * 1_000)
    assert of_kind(client.events, events.BROKEN) == [(events.BROKEN, 0, "the client leaves")]
    assert wasted(client)[0] <= 1


@each
def test_a_call_before_many_goaways_is_answered(implementation: Any) -> None:
    client = RawClient(implementation)
    found = client.send(whole_request(1) + wire.goaway(0, ErrorCode.NO_ERROR) * 10)
    assert [event[1] for event in of_kind(found, events.CALL)] == [1]
    client.session.respond(1, b"answer")
    client.read()
    assert len(of_kind(client.events, events.BROKEN)) <= 1
    assert client.goaway_code() in (None, ErrorCode.NO_ERROR)
