"""Batches of random bytes: each gets its own reply, and so does the batch after it."""

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from support.broker import batch, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import half
from support.seeds import seeds

BATCHES = 400
PROPERTIES = [
    {"DELAY": "3"},
    {"DELAY": "-1"},
    {"DELAY": "99999999999"},
    {"DELAY": "x"},
    {"TIMER_DELAY_SEC": "5"},
    {"TIMER_DELAY_MS": "999999999999999"},
    {"TIMER_DELIVER_MS": "1"},
    {"TIMER_DELIVER_MS": "٣"},
    {"REAL_TOPIC": "elsewhere", "REAL_QID": "-7", "TIMER_DELAY_SEC": "1"},
    {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-"},
    {"UNIQ_KEY": "\ufffd" * 40, "DELAY": "1"},
    {"LARGE": "p" * 32_000, "DELAY": "1"},
    {},
]


def odd_batch(randomness: random.Random) -> Any:
    """Return a batch of one of the three kinds, with some bytes changed in most cases."""
    bodies = [b"body %d" % number for number in range(randomness.randint(1, 3))]
    request = half(*bodies, topic="T", **randomness.choice(PROPERTIES))
    request.handling = randomness.choice([pb.ORDINARY, pb.DELAYED, pb.HALF])
    frames, lengths = bytearray(request.frames), bytearray(request.record_lengths)
    for _ in range(randomness.choice([0, 1, 1, 2, 8])):
        # Mostly the bytes of sizes and flags.
        where = randomness.choice([8, 40, 96, len(frames)])
        at = randomness.randrange(min(where, len(frames)))
        frames[at] = randomness.randrange(256)
    if randomness.random() < 0.2:
        lengths[randomness.randrange(len(lengths))] = randomness.randrange(256)
    if randomness.random() < 0.1:
        del frames[randomness.randrange(len(frames)) :]
    request.frames, request.record_lengths = bytes(frames), bytes(lengths)
    request.queue_id = randomness.choice([0, 0, 0, 0, 1, -1, 1 << 30])
    if randomness.random() < 0.1:
        request.producer_id, request.first_sequence = 7, randomness.choice([0, -1, 1 << 62])
    return request


@pytest.mark.parametrize("seed", seeds(2))
async def test_whatever_a_batch_holds_its_stream_goes_on(
    tmp_path: Path, nameserver: BrokerRoutes, seed: int
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    randomness = random.Random(seed)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        stream = broker.stub.AppendStream()
        for number in range(BATCHES):
            request = odd_batch(randomness)
            request.request_id = number
            await stream.write(request)
            reply = await stream.read()
            assert reply.request_id == number
            assert reply.error.code != Error.INTERNAL, (reply.error.message, request)
        await stream.write(batch("T", 0, b"good", request_id=BATCHES))
        assert (await stream.read()).HasField("appended")
    # Accepted messages exist after a start; a delayed message may follow.
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert b"good" in await broker.bodies("T")


async def test_a_record_that_names_another_length_is_refused_whatever_is_done_with_its_batch(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        stream = broker.stub.AppendStream()
        for handling in (pb.ORDINARY, pb.DELAYED, pb.HALF):
            request = half(b"one", topic="T", DELAY="1")
            request.frames = struct.pack(">I", len(request.frames) + 1) + request.frames[4:]
            request.handling = handling
            await stream.write(request)
            assert (await stream.read()).error.code == Error.MALFORMED_BATCH
