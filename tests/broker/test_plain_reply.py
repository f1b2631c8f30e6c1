"""Replies that are built as bytes equal those of protobuf."""

import random

import pytest

from rockoon_broker.append import AppendResult
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc.append_stream import reply_bytes, reply_to
from support.kernels import BOTH, using


@pytest.mark.parametrize("choice", BOTH)
def test_an_answer_says_where_its_batches_are_and_nothing_of_the_one_before(choice: str) -> None:
    rng = random.Random(1)

    def number() -> int:
        # Zeros are left out of a message; a number has one to nine bytes.
        return rng.choice([0, 1, 300, 1 << 40, rng.getrandbits(rng.randrange(1, 64))])

    def run() -> Run:
        host = rng.choice([b"", b"12345678"])
        return Run(0, number() % (1 << 31), number(), number(), number(), host)

    with using(choice):
        for _ in range(500):
            stored = [
                (number(), AppendResult((run(),), None)) for _ in range(rng.choice([1, 1, 3]))
            ]
            batches_max = rng.choice([0, 0, 256])
            first, *more = [reply_to(*each) for each in stored]
            first.more.extend(more)
            first.batches_max = batches_max
            assert reply_bytes(stored, batches_max) == first.SerializeToString()
