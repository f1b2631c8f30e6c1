"""DATA frames with a whole message each, which are taken in a loop of their own.

Whatever comes, and however it is cut, a connection does what it does without that loop.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from rockoon_core.http2 import frames
from rockoon_core.http2.connection import Http2Connection
from rockoon_core.http2.data_frames import GIVEN_BACK_AT
from rockoon_core.http2.frames import ErrorCode
from rockoon_core.http2.headers import Header
from rockoon_core.http2.messages import GIVEN_BACK_BYTES_MIN, MessageRefused, MessageStream, framed
from rockoon_core.http2.sending import OWN_STREAM_WINDOW
from support.seeds import seeds

# Less than what is received at once.
MESSAGE_BYTES_MAX = 250_000
BLOCK = b"\x00\x01a\x01b"
START = frames.PREFACE + frames.settings({})
Act = Callable[["Peer", MessageStream, bytes], bool]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def __getattr__(self, name: str) -> Callable[..., "Wire"]:
        return lambda *_, **__: self

    def write(self, data: bytes) -> None:
        self.written += bytes(data)

    def writelines(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.written += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return 0


class Peer(Http2Connection):
    """A server's side, whose readers take what is there after each read."""

    def __init__(self, *, in_loop: bool, act: Act | None, is_read: bool) -> None:
        super().__init__(MESSAGE_BYTES_MAX, is_server=True, liveness=None)
        self.seen: list[tuple[Any, ...]] = []
        self.all: dict[int, MessageStream] = {}
        self.taken_whole = 0
        self._in_loop, self._act, self._is_read = in_loop, act, is_read
        self.wire = Wire()
        self.connection_made(self.wire)

    def _take_whole(self, end: int) -> int:
        at = super()._take_whole(end) if self._in_loop else 0
        self.taken_whole += at
        return at

    def stream_opened(self, stream_id: int, _: tuple[Header, ...], *, ends: bool) -> None:
        stream = MessageStream(self, stream_id, MESSAGE_BYTES_MAX)
        self.streams[stream_id] = self.all[stream_id] = stream
        act = self._act
        if act is not None:
            stream._waiting = asyncio.get_running_loop().create_future()

            def taker(message: bytes) -> bool:
                self.seen.append((stream_id, "offered", message, self.comes_alone))
                return act(self, stream, message)

            stream.taker = taker
        if ends:
            stream.peer_ended()

    def more_headers(self, stream: MessageStream, _: tuple[Header, ...], *, ends: bool) -> None:
        self.seen.append((stream.id, "headers", ends))
        if ends:
            stream.peer_ended()

    def message_refused(self, stream: MessageStream, refusal: MessageRefused) -> None:
        self.seen.append((stream.id, "refused", refusal.status))
        self.reset(stream, ErrorCode.CANCEL)

    def feed(self, read: bytes) -> None:
        while read and not self.is_broken:
            buffer = self.get_buffer(-1)
            count = min(len(buffer), len(read))
            buffer[:count] = read[:count]
            buffer = memoryview(b"")
            self.buffer_updated(count)
            read = read[count:]
        for stream in self.all.values() if self._is_read else ():
            while (message := stream.taken()) is not None:
                self.seen.append((stream.id, "read", message))

    def state(self) -> tuple[Any, ...]:
        streams = [
            (number, each.owed_bytes, each.is_closed, each.has_ended)
            for number, each in self.all.items()
        ]
        windows = (self._owed_bytes, self._rest, self._data_left)
        return self.seen, self.wire.written, windows, streams, self.is_broken, sorted(self.streams)


def both(reads: Sequence[bytes], act: Act | None = None, *, is_read: bool = True) -> Peer:
    """What a connection has come to, the same with the loop and without it."""
    with_loop, without = (
        Peer(in_loop=in_loop, act=act, is_read=is_read) for in_loop in (True, False)
    )
    for read in reads:
        with_loop.feed(read)
        without.feed(read)
        assert with_loop.state() == without.state()
    return with_loop


def opened(*ids: int) -> bytes:
    block = (frames.frame(frames.HEADERS, frames.END_HEADERS, each, BLOCK) for each in ids)
    return START + b"".join(block)


def data(message: bytes, stream_id: int = 1, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, message)


async def test_messages_that_come_whole_are_taken_in_the_loop() -> None:
    peer = both([opened(1, 3), data(framed(b"a")) + data(framed(b""), 3) + data(framed(b"b"))])
    assert [each for each in peer.seen if each[0] == 1] == [(1, "read", b"a"), (1, "read", b"b")]
    assert peer.taken_whole == 3 * (frames.HEAD_BYTES + 5) + 2


WINDOW = frames.window_update(1, 9)


