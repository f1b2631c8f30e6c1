"""Encoded requests of batches, and the assignment of replies to them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rockoon.hooks import ProducerHooks
from rockoon.net.large_replies import Answer, StoredBatch
from rockoon.producer.accumulator import Accumulator, ProducerBatch
from rockoon.producer.append_requests import AppendRequests
from rockoon.producer.append_stream import AppendStream
from rockoon.producer.sequences import BatchSequence
from rockoon.producer.settings import ProducerSettings
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2 as pb

QUEUE = MessageQueue("orders", "broker-a", 3)
NOW_MS = 1_700_000_000_000


def batch(*, delayed: bool = False) -> ProducerBatch:
    """Return a sent batch with a message."""
    accumulator = Accumulator(lambda _: None)
    made = accumulator.delayed_batch_queue("orders", None) if delayed else None
    found = (made or accumulator.open_round_robin("orders")).batch
    found.bodies.append(b"body")
    found.born_timestamp_ms, found.queue = NOW_MS, QUEUE
    return found


class Traced:
    """Hooks that name each batch's span."""

    def on_encode(self, _: ProducerBatch) -> None: ...

    def on_batch_sent(self, _: ProducerBatch, request: pb.AppendRequest) -> None:
        request.traceparent = "00-1-2-01"


def requests(hooks: Any = None) -> AppendRequests:
    routes = SimpleNamespace(needed_revision=lambda _: 41)
    cluster: Any = SimpleNamespace(routes=routes)
    return AppendRequests(cluster, ProducerSettings(), lambda: NOW_MS, hooks)


def sent(of: AppendRequests, each: ProducerBatch) -> pb.AppendRequest:
    return pb.AppendRequest.FromString(of.encode(each, 0.0))


def test_a_request_says_where_to_and_what_is_special_about_its_batch() -> None:
    of = requests()
    for number, each in enumerate((batch(), batch(delayed=True), batch()), start=1):
        request = sent(of, each)
        assert (request.topic, request.queue_id, request.route_revision) == ("orders", 3, 41)
        assert request.request_id == of.last_id == number
        assert request.record_lengths == each.lengths == len(request.frames).to_bytes(4, "little")
        handling = pb.DELAYED if each.batch_queue.delayed else pb.ORDINARY
        assert (request.handling, request.producer_id) == (handling, 0)
    numbered = batch()
    numbered.sequence = BatchSequence(77, 5)
    request = sent(of, numbered)
    assert (request.producer_id, request.first_sequence, request.traceparent) == (77, 5, "")
    assert sent(requests(cast("ProducerHooks", Traced())), batch()).traceparent == "00-1-2-01"


class Events:
    """Receives the results of batches."""

    def __init__(self) -> None:
        self.told: list[tuple[ProducerBatch, Answer]] = []

    def on_batches_max(self, broker: str, batches_max: int) -> None: ...

    def on_answer(self, batch: ProducerBatch, answer: Answer) -> None:
        self.told.append((batch, answer))

    def on_broken(self, broker: str, batches: list[ProducerBatch], error: Exception) -> None: ...


def stored(request_id: int) -> StoredBatch:
    return StoredBatch(request_id, 0, 0, 1, NOW_MS, bytes(8))


@pytest.mark.parametrize(
    "wrong",
    [
        [stored(8)],
        [stored(7)],
        [stored(7), stored(8), stored(9)],
        [stored(8), stored(7)],
        pb.AppendReply(request_id=7),
    ],
)
async def test_an_answer_to_another_request_or_to_fewer_batches_is_nobodys(wrong: Any) -> None:
    events = Events()
    stream = AppendStream("broker-a", lambda: ("", cast("Any", None)), (), events)
    assert not stream._accept([stored(7)])
    batches = [batch(), batch()]
    stream.submit(batches, b"", 7, 0.0)
    assert not stream._accept(wrong)
    assert not events.told
    assert stream._accept([stored(7), stored(8)])
    assert events.told == [(batches[0], stored(7)), (batches[1], stored(8))]
