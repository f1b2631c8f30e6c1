"""Two connected sessions under random calls, cuts, holds and resets: messages arrive in order."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode, Event
from support.seeds import seeds
from support.session_pairs import IMPLEMENTATIONS, MANY, ONE, ROUTES, head

STEPS = 600
LENGTHS = (0, 1, 100, 100, 3_000, 16_384, 70_000, 200_000)
# The limit of a transport's buffer.
PIPE_BYTES_MAX = 256 << 10
LIMITS = Limits(
    streams_max=12,
    stream_window_bytes=80 << 10,
    connection_window_bytes=200 << 10,
    frame_bytes_max=16 << 10,
    turn_calls=3,
)


@dataclass
class Side:
    """One session, its transport, and messages by stream."""

    session: Any
    pipe: bytearray = field(default_factory=bytearray)
    sent: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    got: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    awaits_room: set[int] = field(default_factory=set)
    # Calls that were begun with their request: ROOM may follow, and says nothing.
    requested: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    # Streams on which this side sends, and those that are over.
    open: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    # Streams that a side has reset: their messages need not arrive.
    was_reset: set[int] = field(default_factory=set)
    # Streams on which the other side sends no more.
    ended: set[int] = field(default_factory=set)

    def send(self, stream: int, message: bytes, cut: int) -> None:
        """Send a message in two pieces."""
        self.sent[stream].append(message)
        pieces = [message[:cut], message[cut:]]
        self.note_room(stream, self.session.send(stream, pieces))

    def note_room(self, stream: int, is_sent: bool) -> None:
        if is_sent:
            assert stream not in self.awaits_room
        else:
            self.awaits_room.add(stream)

    def end(self, stream: int, *, by_reset: bool = False) -> None:
        self.open.discard(stream)
        self.held.discard(stream)
        self.awaits_room.discard(stream)
        self.over.add(stream)
        if by_reset:
            self.was_reset.add(stream)

    def handle(self, found: list[Event]) -> None:
        for event in found:
            kind, stream = event[0], event[1] if len(event) > 1 else 0
            if kind == events.MESSAGE:
                assert stream not in self.was_reset
                self.got[stream].append(event[2])
            elif kind == events.ROOM:
                assert stream in self.awaits_room | self.requested
                self.awaits_room.discard(stream)
            elif kind == events.RESET:
                self.end(stream, by_reset=True)
            elif kind == events.OPENED:
                self.open.add(stream)
            elif kind == events.CALL:
                self.got[stream].append(event[5])
                self.open.add(stream)
                self.ended.add(stream)
            elif kind == events.ENDED:
                self.ended.add(stream)
            elif kind == events.LATE_RESET:
                self.was_reset.add(stream)
            elif kind == events.ANSWER:
                assert event[2] == 0, event
                self.got[stream].append(event[5])
                self.end(stream)
            elif kind == events.FINISHED:
                assert event[2] == 0, event
                self.end(stream)
            else:
                assert kind in (events.READY, events.AWAITED, events.WASTE), event

    def write(self) -> None:
        """Move output to the transport, if it has room."""
        if len(self.pipe) < PIPE_BYTES_MAX:
            pieces, made_room = self.session.output()
            for piece in pieces:
                self.pipe += piece
            self.handle(made_room)

    def read(self, source: "Side", count: int) -> None:
        """Receive bytes of the other side's transport."""
        if self.session.is_behind:
            self.handle(self.session.receive(b""))
        else:
            piece = bytes(source.pipe[:count])
            del source.pipe[:count]
            self.handle(self.session.receive(piece))