@pytest.mark.parametrize(
    ("read", "alone"),
    [
        pytest.param(data(framed(b"a")), [True], id="alone"),
        pytest.param(data(framed(b"a")) + WINDOW, [True], id="a window behind it"),
        pytest.param(WINDOW + data(framed(b"a")), [True], id="a window before it"),
        pytest.param(data(framed(b"a")) + data(framed(b"b")), [False, False], id="two"),
        pytest.param(2 * (data(framed(b"a")) + WINDOW), [True, False], id="two with windows"),
        pytest.param(2 * (WINDOW + data(framed(b"a"))), [True, False], id="windows with two"),
        pytest.param(data(framed(b"a")) + data(framed(b"b"))[:2], [False], id="more to come"),
        pytest.param(WINDOW + 2 * data(framed(b"a")), [False, False], id="two behind a window"),
        pytest.param(data(2 * framed(b"a")), [False, False], id="two in a frame"),
        pytest.param(data(b"\1" + framed(b"p") + b"\0", flags=frames.PADDED), [False], id="padded"),
    ],
)
async def test_who_is_told_of_a_message_can_see_whether_others_came_with_it(
    read: bytes, alone: list[bool]
) -> None:
    peer = both([opened(1), read], lambda *_: True)
    assert [each[3] for each in peer.seen] == alone


# Each the first thing of its own read, where the loop looks at it.
ODD = {
    "what goes on a prefix": [data(framed(b"x" * 20)[:3]), data(framed(b"y" * 8))],
    "what goes on a message": [data(framed(b"x" * 40)[:9]), data(framed(b"y" * 8))],
    "behind the end": [data(framed(b"last"), flags=frames.END_STREAM), data(framed(b"more"))],
    "the end": [data(framed(b"last"), flags=frames.END_STREAM)],
    "compressed": [data(b"\1" + framed(b"z")[1:])],
    "too long": [data(framed(bytes(MESSAGE_BYTES_MAX + 1)[: 200 << 10])) * 2],
    "longer than it may be": [data(framed(bytes(MESSAGE_BYTES_MAX + 1)))],
    "what looks like a frame within one": [
        data(framed(b"head" + data(framed(b"inner"), 3)))[: -len(data(framed(b"inner"), 3))],
        data(framed(b"inner"), 3),
    ],
    "padded": [data(b"\3" + framed(b"p") + bytes(3), flags=frames.PADDED)],
    "a frame with two": [data(2 * framed(b"two"))],
    "within headers": [frames.frame(frames.HEADERS, 0, 5, BLOCK), data(framed(b"x"))],
    "of no stream": [data(framed(b"x"), 0)],
    "of a stream to come": [data(framed(b"x"), 7)],
    "of a stream that was reset": [frames.rst_stream(1, 8), data(framed(b"x"))],
    "with the reserved bit": [data(framed(b"x"), 1 | 1 << 31)],
    "with unknown flags": [data(framed(b"x"), flags=0x20)],
    "empty": [data(b""), data(framed(b""))],
}  # fmt: skip


@pytest.mark.parametrize("reads", ODD.values(), ids=ODD.keys())
async def test_what_is_odd_is_handled_as_ever(reads: list[bytes]) -> None:
    both([opened(1, 3), data(framed(b"first")), *reads, data(framed(b"after"))])


@pytest.mark.parametrize("is_read", [True, False])
async def test_windows_are_given_back_and_kept(is_read: bool) -> None:
    message = data(framed(bytes(100_000)))
    count = 2 * OWN_STREAM_WINDOW // 100_000
    peer = both([opened(1), *[message] * count], is_read=is_read)
    if is_read:
        assert peer._owed_bytes < GIVEN_BACK_AT
        assert peer.all[1].owed_bytes < GIVEN_BACK_BYTES_MIN
        assert not peer.is_broken
        assert not peer.all[1].is_closed
    else:
        assert peer.all[1].is_closed


async def test_who_reads_nothing_of_many_streams_does_not_hold_up_the_connection() -> None:
    ids = range(1, 40, 2)
    peer = both([opened(*ids), *(data(framed(bytes(250_000)), each) for each in 5 * [*ids])],
                is_read=False)  # fmt: skip
    assert not peer.is_broken


def _refuses(_: Peer, __: MessageStream, message: bytes) -> bool:
    return len(message) % 2 == 0


def _resets(peer: Peer, stream: MessageStream, _: bytes) -> bool:
    peer.reset(stream, ErrorCode.CANCEL)
    return True


def _resets_others(peer: Peer, stream: MessageStream, _: bytes) -> bool:
    for other in [each for each in peer.streams.values() if each is not stream]:
        peer.reset(other, ErrorCode.CANCEL)
    return True


def _holds(_: Peer, stream: MessageStream, __: bytes) -> bool:
    stream.hold()
    return True


def _answers(_: Peer, stream: MessageStream, message: bytes) -> bool:
    stream.queue_message(message[:5], last=len(message) > 100)
    return True


def _leaves(peer: Peer, _: MessageStream, __: bytes) -> bool:
    peer.leave()
    return True


