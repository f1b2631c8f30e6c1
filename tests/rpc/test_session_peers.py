"""Sessions and raw peers: refused calls, answers of any kind, and the cost of a peer."""

from typing import Any

import pytest

from rockoon_rpc import fallback
from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from support import http2_frames as wire
from support.session_pairs import (
    IMPLEMENTATIONS,
    MANY,
    ONE,
    RawClient,
    RawServer,
    head,
    of_kind,
    request,
    request_pairs,
    whole_request,
)

each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

OK, UNKNOWN, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 2, 8, 12, 13, 14


@each
def test_an_unknown_method_is_unimplemented(implementation: Any) -> None:
    client = RawClient(implementation)
    assert client.send(whole_request(1, path="/test.Service/Other")) == []
    assert client.status(1) == UNIMPLEMENTED
    assert "0x" not in client.pairs(1)["grpc-message"]
    assert client.session.open_streams == 0


@each
@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/json", "application/grpc-web"]
)
def test_a_request_that_is_not_grpc_is_answered_415(
    implementation: Any, content_type: str | None
) -> None:
    client = RawClient(implementation)
    assert client.send(whole_request(1, content_type=content_type)) == []
    assert client.pairs(1)[":status"] == "415"
    assert client.status(1) is None
    assert client.session.open_streams == 0


@each
@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"]
)
def test_content_types_of_grpc_are_accepted(implementation: Any, content_type: str) -> None:
    client = RawClient(implementation)
    assert [event[0] for event in client.send(whole_request(1, content_type=content_type))] == [
        events.CALL
    ]


@each
def test_a_get_is_not_a_call(implementation: Any) -> None:
    client = RawClient(implementation)
    assert client.send(request(1, method="GET", end=True)) == []
    assert client.pairs(1)[":status"] in ("415", "405")


@each
def test_a_call_without_a_request_is_refused(implementation: Any) -> None:
    client = RawClient(implementation)
    found = client.send(request(1, end=True), request(3), wire.data(3, b"", end=True))
    assert of_kind(found, events.CALL) == []
    assert [event[1] for event in of_kind(found, events.AWAITED, events.RESET)] == [3, 3]
    assert client.status(1) == client.status(3) == INTERNAL


@each
def test_a_stream_of_requests_may_be_empty(implementation: Any) -> None:
    client = RawClient(implementation)
    found = client.send(request(1, path=MANY, end=True))
    assert [event[:2] for event in found] == [(events.OPENED, 1), (events.ENDED, 1)]


@each
@pytest.mark.parametrize("in_one_frame", [True, False])
def test_two_requests_of_a_method_that_has_one_are_refused(
    implementation: Any, in_one_frame: bool
) -> None:
    client = RawClient(implementation)
    first, second = wire.framed(b"first"), wire.framed(b"second")
    if in_one_frame:
        found = client.send(request(1) + wire.data(1, first + second, end=True))
    else:
        found = client.send(request(1), wire.data(1, first), wire.data(1, second, end=True))
    assert of_kind(found, events.CALL) == []
    assert client.status(1) == INTERNAL
    assert client.session.open_streams == 0
    if not in_one_frame:
        assert [event[0] for event in found] == [events.AWAITED, events.RESET]


@each
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("replies", [0, 1])
def test_a_status_before_the_last_request_closes_the_stream_on_both_sides(
    implementation: Any, replies: int, leaves: bool
) -> None:
    """Otherwise a client that has not read the replies yet loses them when the connection ends."""
    client = RawClient(implementation)
    client.send(request(1, path=MANY))
    for _ in range(replies):
        client.session.send(1, b"reply")
    client.read()
    if leaves:
        client.session.leave(True)
    assert client.session.finish(1, OK, "")
    client.read()
    assert "END_STREAM" in client.of_stream(1, wire.HEADERS)[-1].flags
    assert client.reset_code(1) == ErrorCode.NO_ERROR


@each
@pytest.mark.parametrize("path", [ONE, MANY])
def test_requests_that_end_within_a_message_are_refused(implementation: Any, path: str) -> None:
    client = RawClient(implementation)
    for stream, part in ((1, b"\0\0"), (3, b"\0\0\0\0\x09only")):
        found = client.send(request(stream, path=path), wire.data(stream, part, end=True))
        assert of_kind(found, events.CALL, events.MESSAGE, events.ENDED) == []
        assert [event[1] for event in of_kind(found, events.RESET)] == [stream]
        assert client.status(stream) in (INTERNAL, None)
    assert client.session.open_streams == 0


