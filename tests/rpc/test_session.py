"""Sessions of both implementations, connected to each other: calls, streams, windows, ends."""

from collections.abc import Callable
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from support.session_pairs import IMPLEMENTATIONS, MANY, ONE, Pair, head, of_kind, transfer

PAIRS = [
    pytest.param(
        tuple(each.values[0] for each in pair),
        id="-".join(str(each.id) for each in pair),
        marks=[mark for each in pair for mark in each.marks],
    )
    for pair in product(IMPLEMENTATIONS, repeat=2)
]
Factory = Callable[..., Pair]


@pytest.fixture(name="paired", params=PAIRS)
def paired_fixture(request: pytest.FixtureRequest) -> Factory:
    """Makes pairs of two implementations: a server's and a client's."""
    server_by, client_by = request.param
    return partial(Pair, server_by, client_by)


def by_bytes(piece: bytes) -> list[bytes]:
    return [piece[at : at + 1] for at in range(len(piece))]


def test_a_call_with_one_request_and_one_answer(paired: Factory) -> None:
    pair = paired()
    stream = pair.client.request(pair.head(), b"request", 1.5)
    assert stream == 1
    pair.move()
    assert pair.of_server() == [(events.CALL, 1, "one", pair_metadata(pair), 1.5, b"request")]
    assert pair.server.open_streams == pair.client.open_streams == 1
    assert pair.server.respond(1, b"answer") is True
    assert pair.server.open_streams == 0
    pair.move()
    assert pair.of_client() == [(events.ANSWER, 1, 0, "", (), b"answer")]
    assert pair.client.open_streams == 0


def pair_metadata(pair: Pair) -> events.Metadata:
    """The metadata of a call without any: an implementation may send its user-agent."""
    pair.client.request(pair.head(), b"")
    pair.move()
    call = of_kind(pair.at_server, events.CALL)[-1]
    pair.server.respond(call[1], b"")
    pair.at_server.remove(call)
    pair.move()
    pair.at_client[:] = [each for each in pair.at_client if each[1] != call[1]]
    metadata: events.Metadata = call[3]
    assert {name for name, _ in metadata} <= {"user-agent"}
    return metadata


def test_an_empty_request_and_an_empty_answer_are_messages(paired: Factory) -> None:
    pair = paired()
    pair.client.request(pair.head(), b"")
    pair.move()
    assert pair.of_server()[0][-1] == b""
    pair.server.respond(1, b"")
    pair.move()
    assert pair.of_client() == [(events.ANSWER, 1, 0, "", (), b"")]


def test_calls_cut_at_every_byte_are_whole(paired: Factory) -> None:
    pair = paired(cut=by_bytes)
    for number in range(3):
        pair.client.request(pair.head(metadata=(("x", "y"),)), b"request" * number, 2.0)
        pair.move()
        (call,) = of_kind(pair.of_server(), events.CALL)
        assert call[5] == b"request" * number
        pair.server.respond(call[1], b"answer" * number, (("a", "b"),))
        pair.move()
        answer = (events.ANSWER, call[1], 0, "", (("a", "b"),), b"answer" * number)
        assert pair.of_client() == [answer]


@pytest.mark.parametrize("at", range(1, 60, 7))
def test_a_request_that_arrives_in_two_pieces_is_awaited(paired: Factory, at: int) -> None:
    pair = paired()
    pair.client.request(pair.head(), bytes(1000))
    raw = b"".join(map(bytes, pair.client.output()[0]))
    first = pair.server.receive(raw[:-at])
    assert of_kind(first, events.AWAITED) == [(events.AWAITED, 1)]
    assert not pair.server.is_behind
    (call,) = of_kind(pair.server.receive(raw[-at:]), events.CALL)
    assert call[5] == bytes(1000)


