"""HTTP/2 sessions for tests: two connected ones, or one and a raw peer; of both implementations."""

from collections.abc import Callable, Container, Sequence
from typing import Any

import pytest
from hpack import Decoder
from hyperframe.frame import Frame

from rockoon_rpc import fallback
from rockoon_rpc import session as events
from rockoon_rpc.implementation import compiled
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import Event, Route
from support import http2_frames as wire

_compiled = compiled()
IMPLEMENTATIONS = (
    pytest.param(fallback, id="fallback"),
    pytest.param(
        _compiled,
        id="compiled",
        marks=pytest.mark.skipif(_compiled is None, reason="the kernel has no http2"),
    ),
)

ONE, MANY = "/test.Service/One", "/test.Service/Many"
ROUTES: dict[str, Route] = {ONE: ("one", False), MANY: ("many", True)}


def head(implementation: Any, path: str = ONE, metadata: events.Metadata = ()) -> Any:
    return implementation.request_head("http", "127.0.0.1:1", path, metadata)


def of_kind(found: Sequence[Event], *kinds: int) -> list[Event]:
    return [event for event in found if event[0] in kinds]


class Pair:
    """A client's session and a server's session, connected.

    Args:
        server_by, client_by: their implementations.
        cut: splits the bytes of one transfer into pieces; None: one piece.

    Attributes:
        at_server, at_client: events since the last read.
    """

    def __init__(
        self,
        server_by: Any,
        client_by: Any,
        limits: Limits | None = None,
        *,
        client_limits: Limits | None = None,
        kept: Container[str] | None = None,
        cut: Callable[[bytes], list[bytes]] | None = None,
    ) -> None:
        limits = limits or Limits()
        self.server_by, self.client_by = server_by, client_by
        self.server = server_by.ServerSession(ROUTES.get, limits, kept)
        self.client = client_by.ClientSession(client_limits or limits)
        self._cut = cut
        self.at_server: list[Event] = []
        self.at_client: list[Event] = []
        self.move()
        assert self.of_server() == [(events.READY,)]
        assert self.of_client() == [(events.READY,)]

    def move(self) -> None:
        """Move bytes between both until none is left."""
        moves = True
        while moves:
            moves = self.move_once()

    def move_once(self) -> bool:
        """Move the output of each side; return whether there was any."""
        sent = transfer(self.client, self.server, self.at_client, self.at_server, self._cut)
        got = transfer(self.server, self.client, self.at_server, self.at_client, self._cut)
        return bool(sent or got)

    def of_server(self) -> list[Event]:
        """Return unread events of the server, without WASTE."""
        found, self.at_server[:] = list(self.at_server), []
        return [event for event in found if event[0] != events.WASTE]

    def of_client(self) -> list[Event]:
        found, self.at_client[:] = list(self.at_client), []
        return [event for event in found if event[0] != events.WASTE]

    def head(self, path: str = ONE, metadata: events.Metadata = ()) -> Any:
        return head(self.client_by, path, metadata)

    def opened(self, **arguments: Any) -> int:
        """Begin a call of MANY; return its stream when the server has it."""
        stream = self.client.request(self.head(MANY), None, one_answer=False, **arguments)
        self.move()
        assert of_kind(self.of_server(), events.OPENED)[0][1] == stream
        return int(stream)


def transfer(
    source: Any,
    target: Any,
    at_source: list[Event],
    at_target: list[Event],
    cut: Callable[[bytes], list[bytes]] | None = None,
) -> int:
    """Move the output of one session into another; return the number of bytes."""
    was_idle = source.is_idle
    output, made_room = source.output()
    assert not (was_idle and (output or made_room)), "an idle session has no output"
    pieces = [bytes(piece) for piece in output]
    at_source += made_room
    if cut is not None:
        pieces = [part for piece in pieces for part in cut(piece)]
    for piece in pieces:
        at_target += received(target, piece)
    return sum(map(len, pieces))


def received(session: Any, data: bytes) -> list[Event]:
    """Let a session handle bytes, in as many turns as it needs; return the events."""
    found = list(session.receive(data))
    while session.is_behind:
        found += session.receive(b"")
    return found


class FrameReader:
    """Reads the frames that a session sends, and decodes their header blocks.

    Args:
        awaits_preface: the session is a client's.
    """

    def __init__(self, *, awaits_preface: bool = False) -> None:
        self._rest = b""
        self._preface = wire.PREFACE if awaits_preface else b""
        self._decoder = Decoder(1 << 20)
        self._blocks: list[bytes] = []

    def read(self, raw: bytes) -> list[Any]:
        """Return frames of hyperframe; those with a header block have `pairs`, its headers."""
        self._rest += raw
        if self._preface:
            assert self._rest.startswith(self._preface)
            self._rest, self._preface = self._rest[len(self._preface) :], b""
        found: list[Any] = []
        while len(self._rest) >= 9:
            length = int.from_bytes(self._rest[:3])
            if len(self._rest) < 9 + length:
                break
            parsed: Any = Frame.parse_frame_header(memoryview(self._rest[:9]))[0]
            parsed.parse_body(memoryview(self._rest[9 : 9 + length]))
            self._rest = self._rest[9 + length :]
            if parsed.type in (wire.HEADERS, wire.CONTINUATION):
                self._blocks.append(parsed.data)
                parsed.pairs = ()
                if "END_HEADERS" in parsed.flags:
                    parsed.pairs = tuple(self._decoder.decode(b"".join(self._blocks)))
                    self._blocks = []
            found.append(parsed)
        return found