@each
def test_a_message_that_is_too_long_is_refused_before_it_arrives(implementation: Any) -> None:
    client = RawClient(implementation, Limits(message_bytes_max=1000))
    found = client.send(request(1), wire.data(1, b"\0\0\0\x03\xe9"))
    assert [event[:2] for event in found] == [(events.AWAITED, 1), (events.RESET, 1)]
    assert client.status(1) == RESOURCE_EXHAUSTED
    found = client.send(request(3, path=MANY))
    found = client.send(wire.data(3, wire.framed(b"fits") + b"\0\xff\xff\xff\xff"))
    assert found[0] == (events.MESSAGE, 3, b"fits")
    assert found[1][:2] == (events.RESET, 3)
    assert client.status(3) == RESOURCE_EXHAUSTED
    found = client.send(whole_request(5, bytes(1000)))
    assert of_kind(found, events.CALL)[0][-1] == bytes(1000)
    assert client.reset_code(1) == client.reset_code(3) == ErrorCode.NO_ERROR


@each
@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compressed_message_is_refused(implementation: Any, flag: int) -> None:
    client = RawClient(implementation)
    found = client.send(request(1) + wire.data(1, wire.framed(b"x", compressed=flag), end=True))
    assert of_kind(found, events.CALL) == []
    assert client.status(1) in ((UNIMPLEMENTED,) if flag == 1 else (UNIMPLEMENTED, INTERNAL))


@each
@pytest.mark.parametrize(
    "value", ["", "1", "S", "1s", "-1S", "+1S", " 1S", "123456789S", "1.5S", "1SS", "1_0S", "٣S"]
)
def test_a_malformed_timeout_is_refused(implementation: Any, value: str) -> None:
    client = RawClient(implementation)
    found = client.send(whole_request(1, extra=[("grpc-timeout", value)]))
    # White space at an end may be removed before the value is read, or make the header malformed.
    if value.strip() == value:
        assert of_kind(found, events.CALL) == []
        assert client.status(1) == INTERNAL
    assert client.send(whole_request(3))[0][0] == events.CALL


@each
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("4m", 0.004),
        ("5u", 5e-06),
        ("6n", 6e-09),
        ("99999999S", 99999999),
        ("0S", 0),
        ("007m", 0.007),
    ],
)
def test_a_timeout_has_a_unit(implementation: Any, value: str, seconds: float) -> None:
    client = RawClient(implementation)
    (call,) = client.send(whole_request(1, extra=[("grpc-timeout", value)]))
    assert call[4] == pytest.approx(seconds)


@each
def test_headers_that_are_too_long_are_refused(implementation: Any) -> None:
    client = RawClient(implementation, Limits(header_list_bytes_max=2000))
    many = [(f"name-{number}", "x" * 20) for number in range(40)]
    assert of_kind(client.send(whole_request(1, extra=many)), events.CALL) == []
    if client.goaway_code() is None:
        assert client.status(1) == RESOURCE_EXHAUSTED or client.pairs(1)[":status"] == "431"
        # The other calls of the connection are not affected.
        assert client.send(whole_request(3))[0][0] == events.CALL
    assert of_kind(client.send(whole_request(5, extra=many[:25])), events.CALL) or (
        client.goaway_code() is not None
    )


@each
def test_a_bomb_of_headers_ends_the_connection_or_its_call(implementation: Any) -> None:
    client = RawClient(implementation)
    first = wire.block([("x" * 4000, "y")])
    assert first[0] == 0  # A literal that no table keeps; 0x40 puts it into the table.
    indexed = b"\x40" + first[1:] + b"\xbe" * 16_000
    bomb = wire.block(request_pairs()) + indexed
    client.send(wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1, bomb))
    assert of_kind(client.events, events.CALL) == []
    assert client.goaway_code() or client.reset_code(1) or client.pairs(1)


@each
@pytest.mark.parametrize("value", ["?", "ab=c", "a", "YQ,?"])
def test_metadata_that_is_not_base64_is_refused(implementation: Any, value: str) -> None:
    client = RawClient(implementation)
    found = client.send(whole_request(1, extra=[("x-bin", value)]))
    assert of_kind(found, events.CALL) == []
    assert client.status(1) == INTERNAL