@pytest.mark.parametrize("act", [_refuses, _resets, _resets_others, _holds, _answers, _leaves])
async def test_a_taker_may_do_what_it_likes_with_more_to_come(act: Act) -> None:
    several = b"".join(data(framed(bytes(20 * n)), 1 + 2 * (n % 3)) for n in range(9))
    both([opened(1, 3, 5), several, several])


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(20))
async def test_any_frames_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    ids = [1, 3, 5]
    for _ in range(10):
        whole, oddness = [opened(*ids)], rng.choice([0, 0.1, 0.4])
        for _ in range(rng.randrange(5, 60)):
            stream_id, message = rng.choice(ids), framed(rng.randbytes(rng.choice([0, 9, 400])))
            if rng.random() > oddness:
                whole.append(data(message, stream_id))
                continue
            cut = rng.randrange(len(message) + 1)
            whole += rng.choice([
                [data(message[:cut], stream_id), data(message[cut:], stream_id)],
                [data(message[:cut], stream_id)],
                [data(message, stream_id, frames.END_STREAM)],
                [data(b"\1" + message[1:], stream_id)],
                [frames.window_update(rng.choice([0, stream_id]), 1000)],
                [frames.frame(frames.PING, 0, 0, bytes(8))],
                [frames.rst_stream(stream_id, 8)],
                rng.choice(list(ODD.values())),
            ])  # fmt: skip
        sent = b"".join(whole)
        ends = [0, *(len(b"".join(whole[: n + 1])) for n in range(len(whole)))]
        anywhere = [rng.randrange(len(sent)) for _ in range(rng.choice([0, 3, 40]))]
        cuts = sorted({0, len(sent), *anywhere, *rng.sample(ends, len(ends) // 2)})
        act = rng.choice([None, _refuses, _resets, _resets_others, _answers])
        reads = [sent[a:b] for a, b in pairwise(cuts)]
        both(reads, act, is_read=rng.random() < 0.7)


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(10))
async def test_what_is_sent_keeps_to_the_windows_whole_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    peer = Peer(in_loop=True, act=None, is_read=True)
    window = 3000
    peer.feed(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window}))
    opening = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK)
    peer.feed(opening + frames.frame(frames.HEADERS, frames.END_HEADERS, 3, BLOCK))
    peer.wire.written = b""
    # Of the connection, and of each stream.
    room = {0: frames.WINDOW_DEFAULT, 1: window, 3: window}
    sent, came = {1: b"", 3: b""}, {1: b"", 3: b""}

    def give(stream_id: int, count: int) -> None:
        room[stream_id] += count
        peer.feed(frames.window_update(stream_id, count))

    def look() -> None:
        wire, at = peer.wire.written, 0
        while at < len(wire):
            word, _, stream_id = frames.HEAD.unpack_from(wire, at)
            at += frames.HEAD_BYTES + (length := word >> 8)
            if word & 0xFF == frames.DATA:
                came[stream_id] += wire[at - length : at]
                for each in (0, stream_id):
                    room[each] -= length
                    assert room[each] >= 0
        peer.wire.written = b""

    for _ in range(300):
        stream_id = rng.choice((1, 3))
        if rng.random() < 0.6:
            message = rng.randbytes(rng.choice([0, 1, 100, 2990, 2995, 2996, 16_379, 20_000]))
            peer.all[stream_id].queue_message(message)
            sent[stream_id] += framed(message)
        elif rng.random() < 0.3:
            # Then windows may have room for more while something waits.
            peer.pause_writing()
        elif rng.random() < 0.3:
            peer.resume_writing()
        else:
            give(rng.choice((0, stream_id)), rng.choice([1, 5000, 40_000]))
        look()
    peer.resume_writing()
    for each in room:
        give(each, 1 << 24)
    look()
    assert came == sent
    closed = peer.all[1]
    peer.reset(closed, ErrorCode.CANCEL)
    peer.wire.written = b""
    closed.queue_message(b"nobody is there")
    assert not peer.wire.written


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_stream_takes_what_its_window_has_room_for_and_no_byte_more(beyond: int) -> None:
    peer, piece = Peer(in_loop=True, act=None, is_read=False), data(framed(bytes(100_000)))
    peer.feed(opened(1))
    stream = peer.all[1]
    while stream.keeps_up or stream.owed_bytes + len(piece) < OWN_STREAM_WINDOW:
        peer.feed(piece)
    assert not stream.is_closed
    peer.feed(data(framed(bytes(OWN_STREAM_WINDOW - stream.owed_bytes - 5 + beyond))))
    assert stream.is_closed == bool(beyond)


async def test_windows_of_what_a_taker_deals_with_are_given_back() -> None:
    count = 3 * OWN_STREAM_WINDOW // 100_000
    peer = both([opened(1), *[data(framed(bytes(100_000)))] * count], lambda *_: True)
    assert not peer.all[1].is_closed
    assert peer.all[1].owed_bytes < GIVEN_BACK_BYTES_MIN + 100_005
