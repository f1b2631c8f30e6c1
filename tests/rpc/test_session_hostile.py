"""Hostile bytes: whatever a session receives, it raises nothing and keeps little."""

import random
from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from support import http2_frames as wire
from support.seeds import seeds
from support.session_pairs import (
    IMPLEMENTATIONS,
    MANY,
    ROUTES,
    RawServer,
    head,
    of_kind,
    request,
    whole_request,
)

RUNS = 60
LIMITS = Limits(message_bytes_max=100_000, streams_max=20)


def of_client(chance: random.Random) -> list[bytes]:
    """Right and wrong frames of a client."""
    number = 1
    found = [wire.PREFACE, wire.settings(), wire.settings_ack()]
    for _ in range(chance.randrange(1, 30)):
        stream = chance.choice((number, max(number - 2, 1), 0, 2))
        found.append(some_frame(chance, stream))
        if chance.random() < 0.5:
            number += 2
            whole = chance.random() < 0.5
            found.append(whole_request(number) if whole else request(number, path=MANY))
    return found


def of_server(chance: random.Random) -> list[bytes]:
    found = [wire.settings(), wire.settings_ack()]
    for _ in range(chance.randrange(1, 30)):
        stream = chance.choice((1, 3, 5, 0, 2, 99))
        extra = [("grpc-status", chance.choice(("0", "5", "x")))]
        found += [
            some_frame(chance, stream),
            wire.headers(stream, [*RawServer.answer_pairs, *extra], end=chance.random() < 0.3),
            wire.data(stream, wire.framed(bytes(chance.randrange(100)))),
        ]
    return found


def some_frame(chance: random.Random, stream: int) -> bytes:
    payload = chance.randbytes(chance.choice((0, 1, 4, 5, 6, 8, 50)))
    return chance.choice(
        (
            wire.frame(chance.randrange(12), chance.randrange(256), stream, payload),
            wire.ping(),
            wire.rst_stream(stream, chance.randrange(20)),
            wire.window_update(stream, chance.randrange(1 << 31)),
            wire.goaway(chance.randrange(10), chance.randrange(20), payload),
            wire.settings([(chance.randrange(9), chance.randrange(1 << 17))]),
            wire.data(stream, wire.framed(payload), end=chance.random() < 0.3),
            wire.data(stream, payload),
            wire.headers(stream, [("x", payload)], end=chance.random() < 0.5),
        )
    )


def harmed(chance: random.Random, raw: bytes) -> bytes:
    """Change, remove or repeat some bytes."""
    found = bytearray(raw)
    for _ in range(chance.choice((0, 0, 1, 3, 20))):
        at = chance.randrange(len(found))
        harm = chance.randrange(3)
        if harm == 0:
            found[at] = chance.randrange(256)
        elif harm == 1:
            del found[at : at + chance.randrange(20)]
        else:
            found[at:at] = found[at : at + chance.randrange(200)]
    return bytes(found)


def feed(chance: random.Random, session: Any, raw: bytes) -> None:
    """Let a session handle bytes in pieces; call it as its owner does."""
    at = 0
    is_over = False
    while at < len(raw) or session.is_behind:
        piece = b""
        if not session.is_behind:
            piece = raw[at : at + chance.choice((1, 10, 1_000, 1 << 20))]
            at += len(piece)
        found = session.receive(piece)
        assert not (is_over and found), "an event behind BROKEN"
        for kind, *fields in found:
            is_over = kind == events.BROKEN
            if kind == events.CALL and chance.random() < 0.7:
                session.respond(fields[0], bytes(chance.randrange(1_000)))
            elif kind == events.OPENED and chance.random() < 0.7:
                session.send(fields[0], bytes(1_000))
                session.finish(fields[0], 5, "details")
            elif kind == events.MESSAGE and chance.random() < 0.3:
                session.reset(fields[0], 8)
        if chance.random() < 0.5:
            b"".join(map(bytes, session.output()[0]))
    assert session.unsent_bytes < 2 << 20


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", seeds(3))
def test_a_server_survives_hostile_bytes(implementation: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(RUNS):
        session = implementation.ServerSession(ROUTES.get, LIMITS)
        feed(chance, session, harmed(chance, b"".join(of_client(chance))))
        assert session.open_streams <= LIMITS.streams_max


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", seeds(3))
def test_a_client_survives_hostile_bytes(implementation: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(RUNS):
        session = implementation.ClientSession(LIMITS)
        found = session.receive(wire.settings())
        assert of_kind(found, events.READY)
        for _ in range(3):
            session.request(head(implementation), b"request", one_answer=chance.random() < 0.5)
        session.request(head(implementation, MANY), None, one_answer=False)
        feed(chance, session, harmed(chance, b"".join(of_server(chance))))
        assert session.open_streams <= 4