@each
def test_metadata_that_is_not_kept_is_not_decoded(implementation: Any) -> None:
    client = RawClient(implementation, kept=frozenset({"wanted"}))
    (call,) = client.send(whole_request(1, extra=[("x-bin", "?"), ("wanted", "x")]))
    assert call[3] == (("wanted", "x"),)


@each
def test_binary_metadata_may_be_padded_and_joined(implementation: Any) -> None:
    client = RawClient(implementation)
    extra = [("a-bin", "YQ"), ("b-bin", "YQ=="), ("c-bin", "YQ,YmI=,"), ("d-bin", "")]
    (call,) = client.send(whole_request(1, extra=extra))
    found = [pair for pair in call[3] if pair[0].endswith("-bin")]
    assert found[:2] == [("a-bin", b"a"), ("b-bin", b"a")]
    joined = [value for name, value in found if name == "c-bin"]
    assert joined[:2] == [b"a", b"bb"]
    assert ("d-bin", b"") in found


@each
def test_text_that_is_not_utf8_arrives_escaped(implementation: Any) -> None:
    client = RawClient(implementation)
    (call,) = client.send(whole_request(1, extra=[("name", b"a\xffb"), ("utf", "ü".encode())]))
    found = dict(call[3])
    assert isinstance(found["name"], str)
    assert found["name"].startswith("a")
    assert found["name"].endswith("b")
    assert found["utf"] == "ü"
    found["name"].encode()


@each
def test_own_headers_of_http2_and_grpc_are_no_metadata(implementation: Any) -> None:
    client = RawClient(implementation)
    extra = [("grpc-accept-encoding", "gzip"), ("grpc-encoding", "identity"), ("x", "y")]
    (call,) = client.send(whole_request(1, extra=extra))
    assert call[3] == (("x", "y"),)


@each
@pytest.mark.parametrize(
    "pair",
    [
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", b"a\0b"),
        ("Upper", "x"),
        ("connection", "x"),
        ("te", "gzip"),
    ],
)
def test_malformed_headers_end_their_stream(
    implementation: Any, pair: tuple[str, str | bytes]
) -> None:
    client = RawClient(implementation)
    assert of_kind(client.send(whole_request(1, extra=[pair])), events.CALL) == []
    ended = {client.reset_code(1), client.goaway_code()}
    assert ErrorCode.PROTOCOL_ERROR in ended


@each
def test_streams_beyond_the_limit_are_refused(implementation: Any) -> None:
    client = RawClient(implementation, Limits(streams_max=2))
    found = client.send(*(whole_request(stream) for stream in (1, 3, 5)))
    assert [event[1] for event in of_kind(found, events.CALL)] == [1, 3]
    assert client.reset_code(5) == ErrorCode.REFUSED_STREAM
    client.session.respond(1, b"")
    assert client.send(whole_request(7))[0][:2] == (events.CALL, 7)


@each
def test_streams_behind_leave_are_refused(implementation: Any) -> None:
    client = RawClient(implementation)
    client.send(request(1))
    client.session.leave(False)
    client.read()
    assert client.send(whole_request(3))[0][:2] == (events.CALL, 3)
    client.session.leave(True)
    client.read()
    # A session may ask by PING whether the first GOAWAY has arrived.
    client.send(*(wire.ping(each.opaque_data, ack=True) for each in client.of_stream(0, wire.PING)))
    goaways = client.of_stream(0, wire.GOAWAY)
    assert [each.last_stream_id for each in goaways] == [(1 << 31) - 1, 3]
    assert of_kind(client.send(whole_request(5)), events.CALL) == []
    assert client.reset_code(5) in (ErrorCode.REFUSED_STREAM, None)
    # The rest of an earlier call is still handled.
    found = client.send(wire.data(1, wire.framed(b"late"), end=True))
    assert found[0][:2] == (events.CALL, 1)
    client.session.respond(1, b"answer")
    client.read()
    assert client.content(1) == wire.framed(b"answer")