class RawPeer:
    """A raw peer of a session.

    Args:
        preface: the first bytes; None makes the session ready.

    Attributes:
        frames: frames that the session has sent.
        events: events of the session.
    """

    honest_preface = wire.settings() + wire.settings_ack()

    def __init__(self, session: Any, *, is_server: bool, preface: bytes | None) -> None:
        self.session = session
        self._reader = FrameReader(awaits_preface=is_server)
        self.events: list[Event] = []
        self.frames: list[Any] = []
        self.send(self.honest_preface if preface is None else preface)
        if preface is None:
            assert (events.READY,) in self.events
            self.events.clear()
            self.frames.clear()

    def send(self, *raw: bytes) -> list[Event]:
        """Send bytes; return the events that they cause, without WASTE."""
        found: list[Event] = []
        for each in raw:
            found += received(self.session, each)
        self.events += found
        self.read()
        return [event for event in found if event[0] != events.WASTE]

    def read(self) -> list[Any]:
        """Read the session's output; return the new frames."""
        new: list[Any] = []
        pieces, made_room = self.session.output()
        while pieces:
            new += self._reader.read(b"".join(map(bytes, pieces)))
            self.events += made_room
            pieces, made_room = self.session.output()
        self.frames += new
        return new

    def of_stream(self, stream: int, kind: int) -> list[Any]:
        """Return frames of a kind that the session has sent on a stream."""
        return [each for each in self.frames if each.stream_id == stream and each.type == kind]

    def reset_code(self, stream: int) -> int | None:
        """Return the code with which the session has reset a stream."""
        found = self.of_stream(stream, wire.RST_STREAM)
        return int(found[0].error_code) if found else None

    def goaway_code(self) -> int | None:
        """Return the code of the session's last GOAWAY."""
        found = self.of_stream(0, wire.GOAWAY)
        return int(found[-1].error_code) if found else None

    def content(self, stream: int) -> bytes:
        """Return the bytes of DATA that the session has sent on a stream."""
        return b"".join(each.data for each in self.of_stream(stream, wire.DATA))


class RawClient(RawPeer):
    """A raw client and a server's session."""

    honest_preface = wire.PREFACE + RawPeer.honest_preface

    def __init__(
        self,
        implementation: Any,
        limits: Limits | None = None,
        kept: Container[str] | None = None,
        *,
        preface: bytes | None = None,
    ) -> None:
        session = implementation.ServerSession(ROUTES.get, limits or Limits(), kept)
        super().__init__(session, is_server=False, preface=preface)

    def pairs(self, stream: int) -> dict[str, str]:
        """Return the headers and trailers that the session has sent on a stream."""
        frames = self.of_stream(stream, wire.HEADERS)
        return dict(pair for each in frames for pair in each.pairs)

    def status(self, stream: int) -> int | None:
        """Return the status of gRPC that the session has sent."""
        value = self.pairs(stream).get("grpc-status")
        return None if value is None else int(value)


def request_pairs(
    path: str = ONE,
    extra: wire.Pairs = (),
    content_type: str | None = "application/grpc",
    method: str = "POST",
) -> list[tuple[str | bytes, str | bytes]]:
    typed = [] if content_type is None else [("content-type", content_type)]
    return [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1:1"),
        ("te", "trailers"),
        *typed,
        *extra,
    ]


def request(stream: int, *, end: bool = False, **fields: Any) -> bytes:
    """Return HEADERS of a call; fields as in `request_pairs`."""
    return wire.headers(stream, request_pairs(**fields), end=end)


def whole_request(stream: int, content: bytes = b"request", **fields: Any) -> bytes:
    """Return all frames of a call with one request."""
    return request(stream, **fields) + wire.data(stream, wire.framed(content), end=True)


class RawServer(RawPeer):
    """A raw server and a client's session."""

    answer_pairs = ((":status", "200"), ("content-type", "application/grpc"))

    def __init__(
        self, implementation: Any, limits: Limits | None = None, *, preface: bytes | None = None
    ) -> None:
        self.implementation = implementation
        session = implementation.ClientSession(limits or Limits())
        super().__init__(session, is_server=True, preface=preface)

    def call(self, message: bytes | None = b"request", *, one_answer: bool = True) -> int:
        """Begin a call; return its stream."""
        path = MANY if message is None else ONE
        stream = self.session.request(
            head(self.implementation, path), message, one_answer=one_answer
        )
        self.read()
        return int(stream)

    def answer(self, stream: int, *, end: bool = False, extra: wire.Pairs = ()) -> bytes:
        """Return HEADERS of a reply."""
        return wire.headers(stream, [*self.answer_pairs, *extra], end=end)
