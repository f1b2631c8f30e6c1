"""The compiled sessions of HTTP/2: long messages without copies, turns, faults of h2."""

import gc
import weakref
from typing import Any

import pytest

from rockoon_format import kernel
from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits

http2: Any = getattr(kernel.native, "http2", None)
pytestmark = pytest.mark.skipif(http2 is None, reason="no compiled kernel")

ONE, MANY = "/test.Service/One", "/test.Service/Many"
ROUTES = {ONE: ("one", False), MANY: ("many", True)}
MIB = 1 << 20


class Pair:
    """A client's session and a server's, connected."""

    def __init__(self, limits: Limits) -> None:
        self.client = http2.ClientSession(limits)
        self.server = http2.ServerSession(ROUTES.get, limits, None)
        self.of_client: list[tuple[Any, ...]] = []
        self.of_server: list[tuple[Any, ...]] = []
        self.move()

    def move(self) -> None:
        """Transfer bytes until there are none."""
        is_moving = True
        while is_moving:
            is_moving = self.to_server()
            is_moving |= self.to_client()

    def to_server(self) -> bool:
        pieces, made_room = self.client.output()
        raw = b"".join(pieces)
        self.of_server += self.server.receive(raw)
        self.of_client += made_room
        return bool(raw) or self.server.is_behind

    def to_client(self) -> bool:
        pieces, made_room = self.server.output()
        raw = b"".join(pieces)
        self.of_client += self.client.receive(raw)
        self.of_server += made_room
        return bool(raw) or self.client.is_behind

    def opened(self, path: str = MANY, message: bytes | None = None) -> int:
        head = http2.request_head("http", "localhost", path)
        stream: int = self.client.request(head, message, one_answer=message is not None)
        assert stream
        self.move()
        return stream


def messages(found: list[tuple[Any, ...]]) -> list[bytes]:
    return [event[2] for event in found if event[0] == events.MESSAGE]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_long_message_is_put_out_as_parts_of_the_object(in_pieces: bool) -> None:
    pair = Pair(Limits())
    stream = pair.opened()
    body = bytes(range(256)) * (MIB // 512)
    pair.server.send(stream, [b"front", body, b"back"] if in_pieces else body)
    pieces, _ = pair.server.output()
    parts = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert all(part.obj is body for part in parts)
    assert sum(map(len, parts)) > 0.9 * len(body)
    pair.of_client += pair.client.receive(b"".join(pieces))
    pair.move()
    assert messages(pair.of_client) == [b"front" + body + b"back" if in_pieces else body]
    assert pair.server.unsent_bytes == 0


def test_one_object_on_several_streams_is_not_copied() -> None:
    pair = Pair(Limits())
    streams = [pair.opened() for _ in range(3)]
    body = bytes(100_000)
    for stream in streams:
        pair.server.send(stream, body)
    pair.server.reset(streams[0], events.ErrorCode.CANCEL)
    pieces, _ = pair.server.output()
    assert {id(piece.obj) for piece in pieces if isinstance(piece, memoryview)} == {id(body)}
    pair.of_client += pair.client.receive(b"".join(pieces))
    pair.move()
    assert messages(pair.of_client)[-2:] == [body, body]


def test_short_messages_leave_in_one_piece() -> None:
    pair = Pair(Limits())
    stream = pair.opened()
    for _ in range(100):
        assert pair.server.send(stream, b"short")
    (piece,), _ = pair.server.output()
    assert isinstance(piece, bytes)
    pair.client.receive(piece)


def test_messages_of_a_turn_are_bounded() -> None:
    pair = Pair(Limits())
    stream = pair.opened()
    pair.client.send(stream, b"\0\0\0\0\1x" * 10_000, True)
    raw = b"".join(pair.client.output()[0])
    turns = [len(messages(pair.server.receive(raw)))]
    while pair.server.is_behind:
        turns.append(len(messages(pair.server.receive(b""))))
    assert sum(turns) == 10_000
    assert max(turns) <= 1_000


def test_a_turn_that_is_cut_keeps_the_rest() -> None:
    pair = Pair(Limits(turn_bytes=1_000))
    stream = pair.opened()
    pair.client.send(stream, bytes(10_000))
    turns = 0
    for piece in pair.client.output()[0]:
        pair.of_server += pair.server.receive(piece)
    while pair.server.is_behind:
        assert messages(pair.of_server) == []
        pair.of_server += pair.server.receive(b"")
        turns += 1
    assert turns >= 9
    assert messages(pair.of_server) == [bytes(10_000)]


def test_a_reset_answer_that_waits_for_windows_frees_its_stream() -> None:
    pair = Pair(Limits(streams_max=1, stream_window_bytes=64 << 10))
    stream = pair.opened()
    pair.client.hold(stream)
    assert not pair.server.respond(stream, bytes(MIB))
    pair.to_client()
    # The client has not ended its requests, so h2 will reset the stream itself.
    pair.client.reset(stream, events.ErrorCode.CANCEL)
    pair.move()
    assert pair.server.open_streams == pair.server.unsent_bytes == 0
    pair.opened(ONE, b"next")
    assert pair.of_server[-1][0] == events.CALL


def test_output_that_is_not_taken_is_bounded() -> None:
    pair = Pair(Limits(stream_window_bytes=16 * MIB))
    stream = pair.opened()
    for _ in range(10):
        pair.server.send(stream, bytes(MIB))
    sizes = []
    while pieces := pair.server.output()[0]:
        sizes.append(sum(map(len, pieces)))
        pair.of_client += pair.client.receive(b"".join(pieces))
    assert max(sizes) < 1.5 * MIB
    pair.move()
    assert messages(pair.of_client) == [bytes(MIB)] * 10


def test_a_session_is_freed_with_its_owner() -> None:
    class Owner:
        def __init__(self) -> None:
            self.session = http2.ServerSession(self.route_of, Limits(), None)

        def route_of(self, path: str) -> tuple[Any, bool] | None:
            return ROUTES.get(path)

    owner = weakref.ref(Owner())
    gc.collect()
    assert owner() is None


def test_a_failing_route_is_no_method(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", failures.append)
    pair = Pair(Limits())

    def route_of(path: str) -> None:
        raise ValueError(path)

    pair.server = http2.ServerSession(route_of, Limits(), None)
    pair.client = http2.ClientSession(Limits())
    pair.move()
    pair.opened(ONE, b"")
    assert pair.of_client[-1][:3] == (events.ANSWER, 1, 12)
    assert failures[0].exc_type is ValueError