@each
def test_goaway_of_a_client_does_not_end_its_calls(implementation: Any) -> None:
    client = RawClient(implementation)
    found = client.send(request(1) + wire.goaway(0, 0, b"bye"), wire.data(1, wire.framed(b"x")))
    assert (events.GOAWAY, 0, 0, "bye") in found
    found = client.send(wire.data(1, b"", end=True))
    assert found[0][:2] == (events.CALL, 1)
    client.session.respond(1, b"answer")
    client.read()
    assert client.content(1) == wire.framed(b"answer")


@each
def test_a_ping_is_answered_with_its_content(implementation: Any) -> None:
    client = RawClient(implementation)
    assert client.send(wire.ping(b"12345678")) == []
    (pong,) = client.of_stream(0, wire.PING)
    assert pong.opaque_data == b"12345678"
    assert "ACK" in pong.flags
    # An answer without a PING.
    assert of_kind(client.send(wire.ping(b"87654321", ack=True)), events.PONG) == []


@each
def test_pieces_of_data_with_padding_are_a_message(implementation: Any) -> None:
    client = RawClient(implementation, Limits(stream_window_bytes=64 << 10))
    client.send(request(1, path=MANY))
    padded = bytes((200,)) + wire.framed(b"padded") + bytes(200)
    for _ in range(2000):
        (found,) = client.send(wire.frame(wire.DATA, wire.PADDED, 1, padded))
        assert found == (events.MESSAGE, 1, b"padded")
    # Padding counts against windows, and is given back.
    given = sum(each.window_increment for each in client.of_stream(1, wire.WINDOW_UPDATE))
    assert given >= 2000 * len(padded) - (64 << 10)


@each
def test_a_held_stream_gets_no_window(implementation: Any) -> None:
    limits = Limits(stream_window_bytes=64 << 10, connection_window_bytes=128 << 10)
    client = RawClient(implementation, limits)
    client.send(request(1, path=MANY))
    client.session.hold(1)
    client.send(*(wire.data(1, bytes(16 << 10)) for _ in range(3)))
    client.send(wire.data(1, bytes((16 << 10) - 1)))
    assert client.of_stream(1, wire.WINDOW_UPDATE) == []
    assert client.of_stream(0, wire.WINDOW_UPDATE)
    client.session.resume(1)
    client.read()
    given = sum(each.window_increment for each in client.of_stream(1, wire.WINDOW_UPDATE))
    assert given >= 32 << 10


@each
def test_data_beyond_the_window_is_a_fault(implementation: Any) -> None:
    client = RawClient(implementation, Limits(stream_window_bytes=64 << 10))
    client.send(request(1, path=MANY))
    client.session.hold(1)
    client.send(*(wire.data(1, bytes(16 << 10)) for _ in range(5)))
    assert ErrorCode.FLOW_CONTROL_ERROR in (client.reset_code(1), client.goaway_code())


@each
def test_a_late_reset_is_reported_once(implementation: Any) -> None:
    client = RawClient(implementation)
    client.send(whole_request(1))
    client.session.respond(1, b"answer")
    client.read()
    assert client.send(wire.rst_stream(1)) == [(events.LATE_RESET, 1)]
    assert client.send(whole_request(3))[0][:2] == (events.CALL, 3)
    found = client.send(wire.rst_stream(3, 8))
    assert [event[:3] for event in found] == [(events.RESET, 3, 8)]
    assert of_kind(client.send(wire.rst_stream(3, 8)), events.RESET, events.LATE_RESET) == []


# What a peer costs.


@each
@pytest.mark.parametrize(
    "useless",
    [
        wire.ping(),
        wire.settings([(wire.INITIAL_WINDOW_SIZE, 65_535)]),
        wire.window_update(0, 1),
        wire.frame(wire.PRIORITY, 0, 7, bytes(5)),
        wire.frame(0x42, 0, 0, b"unknown"),
        wire.frame(0x42, 0, 1, b"unknown"),
        wire.data(1, b""),
        wire.frame(wire.DATA, wire.PADDED, 1, b"\x02\0\0"),
        wire.goaway(0),
    ],
    ids=[
        "ping",
        "settings",
        "window",
        "priority",
        "unknown",
        "unknown-stream",
        "data",
        "padding",
        "goaway",
    ],
)
def test_frames_without_effect_are_waste(implementation: Any, useless: bytes) -> None:
    client = RawClient(implementation)
    client.send(request(1, path=MANY))
    client.send(useless * 500)
    wasted = sum(event[1] for event in of_kind(client.events, events.WASTE))
    # An implementation may end the connection instead, before the owner's budget is used up.
    assert 400 <= wasted <= 510 or client.goaway_code() == ErrorCode.ENHANCE_YOUR_CALM