class Run:
    """A random run of two sessions."""

    def __init__(self, server_by: Any, client_by: Any, chance: random.Random) -> None:
        self.chance = chance
        self.server = Side(server_by.ServerSession(ROUTES.get, LIMITS))
        self.client = Side(client_by.ClientSession(LIMITS))
        self.sides = (self.server, self.client)
        self.heads = {path: head(client_by, path) for path in (ONE, MANY)}
        self.bytes = chance.randbytes(1 << 19)
        self.unary: set[int] = set()
        # Streams that the server has finished before the client.
        self.early: set[int] = set()

    def message(self) -> bytes:
        at = self.chance.randrange(len(self.bytes) // 2)
        return self.bytes[at : at + self.chance.choice(LENGTHS)]

    def step(self) -> None:
        chance = self.chance
        side = chance.choice(self.sides)
        other = self.server if side is self.client else self.client
        stream = chance.choice(sorted(side.open)) if side.open else 0
        chosen = chance.random()
        if chosen < 0.3:
            side.write()
        elif chosen < 0.6:
            other.read(side, chance.choice((1, 9, 100, 5_000, 1 << 20)))
        elif chosen < 0.72:
            self.begin()
        elif not stream:
            return
        elif chosen < 0.9:
            self.send(side, stream)
        elif chosen < 0.96:
            if stream in side.held:
                side.held.remove(stream)
                side.session.resume(stream)
            else:
                side.held.add(stream)
                side.session.hold(stream)
        elif chosen < 0.97:
            side.end(stream, by_reset=True)
            side.session.reset(stream, ErrorCode.CANCEL)
        else:
            self.finish(side, stream)

    def begin(self) -> None:
        client = self.client
        if self.chance.random() < 0.5:
            message = self.message()
            stream = client.session.request(self.heads[ONE], message)
            if stream:
                client.sent[stream].append(message)
                self.unary.add(stream)
                client.requested.add(stream)
        else:
            stream = client.session.request(self.heads[MANY], None, one_answer=False)
            if stream:
                client.open.add(stream)

    def send(self, side: Side, stream: int) -> None:
        if stream in self.unary:
            self.finish(side, stream)
        elif stream not in side.awaits_room or self.chance.random() < 0.3:
            side.send(stream, self.message(), self.chance.randrange(1_000))

    def finish(self, side: Side, stream: int) -> None:
        """End this side of a stream."""
        side.open.discard(stream)
        if side is self.server and stream not in side.ended:
            self.early.add(stream)
        if side is self.client:
            side.session.end(stream)
        elif stream in self.unary:
            message = self.message()
            side.sent[stream].append(message)
            side.note_room(stream, side.session.respond(stream, message))
        elif not side.session.finish(stream, 0, ""):
            side.awaits_room.add(stream)

    def settle(self) -> None:
        """Move everything until nothing is left to move."""
        moves = True
        while moves:
            for side, other in ((self.client, self.server), (self.server, self.client)):
                side.write()
                while other.session.is_behind or side.pipe:
                    other.read(side, 1 << 20)
            for side in self.sides:
                side.write()
            moves = any(side.pipe or side.session.is_behind for side in self.sides)

    def end(self) -> None:
        for side in self.sides:
            for stream in sorted(side.held):
                side.session.resume(stream)
            side.held.clear()
        self.settle()
        for side in (self.client, self.server):
            for stream in sorted(side.open):
                self.finish(side, stream)
            self.settle()

    def check(self) -> None:
        """Everything has arrived, whole and in order, on streams that no side has reset."""
        given_up = self.client.was_reset | self.server.was_reset
        for source, target in ((self.client, self.server), (self.server, self.client)):
            for stream in {*source.sent, *target.got}:
                sent, got = source.sent[stream], target.got[stream]
                # A server that finishes early does not read the rest of the requests.
                if stream in given_up or (source is self.client and stream in self.early):
                    assert got == sent[: len(got)], stream
                else:
                    assert got == sent, stream
            assert source.awaits_room <= given_up
            assert source.session.unsent_bytes == 0
            assert source.session.open_streams == 0
        for stream in self.unary - given_up:
            assert self.server.got[stream] == self.client.sent[stream]


@pytest.mark.parametrize("client_by", IMPLEMENTATIONS)
@pytest.mark.parametrize("server_by", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", seeds(6))
def test_messages_arrive_whole_and_in_order(server_by: Any, client_by: Any, seed: int) -> None:
    run = Run(server_by, client_by, random.Random(seed))
    run.settle()
    for _ in range(STEPS):
        run.step()
    run.end()
    run.check()
    arrived = sum(map(len, run.server.got.values())) + sum(map(len, run.client.got.values()))
    assert arrived > 20
