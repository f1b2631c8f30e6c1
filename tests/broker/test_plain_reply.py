"""The reply that is used again says the same as one that is made anew."""

import random

from rockoon_broker.append import AppendResult
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc.append_stream import PlainReply, reply_to


def test_a_reply_that_is_used_again_has_nothing_of_the_one_before() -> None:
    rng, plain = random.Random(1), PlainReply()
    for _ in range(500):
        # Zeros are left out of a message.
        numbers = [rng.choice([0, 1, 300, 1 << 40]) for _ in range(5)]
        first, where, messages, stored_ms, request_id = numbers
        run = Run(0, messages % 4096, first, where, stored_ms, rng.choice([b"", b"12345678"]))
        anew = reply_to(request_id, AppendResult((run,), None))
        assert plain.to_bytes(request_id, run) == anew.SerializeToString()