@each
def test_resets_by_the_peer_are_waste(implementation: Any) -> None:
    client = RawClient(implementation, Limits(turn_calls=1000))
    for stream in range(1, 201, 2):
        client.send(request(stream) + wire.rst_stream(stream))
    wasted = sum(event[2] for event in of_kind(client.events, events.WASTE))
    assert 90 <= wasted <= 110


@each
def test_resets_because_of_the_peer_are_waste(implementation: Any) -> None:
    """The peer makes the server reset streams ("MadeYouReset")."""
    client = RawClient(implementation, Limits(turn_calls=1000))
    for stream in range(1, 201, 2):
        client.send(whole_request(stream) + wire.data(stream, b"behind the end"))
        if client.goaway_code() is not None:
            return
    wasted = sum(event[2] for event in of_kind(client.events, events.WASTE))
    assert 90 <= wasted <= 210


@each
@pytest.mark.parametrize("in_one_turn", [False, True])
@pytest.mark.parametrize(
    "breaks",
    [
        wire.window_update(1, (1 << 31) - 1),
        wire.headers(1, [("x", "y")]),
        wire.frame(2, 0, 1, b"\0\0\0\1\0"),
    ],
    ids=["window", "headers", "priority"],
)
def test_a_peer_that_breaks_the_stream_of_a_whole_call_ends_the_call(
    implementation: Any, breaks: bytes, in_one_turn: bool
) -> None:
    """CVE-2025-8671: else its handler continues, and the peer may open another stream for it."""
    client = RawClient(implementation)
    if in_one_turn:
        client.send(whole_request(1) + breaks)
    else:
        client.send(whole_request(1))
        client.send(breaks)
    if of_kind(client.events, events.BROKEN):
        return
    found = of_kind(client.events, events.CALL, events.RESET)
    assert [event[:2] for event in found] in ([(events.CALL, 1), (events.RESET, 1)], [])
    assert client.session.open_streams == 0
    assert sum(event[2] for event in of_kind(client.events, events.WASTE)) >= 1


@each
def test_a_flood_is_handled_in_turns(implementation: Any) -> None:
    client = RawClient(implementation)
    flood = wire.ping() * 5000
    client.session.receive(flood)
    assert client.session.is_behind
    turns = 1
    while client.session.is_behind:
        client.session.receive(b"")
        turns += 1
    assert turns >= 2
    assert len([each for each in client.read() if each.type == wire.PING]) == 5000


@each
def test_a_turn_is_bounded_by_requests_that_become_complete(implementation: Any) -> None:
    client = RawClient(implementation, Limits(turn_calls=10))
    streams = range(1, 71, 2)
    client.send(*(request(stream) for stream in streams))
    bodies = (wire.data(stream, wire.framed(b"x"), end=True) for stream in streams)
    calls = [len(of_kind(client.session.receive(b"".join(bodies)), events.CALL))]
    while client.session.is_behind:
        calls.append(len(of_kind(client.session.receive(b""), events.CALL)))
    assert sum(calls) == 35
    assert max(calls) <= 10


def test_long_header_lists_fill_turns_of_the_fallback() -> None:
    """A list costs the library some milliseconds."""
    client = RawClient(fallback, Limits(turn_calls=1_000))
    many = [(f"n{number}", "") for number in range(300)]
    client.session.receive(b"".join(request(stream, extra=many) for stream in range(1, 41, 2)))
    turns = 1
    while client.session.is_behind:
        client.session.receive(b"")
        turns += 1
    assert client.session.open_streams == 20
    assert turns >= 10


@each
def test_answers_to_a_peer_that_does_not_read_count(implementation: Any) -> None:
    client = RawClient(implementation)
    before = client.session.unsent_bytes
    for _ in range(100):
        client.session.receive(wire.ping() * 100)
    # Either they are counted, or the session stops handling frames.
    assert client.session.unsent_bytes - before > 100_000 or client.session.is_behind