def test_a_batch_of_calls_arrives_in_one_piece(paired: Factory) -> None:
    pair = paired()
    streams = [pair.client.request(pair.head(), b"%d" % number) for number in range(200)]
    pair.move()
    calls = of_kind(pair.of_server(), events.CALL)
    requests = {call[1]: call[5] for call in calls}
    assert requests == {stream: b"%d" % number for number, stream in enumerate(streams)}
    for stream in reversed(streams):
        pair.server.respond(stream, b"answer %d" % stream)
    pair.move()
    answers = {event[1]: event[5] for event in of_kind(pair.of_client(), events.ANSWER)}
    assert answers == {stream: b"answer %d" % stream for stream in streams}


def test_a_stream_of_requests_and_a_stream_of_answers(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened(timeout=3.0, metadata=(("name", "value"),))
    for number in range(10):
        assert pair.client.send(stream, b"request %d" % number)
    pair.move()
    assert pair.of_server() == [
        (events.MESSAGE, stream, b"request %d" % number) for number in range(10)
    ]
    pair.server.begin(stream, (("early", "yes"),))
    for number in range(10):
        assert pair.server.send(stream, b"answer %d" % number)
    pair.move()
    assert pair.of_client() == [
        (events.MESSAGE, stream, b"answer %d" % number) for number in range(10)
    ]
    pair.client.send(stream, b"last")
    pair.client.end(stream)
    pair.move()
    assert pair.of_server() == [(events.MESSAGE, stream, b"last"), (events.ENDED, stream)]
    pair.server.send(stream, b"last")
    assert pair.server.finish(stream, 0, "", (("t", "u"),)) is True
    pair.move()
    assert pair.of_client() == [
        (events.MESSAGE, stream, b"last"),
        (events.FINISHED, stream, 0, "", (("t", "u"),)),
    ]
    assert pair.client.open_streams == pair.server.open_streams == 0


def test_pieces_and_framed_messages_are_sent_as_they_are(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    pair.client.send(stream, [b"in ", b"", b"three pieces"])
    pair.client.send(stream, b"\0\0\0\0\x03one\0\0\0\0\x03two", True)
    pair.client.send(stream, [b"\0\0\0\0\x05th", b"ree\0\0\0\0\0"], framed=True)
    pair.move()
    messages = [event[2] for event in of_kind(pair.of_server(), events.MESSAGE)]
    assert messages == [b"in three pieces", b"one", b"two", b"three", b""]
    pair.client.request(pair.head(), b"")
    pair.move()
    pair.server.respond(3, b"\0\0\0\0\x03one", framed=True)
    pair.move()
    assert pair.of_client()[-1][-1] == b"one"
    pair.client.request(pair.head(), b"")
    pair.move()
    pair.server.respond(5, [b"in ", b"", b"three pieces"])
    pair.move()
    assert pair.of_client()[-1][-1] == b"in three pieces"


def test_an_answer_before_the_end_of_the_requests_ends_the_call(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    pair.server.finish(stream, 9, "enough")
    pair.move()
    assert pair.of_client() == [(events.FINISHED, stream, 9, "enough", ())]
    assert of_kind(pair.of_server(), events.RESET, events.LATE_RESET) == []
    assert pair.client.open_streams == pair.server.open_streams == 0
    # Calls for a forgotten stream have no effect.
    assert pair.client.send(stream, b"x")
    assert pair.server.send(stream, b"x")
    pair.client.end(stream)
    pair.client.reset(stream, ErrorCode.CANCEL)
    pair.server.respond(stream, b"x")
    pair.server.finish(stream, 0, "")
    pair.server.hold(stream)
    pair.server.resume(stream)
    pair.move()
    assert pair.of_client() == pair.of_server() == []


@pytest.mark.parametrize("details", ["", "plain text", "50 % of Zürich\nand 東京", "a" * 2000])
def test_a_status_and_its_details_arrive(paired: Factory, details: str) -> None:
    pair = paired()
    pair.client.request(pair.head(), b"")
    pair.move()
    pair.server.finish(1, 7, details, (("a", "b"), ("c-bin", b"\0\xff")))
    pair.move()
    trailing = (("a", "b"), ("c-bin", b"\0\xff"))
    assert pair.of_client() == [(events.ANSWER, 1, 7, details, trailing, None)]


def test_metadata_arrives_in_both_directions(paired: Factory) -> None:
    pair = paired()
    sent = (("twice", "one"), ("b-bin", bytes(range(256))), ("twice", "two"), ("empty", ""))
    pair.client.request(pair.head(metadata=(("common", "x"),)), b"", metadata=sent)
    pair.move()
    (call,) = of_kind(pair.of_server(), events.CALL)
    assert set(call[3]) >= {("common", "x"), *sent}
    pair.server.respond(1, b"", sent)
    pair.move()
    (answer,) = pair.of_client()
    assert answer[:3] == (events.ANSWER, 1, 0)
    # Values of one name keep their order; names may be grouped.
    by_name = itemgetter(0)
    assert sorted(answer[4], key=by_name) == sorted(sent, key=by_name)
    for found in (call[3], answer[4]):
        assert [value for name, value in found if name == "twice"] == ["one", "two"]


def test_a_server_keeps_only_the_headers_that_it_names(paired: Factory) -> None:
    pair = paired(kept=frozenset({"wanted", "wanted-bin"}))
    sent = (("other", "x"), ("wanted", "y"), ("wanted-bin", b"z"))
    pair.client.request(pair.head(), b"", metadata=sent)
    pair.move()
    (call,) = of_kind(pair.of_server(), events.CALL)
    assert set(call[3]) == {("wanted", "y"), ("wanted-bin", b"z")}


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_metadata_that_http2_forbids_is_not_sent(paired: Factory, value: str) -> None:
    pair = paired()
    pair.client.request(pair.head(), b"")
    pair.move()
    pair.of_server()
    bad = (("name", value),)
    attempts: list[Callable[[], object]] = [
        lambda: head(pair.client_by, ONE, bad),
        lambda: pair.client.request(pair.head(), b"", metadata=bad),
        lambda: pair.server.begin(1, bad),
        lambda: pair.server.respond(1, b"", bad),
        lambda: pair.server.finish(1, 0, "", bad),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="name"):
            attempt()
    pair.move()
    assert pair.of_server() == pair.of_client() == []
    pair.server.respond(1, b"still there")
    pair.move()
    assert pair.of_client() == [(events.ANSWER, 1, 0, "", (), b"still there")]


@pytest.mark.parametrize("seconds", [0.000_001, 0.5, 60.0, 86_400.0, 1e8])
def test_a_timeout_arrives(paired: Factory, seconds: float) -> None:
    pair = paired()
    pair.client.request(pair.head(), b"", seconds)
    pair.move()
    (call,) = of_kind(pair.of_server(), events.CALL)
    assert call[4] == pytest.approx(seconds, rel=0.01)


def test_long_messages_pass_windows_and_the_bound_of_the_output(paired: Factory) -> None:
    pair = paired()
    content = bytes(range(256)) * (50 << 10)  # 12.5 MiB
    pair.client.request(pair.head(), content)
    assert pair.client.unsent_bytes > 10 << 20
    pair.move()
    (call,) = of_kind(pair.of_server(), events.CALL)
    assert call[5] == content
    assert pair.server.respond(1, content) is False
    pair.move()
    assert of_kind(pair.of_server(), events.ROOM) == [(events.ROOM, 1)]
    (answer,) = of_kind(pair.of_client(), events.ANSWER)
    assert answer[5] == content
    assert pair.server.unsent_bytes == pair.client.unsent_bytes == 0


def test_an_output_is_bounded_and_its_rest_follows(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    sent = pair.client.send(stream, bytes(3 << 20))
    assert sent is False
    sizes: list[int] = []
    found: list[Any] = []
    pieces, made_room = pair.client.output()
    while pieces:
        sizes.append(sum(map(len, pieces)))
        found += made_room
        pieces, made_room = pair.client.output()
    assert max(sizes) < 1.5 * (1 << 20)
    assert sum(sizes) > 3 << 20
    # Nothing arrived: `output` alone has made the room.
    assert found == [(events.ROOM, stream)]


def test_room_follows_when_the_peer_opens_its_window(paired: Factory) -> None:
    pair = paired(Limits(stream_window_bytes=64 << 10))
    stream = pair.opened()
    pair.server.hold(stream)
    assert pair.client.send(stream, bytes(40 << 10)) is True
    assert pair.client.send(stream, bytes(100 << 10)) is False
    pair.move()
    unsent = pair.client.unsent_bytes
    assert 70 << 10 < unsent < 80 << 10
    assert pair.of_client() == []
    pair.server.resume(stream)
    pair.move()
    assert pair.of_client() == [(events.ROOM, stream)]
    assert pair.client.unsent_bytes == 0
    lengths = [len(event[2]) for event in of_kind(pair.of_server(), events.MESSAGE)]
    assert lengths == [40 << 10, 100 << 10]


def test_a_held_stream_blocks_its_sender_and_no_other_stream(paired: Factory) -> None:
    limits = Limits(stream_window_bytes=256 << 10, connection_window_bytes=512 << 10)
    pair = paired(limits)
    held = [pair.opened() for _ in range(5)]
    other = pair.opened()
    for stream in held:
        pair.server.hold(stream)
        # Five times 256 KiB are more than the connection's window.
        assert pair.client.send(stream, bytes(1 << 20)) is False
        pair.move()
    for _ in range(20):
        pair.client.send(other, bytes(100 << 10))
        pair.move()
    messages = of_kind(pair.of_server(), events.MESSAGE)
    assert [event[1] for event in messages] == [other] * 20
    for stream in held:
        pair.server.resume(stream)
    pair.move()
    messages = of_kind(pair.of_server(), events.MESSAGE)
    assert sorted(event[1] for event in messages) == held
    # The same in the other direction.
    for stream in held:
        pair.client.hold(stream)
        assert pair.server.send(stream, bytes(1 << 20)) is False
        pair.move()
    assert of_kind(pair.of_client(), events.MESSAGE) == []
    pair.server.send(other, b"x")
    pair.move()
    assert of_kind(pair.of_client(), events.MESSAGE) == [(events.MESSAGE, other, b"x")]
    for stream in held:
        pair.client.resume(stream)
    pair.move()
    assert len(of_kind(pair.of_client(), events.MESSAGE)) == 5


def test_streams_share_the_connection_in_turns(paired: Factory) -> None:
    pair = paired(Limits(connection_window_bytes=1 << 20))
    streams = [pair.opened() for _ in range(4)]
    for stream in streams:
        pair.client.send(stream, bytes(2 << 20))
    order: list[int] = []
    while len(order) < 4:
        transfer(pair.client, pair.server, pair.at_client, pair.at_server)
        transfer(pair.server, pair.client, pair.at_server, pair.at_client)
        order += [event[1] for event in of_kind(pair.of_server(), events.MESSAGE)]
        if len(order) == 1:
            # The other streams have sent most of their messages too.
            assert pair.client.unsent_bytes < 5 << 20
    assert sorted(order) == streams


@pytest.mark.parametrize("code", [ErrorCode.CANCEL, ErrorCode.NO_ERROR, 4711])
def test_a_reset_of_each_side_arrives(paired: Factory, code: int) -> None:
    pair = paired()
    first, second = pair.opened(), pair.opened()
    pair.client.send(first, bytes(8 << 20))
    pair.client.reset(first, code)
    pair.server.reset(second, code)
    pair.move()
    assert pair.client.unsent_bytes == 0
    (at_server,) = of_kind(pair.of_server(), events.RESET)
    (at_client,) = of_kind(pair.of_client(), events.RESET)
    assert at_server[1:3] == (first, code)
    assert at_client[1:3] == (second, code)
    assert at_server[3]
    assert at_client[3]
    assert pair.client.open_streams == pair.server.open_streams == 0


def test_a_reset_behind_the_end_of_both_sides_is_late(paired: Factory) -> None:
    pair = paired()
    streams = [pair.client.request(pair.head(), b"") for _ in range(3)]
    pair.move()
    pair.of_server()
    for stream in streams:
        pair.server.respond(stream, b"answer")
    # The client cancels a call while the answer is on its way.
    pair.client.reset(streams[1], ErrorCode.CANCEL)
    pair.move()
    assert pair.of_server() == [(events.LATE_RESET, streams[1])]
    answered = [event[1] for event in of_kind(pair.of_client(), events.ANSWER)]
    assert answered == [streams[0], streams[2]]


def test_a_ping_is_acknowledged_and_a_second_one_waits(paired: Factory) -> None:
    pair = paired()
    pair.client.ping()
    pair.client.ping()
    pair.move()
    assert pair.of_client() == [(events.PONG,)] * 2
    pair.server.ping()
    pair.move()
    assert pair.of_server() == [(events.PONG,)]
    assert pair.of_client() == []


def test_a_server_leaves_in_two_steps(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    pair.server.leave(False)
    # On its way when the client learns it.
    late = pair.client.request(pair.head(), b"late")
    pair.move()
    assert of_kind(pair.of_server(), events.CALL)[0][1] == late
    assert of_kind(pair.at_client, events.GOAWAY)[0][1:3] == ((1 << 31) - 1, 0)
    assert pair.client.request(pair.head(), b"refused") == 0
    pair.server.leave(True)
    pair.move()
    # The second GOAWAY may come as soon as the client is known to have received the first.
    found = pair.of_client()
    assert [event[1:3] for event in of_kind(found, events.GOAWAY)][1:] == [(late, 0)]
    assert of_kind(found, events.RESET) == []
    # Open calls go on.
    pair.server.respond(late, b"answer")
    pair.client.send(stream, b"more")
    pair.move()
    assert of_kind(pair.of_server(), events.MESSAGE) == [(events.MESSAGE, stream, b"more")]
    pair.server.finish(stream, 0, "")
    pair.move()
    kinds = [event[0] for event in pair.of_client()]
    assert sorted(kinds) == [events.ANSWER, events.FINISHED]
    assert pair.server.open_streams == 0


def test_a_call_that_crosses_goaway_is_refused(paired: Factory) -> None:
    pair = paired()
    first = pair.opened()
    pair.server.leave(True)
    crossing = pair.client.request(pair.head(), b"crossing")
    assert crossing > first
    pair.move()
    assert of_kind(pair.of_server(), events.CALL) == []
    found = pair.of_client()
    assert of_kind(found, events.GOAWAY)[-1][1:3] == (first, 0)
    (reset,) = of_kind(found, events.RESET)
    assert reset[1:3] == (crossing, ErrorCode.REFUSED_STREAM)
    assert pair.client.open_streams == 1


def test_a_client_opens_no_more_streams_than_the_server_allows(paired: Factory) -> None:
    pair = paired(Limits(streams_max=3))
    assert pair.client.streams_max == 3
    streams = [pair.client.request(pair.head(), b"") for _ in range(4)]
    assert streams[3] == 0
    assert all(streams[:3])
    pair.move()
    pair.server.respond(streams[0], b"")
    pair.move()
    assert pair.client.request(pair.head(), b"") > streams[2]


def test_a_client_that_is_not_ready_makes_no_call(paired: Factory) -> None:
    pair = paired()
    fresh = pair.client_by.ClientSession(Limits())
    assert fresh.streams_max == 0
    assert fresh.request(head(pair.client_by), b"") == 0


def test_close_sends_goaway_with_its_text_and_ends_both_sides(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    pair.server.close(ErrorCode.ENHANCE_YOUR_CALM, "too many resets")
    assert pair.server.open_streams == 0
    pair.move()
    (goaway,) = of_kind(pair.of_client(), events.GOAWAY)
    assert goaway[2:] == (ErrorCode.ENHANCE_YOUR_CALM, "too many resets")
    (broken,) = of_kind(pair.of_server(), events.BROKEN)
    assert broken == (events.BROKEN, ErrorCode.ENHANCE_YOUR_CALM, "too many resets")
    # Nothing has an effect any more.
    pair.server.send(stream, b"x")
    pair.server.finish(stream, 0, "")
    pair.server.ping()
    pair.server.leave(True)
    pair.server.close(0, "")
    assert not any(pair.server.output())
    assert pair.server.receive(b"anything") == []
    assert not pair.server.is_behind


def test_what_was_answered_before_close_is_sent(paired: Factory) -> None:
    pair = paired()
    pair.client.request(pair.head(), b"")
    pair.move()
    pair.server.respond(1, b"answer")
    pair.server.close(ErrorCode.NO_ERROR, "")
    pair.move()
    kinds = [event[0] for event in pair.of_client()]
    assert kinds == [events.ANSWER, events.GOAWAY]


def test_a_session_is_idle_until_it_has_something_to_send(paired: Factory) -> None:
    pair = paired()
    stream = pair.opened()
    assert pair.client.is_idle
    assert pair.server.is_idle
    pair.client.send(stream, b"request")
    assert not pair.client.is_idle
    (raw,) = map(bytes, pair.client.output()[0])
    assert pair.client.is_idle
    pair.server.receive(raw)
    assert pair.server.is_idle
    pair.server.ping()
    assert not pair.server.is_idle
    pair.move()
    assert pair.client.is_idle
    assert pair.server.is_idle


def test_a_session_that_keeps_input_for_the_next_turn_is_not_idle(paired: Factory) -> None:
    pair = paired(Limits(turn_calls=1))
    for _ in range(3):
        pair.client.request(pair.head(), b"")
    raw = b"".join(map(bytes, pair.client.output()[0]))
    pair.server.receive(raw)
    assert pair.server.is_behind
    assert not pair.server.is_idle


def test_a_turn_is_bounded_by_calls(paired: Factory) -> None:
    pair = paired(Limits(turn_calls=10))
    for _ in range(35):
        pair.client.request(pair.head(), b"")
    raw = b"".join(map(bytes, pair.client.output()[0]))
    turns = [len(of_kind(pair.server.receive(raw), events.CALL))]
    while pair.server.is_behind:
        turns.append(len(of_kind(pair.server.receive(b""), events.CALL)))
    assert sum(turns) == 35
    assert max(turns) <= 10


def test_a_turn_is_bounded_by_bytes(paired: Factory) -> None:
    pair = paired(Limits(turn_bytes=32 << 10))
    stream = pair.opened()
    for _ in range(200):
        pair.client.send(stream, bytes(1000))
    raw = b"".join(map(bytes, pair.client.output()[0]))
    turns = [len(of_kind(pair.server.receive(raw), events.MESSAGE))]
    while pair.server.is_behind:
        turns.append(len(of_kind(pair.server.receive(b""), events.MESSAGE)))
    assert sum(turns) == 200
    # A frame may end behind the turn.
    assert max(turns) <= 2 * 32 + 1


def test_honest_calls_cause_no_waste_of_frames(paired: Factory) -> None:
    pair = paired()
    for _ in range(50):
        stream = pair.client.request(pair.head(), bytes(1000))
        pair.client.ping()
        pair.move()
        pair.server.respond(stream, bytes(100_000))
        pair.move()
    waste = of_kind(pair.at_server, events.WASTE)
    assert sum(event[1] for event in waste) == 0
    assert sum(event[2] for event in waste) == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_one_path_is_asked_once(pair: tuple[Any, Any]) -> None:
    server_by, client_by = pair
    asked: list[str] = []

    def route_of(path: str) -> Any:
        asked.append(path)
        return (path, False) if path == ONE else None

    server, client = server_by.ServerSession(route_of, Limits()), client_by.ClientSession(Limits())
    at_server: list[Any] = []
    at_client: list[Any] = []
    for path in ("", ONE, ONE, MANY, MANY):
        if path:
            client.request(head(client_by, path), b"")
        for _ in range(3):
            transfer(client, server, at_client, at_server)
            transfer(server, client, at_server, at_client)
    assert asked == [ONE, MANY, MANY]
    assert [event[2] for event in of_kind(at_server, events.CALL)] == [ONE, ONE]
    statuses = [event[2] for event in of_kind(at_client, events.ANSWER)]
    assert statuses == [12, 12]