@each
@pytest.mark.parametrize(
    ("raw", "codes"),
    [
        (wire.frame(wire.SETTINGS, 0, 1), {ErrorCode.PROTOCOL_ERROR}),
        (wire.frame(wire.SETTINGS, 0, 0, b"12345"), {ErrorCode.FRAME_SIZE_ERROR}),
        (wire.frame(wire.PING, 0, 0, b"1234"), {ErrorCode.FRAME_SIZE_ERROR}),
        (wire.data(1, b"x"), {ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED}),
        (
            wire.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            {ErrorCode.COMPRESSION_ERROR},
        ),
        (bytes(1 << 10), {ErrorCode.PROTOCOL_ERROR}),
    ],
)
def test_a_broken_protocol_is_reported_once(
    implementation: Any, raw: bytes, codes: set[ErrorCode]
) -> None:
    client = RawClient(implementation)
    client.send(raw)
    (broken,) = of_kind(client.events, events.BROKEN)
    assert client.events[-1] is broken
    # The h2 crate sends PROTOCOL_ERROR for any fault of a frame.
    assert broken[1] in codes | {ErrorCode.PROTOCOL_ERROR}
    assert broken[2]
    assert client.goaway_code() == broken[1]
    assert client.send(whole_request(3)) == []
    assert client.session.open_streams == 0
    assert not client.session.is_behind


@each
def test_a_frame_that_is_too_long_is_refused_by_its_head(implementation: Any) -> None:
    client = RawClient(implementation, Limits(frame_bytes_max=32 << 10))
    client.send(((32 << 10) + 1).to_bytes(3) + bytes((wire.DATA, 0)) + (1).to_bytes(4))
    assert client.goaway_code() == ErrorCode.FRAME_SIZE_ERROR


@each
def test_bytes_that_are_not_http2_end_the_connection(implementation: Any) -> None:
    client = RawClient(implementation, preface=b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert of_kind(client.events, events.BROKEN, events.READY) == client.events
    assert client.events[-1][0] == events.BROKEN


# Answers.


@each
def test_a_client_sends_a_call_as_grpc_says(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call(b"request")
    (headers,) = server.of_stream(stream, wire.HEADERS)
    pairs = dict(headers.pairs)
    assert pairs[":method"] == "POST"
    assert pairs[":scheme"] == "http"
    assert pairs[":path"] == ONE
    assert pairs[":authority"] == "127.0.0.1:1"
    assert pairs["te"] == "trailers"
    assert pairs["content-type"] == "application/grpc"
    names = [name for name, _ in headers.pairs]
    assert all(name.startswith(":") for name in names[:4])
    assert server.content(stream) == wire.framed(b"request")
    assert "END_STREAM" in server.of_stream(stream, wire.DATA)[-1].flags


@each
@pytest.mark.parametrize(
    ("http", "status"),
    [
        ("400", INTERNAL),
        ("401", 16),
        ("403", 7),
        ("404", UNIMPLEMENTED),
        ("429", UNAVAILABLE),
        ("502", UNAVAILABLE),
        ("503", UNAVAILABLE),
        ("504", UNAVAILABLE),
        ("418", UNKNOWN),
    ],
)
@pytest.mark.parametrize("end", [True, False])
def test_a_status_of_http_becomes_one_of_grpc(
    implementation: Any, http: str, status: int, end: bool
) -> None:
    server = RawServer(implementation)
    stream = server.call()
    (answer,) = server.send(
        wire.headers(stream, [(":status", http), ("content-type", "text/html")], end=end)
    )
    assert answer[:3] == (events.ANSWER, stream, status)
    assert http in answer[3]
    assert server.session.open_streams == 0
    assert (server.reset_code(stream) is not None) is not end


@each
@pytest.mark.parametrize("way", ["trailers only", "trailers", "no trailers"])
def test_an_answer_without_a_status_is_internal(implementation: Any, way: str) -> None:
    server = RawServer(implementation)
    stream = server.call()
    if way == "trailers only":
        found = server.send(server.answer(stream, end=True))
    else:
        found = server.send(server.answer(stream))
        content = wire.data(stream, wire.framed(b"x"), end=way == "no trailers")
        found += server.send(content)
        if way == "trailers":
            found += server.send(wire.headers(stream, [("other", "x")], end=True))
    (answer,) = found
    assert answer[:3] == (events.ANSWER, stream, INTERNAL)
    assert answer[3]


@each
@pytest.mark.parametrize(
    ("value", "status"), [("0", OK), ("5", 5), ("16", 16), ("17", UNKNOWN), ("x", UNKNOWN)]
)
def test_a_status_of_an_answer(implementation: Any, value: str, status: int) -> None:
    server = RawServer(implementation)
    stream = server.call(None, one_answer=False)
    extra = [("grpc-status", value), ("grpc-message", "50 %25 of Z%C3%BCrich %zz"), ("a", "b")]
    (finished,) = server.send(server.answer(stream, end=True, extra=extra))
    assert finished[:3] == (events.FINISHED, stream, status)
    assert "50 % of Zürich" in finished[3]
    assert ("a", "b") in finished[4]
    assert not [name for name, _ in finished[4] if name.startswith((":", "grpc-"))]
    # The requests had not ended.
    assert server.reset_code(stream) == ErrorCode.NO_ERROR


@each
def test_an_ok_without_an_answer_and_two_answers_are_internal(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call()
    ok = [("grpc-status", "0")]
    (answer,) = server.send(server.answer(stream, end=True, extra=ok))
    assert answer[0] == events.ANSWER
    assert answer[5] is None
    assert answer[2] in (OK, INTERNAL)
    stream = server.call()
    twice = wire.data(stream, wire.framed(b"x") * 2)
    (answer,) = server.send(
        server.answer(stream), twice, wire.headers(stream, [("grpc-status", "0")], end=True)
    )
    assert answer[:3] == (events.ANSWER, stream, INTERNAL)


@each
def test_an_answer_may_be_compressed_or_too_long(implementation: Any) -> None:
    server = RawServer(implementation, Limits(message_bytes_max=1000))
    for content, status in (
        (wire.framed(b"x", compressed=1), {UNIMPLEMENTED, INTERNAL}),
        (b"\0\0\0\x03\xe9", {RESOURCE_EXHAUSTED}),
    ):
        stream = server.call()
        (answer,) = server.send(server.answer(stream), wire.data(stream, content))
        assert answer[:2] == (events.ANSWER, stream)
        assert answer[2] in status
        assert server.reset_code(stream) is not None
    assert server.session.open_streams == 0


@each
def test_an_answer_that_ends_within_a_message_is_internal(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call(None, one_answer=False)
    found = server.send(
        server.answer(stream),
        wire.data(stream, wire.framed(b"whole") + b"\0\0\0\0\x09part"),
        wire.headers(stream, [("grpc-status", "0")], end=True),
    )
    assert found[0] == (events.MESSAGE, stream, b"whole")
    assert found[1][:3] == (events.FINISHED, stream, INTERNAL)


@each
def test_an_informational_answer_is_skipped(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call()
    assert server.send(wire.headers(stream, [(":status", "103"), ("link", "x")])) == []
    found = server.send(
        server.answer(stream),
        wire.data(stream, wire.framed(b"answer")),
        wire.headers(stream, [("grpc-status", "0")], end=True),
    )
    assert found == [(events.ANSWER, stream, 0, "", (), b"answer")]


@each
def test_a_refused_stream_was_not_handled(implementation: Any) -> None:
    server = RawServer(implementation)
    first, second = server.call(), server.call()
    found = server.send(wire.rst_stream(first, ErrorCode.REFUSED_STREAM))
    assert found[0][:3] == (events.RESET, first, ErrorCode.REFUSED_STREAM)
    found = server.send(server.answer(second), wire.rst_stream(second, ErrorCode.REFUSED_STREAM))
    assert found[0][:3] == (events.ANSWER, second, UNAVAILABLE)


@each
def test_streams_above_that_of_goaway_are_refused(implementation: Any) -> None:
    server = RawServer(implementation)
    streams = [server.call() for _ in range(3)]
    found = server.send(wire.goaway(streams[0], 11, b"too_many_pings"))
    assert found[0] == (events.GOAWAY, streams[0], 11, "too_many_pings")
    refused = [event[1:3] for event in of_kind(found, events.RESET)]
    assert sorted(refused) == [(each, ErrorCode.REFUSED_STREAM) for each in streams[1:]]
    assert server.call() == 0
    found = server.send(
        server.answer(streams[0]),
        wire.data(streams[0], wire.framed(b"answer")),
        wire.headers(streams[0], [("grpc-status", "0")], end=True),
    )
    assert found == [(events.ANSWER, streams[0], 0, "", (), b"answer")]


@each
def test_a_push_is_refused(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call()
    promise = (2).to_bytes(4) + wire.block(request_pairs())
    server.send(wire.frame(wire.PUSH_PROMISE, wire.END_HEADERS, stream, promise))
    assert server.goaway_code() == ErrorCode.PROTOCOL_ERROR


@each
def test_a_window_of_nothing_and_a_shrinking_one_block_a_sender(implementation: Any) -> None:
    server = RawServer(implementation)
    server.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 0)]))
    stream = server.call(b"request")
    assert server.content(stream) == b""
    server.send(wire.window_update(stream, 3))
    assert server.content(stream) == wire.framed(b"request")[:3]
    server.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 2)]))
    assert server.content(stream) == wire.framed(b"request")[:5]
    # The window is -2 now.
    server.send(wire.settings([(wire.INITIAL_WINDOW_SIZE, 0)]))
    server.send(wire.window_update(stream, 2))
    assert server.content(stream) == wire.framed(b"request")[:5]
    server.send(wire.window_update(stream, 100))
    assert server.content(stream) == wire.framed(b"request")
    assert "END_STREAM" in server.of_stream(stream, wire.DATA)[-1].flags


@each
def test_frames_are_as_long_as_the_peer_permits(implementation: Any) -> None:
    server = RawServer(implementation)
    stream = server.call(bytes(60_000))
    assert max(len(each.data) for each in server.of_stream(stream, wire.DATA)) <= 16_384
    server.send(wire.settings([(wire.MAX_FRAME_SIZE, 20_000), (wire.INITIAL_WINDOW_SIZE, 1 << 20)]))
    server.send(wire.window_update(0, 1 << 20))
    stream = server.call(bytes(100_000))
    assert max(len(each.data) for each in server.of_stream(stream, wire.DATA)) <= 20_000
    assert len(server.content(stream)) == 100_005


@each
def test_settings_of_a_session_name_its_limits(implementation: Any) -> None:
    limits = Limits(
        streams_max=7, frame_bytes_max=20_000, header_list_bytes_max=9_000,
        stream_window_bytes=100_000, connection_window_bytes=300_000,
    )  # fmt: skip
    client = RawClient(implementation, limits, preface=wire.PREFACE + wire.settings())
    settings = client.of_stream(0, wire.SETTINGS)
    assert settings[0] is client.frames[0]
    found = settings[0].settings
    assert found[wire.MAX_CONCURRENT_STREAMS] == 7
    assert found[wire.MAX_FRAME_SIZE] == 20_000
    assert found[wire.MAX_HEADER_LIST_SIZE] == 9_000
    assert found[wire.INITIAL_WINDOW_SIZE] == 100_000
    (update,) = client.of_stream(0, wire.WINDOW_UPDATE)
    assert update.window_increment == 300_000 - 65_535
    assert "ACK" in settings[1].flags
    server = RawServer(implementation, limits, preface=wire.settings())
    assert server.frames[0].settings[wire.ENABLE_PUSH] == 0


@each
def test_messages_before_goaway_are_reported_in_later_turns(implementation: Any) -> None:
    """The server ends its last call and leaves: more messages than one turn has, in one piece."""
    server = RawServer(implementation)
    stream = server.session.request(head(implementation, MANY), b"request", one_answer=False)
    answer = wire.headers(stream, RawServer.answer_pairs)
    answer += wire.data(stream, wire.framed(b"") * 1_400)
    answer += wire.headers(stream, [("grpc-status", "0")], end=True)
    found = server.session.receive(answer + wire.goaway(stream))
    while server.session.is_behind:
        found += server.session.receive(b"")
    assert len(of_kind(found, events.MESSAGE)) == 1_400
    assert of_kind(found, events.FINISHED) == [(events.FINISHED, stream, OK, "", ())]
    assert server.session.open_streams == 0


@each
@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.INTERNAL_ERROR])
def test_a_client_that_leaves_without_calls_is_reported(implementation: Any, code: int) -> None:
    client = RawClient(implementation)
    client.send(wire.goaway(0, code))
    found = of_kind(client.events, events.GOAWAY, events.BROKEN)
    assert found in ([(events.GOAWAY, 0, code, "")], [(events.BROKEN, 0, "the client leaves")])
