"""A single message is appended and acknowledged in the receive callback, or on the general path."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.append import AppendResult, Durability
from rockoon_broker.clock import SystemClock
from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.rpc import service
from rockoon_broker.rpc.append_stream import (
    MOMENT_SECONDS,
    UNANSWERED_MAX,
    AppendResults,
    AppendStreamCall,
    GroupAppends,
)
from rockoon_broker.rpc.large_requests import LARGE_BYTES, Request
from rockoon_broker.store.log.batch import RoutedBatch
from rockoon_broker.topics.topics import PERMISSION_READ
from rockoon_core.errors import NotLeader, NotPermitted, RockoonError
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_runtime.access.callers import Caller
from rockoon_runtime.error_guard import CallTimes
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.joint_batches import answers_of, batch, joint

LEASE_LOST = NotLeader("it leads no more")
STORED = AppendResult((Run(0, 1, 0, 0, 0, b""),), None)


class SetClock(SystemClock):
    """A clock that changes only when a test sets it."""

    seconds = 1.0

    def monotonic_seconds(self) -> float:
        return self.seconds


class Recipient:
    """Sender of a stream; records its replies, and the times at which reading continues."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refused: list[bool] = []
        self.has_room = self.arrives_alone = True
        self.is_held = False
        self.left: list[bytes | bytearray] = []
        # `check_may_answer` raises it after `asked_max` calls.
        self.objection: RockoonError | None = None
        self.asked_max = 0
        self.failure: Exception | None = None

    def replies_now(self) -> bool:
        return self.arrives_alone and self.has_room

    def check_may_answer(self) -> None:
        self.asked_max -= 1
        if self.objection is not None and self.asked_max < 0:
            raise self.objection

    def queue_message(self, message: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        reply = pb.AppendReply.FromString(message)
        self.told.append(reply.request_id)
        self.refused.append(reply.HasField("error"))

    def pause_reader(self) -> None:
        self.is_held = True

    def resume_reader(self, left: bytes | bytearray | None = None) -> None:
        assert self.is_held
        self.is_held = False
        self.left += [] if left is None else [left]


class Revocable(Caller):
    """A caller that may make all calls until its permission ends, except for topic `Secret`."""

    def __init__(self) -> None:
        self.is_revoked = False

    def require(self, *needs: str) -> None:
        if self.is_revoked:
            raise NotPermitted("not any more")
        if "topic:Secret" in needs:
            raise NotPermitted("not this one")


class Scene:
    """A stream, and the results of its messages."""

    def __init__(self, result: AppendResult | None = STORED) -> None:
        self.result = result
        self.failure: Exception | None = None
        self.writes: list[int] = []
        self.notes = 0
        self.caller = Revocable()
        self.recipient = Recipient()
        self.calls = CallTimes()
        self.clock = SetClock()
        self.turn = GroupAppends(self._append_group, self.clock)
        self.stream = self.another()

    def another(self) -> AppendStreamCall:
        given = (self.turn, self._place, self._note, self.caller)
        return AppendStreamCall(*given, self.calls, self.clock)

    def _append_group(self, messages: Sequence[Sequence[RoutedBatch]]) -> Sequence[AppendResults]:
        if self.failure is not None:
            raise self.failure
        self.writes.append(len(messages))
        return [[self.result] * len(batches) for batches in messages]

    async def _place(self, _request: Any) -> AppendResult:
        raise AssertionError("nobody reads")

    def _note(self) -> None:
        self.notes += 1

    def has_company(self) -> None:
        """A message of another stream arrived a moment ago."""
        self.turn.request_received(self)

    def take(self, request_id: int, *others: Any, topic: str = "T") -> bool:
        """Offer a message; return whether `on_message` has handled it."""
        message: Any = joint(batch(topic, 0, b"x", request_id=request_id), *others)
        return self.stream.on_message(message.SerializeToString(), self.recipient)

    async def others_tell(self) -> list[tuple[int, str]]:
        """Return the replies that `answers` sends until the end of the stream, with the names of
        errors."""
        self.stream.end()
        return [
            (each.request_id, Error.Code.Name(each.error.code) if each.HasField("error") else "")
            async for each in answers_of(self.stream)
        ]


async def test_a_message_alone_is_answered_where_it_comes() -> None:
    scene = Scene()
    assert scene.take(7)
    assert (scene.recipient.told, scene.writes, scene.notes) == ([7], [1], 1)
    assert scene.turn.unanswered == 0
    assert await scene.others_tell() == []
    (calls,) = scene.calls.measurements()
    assert (calls.labels[1:3], sum(calls.counts)) == (("append", "success"), 1)


async def test_what_comes_with_others_is_for_who_reads() -> None:
    scene = Scene()
    assert scene.take(1)
    scene.recipient.arrives_alone = False
    assert [scene.take(number) for number in (2, 3)] == [False, False]
    scene.recipient.arrives_alone = True
    assert scene.take(4)
    assert (scene.recipient.told, scene.writes) == ([1, 4], [1, 1])


async def test_in_company_it_is_noted_at_once_held_and_answered_at_the_end_of_the_turn() -> None:
    scene = Scene()
    other, recipient = scene.another(), Recipient()
    scene.has_company()
    assert scene.take(1)
    assert other.on_message(batch("T", 0, b"y", request_id=2).SerializeToString(), recipient)
    assert (scene.notes, scene.writes) == (2, []), "who ends in order knows of both"
    assert scene.recipient.is_held
    assert recipient.is_held
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.writes == [2]
    assert (scene.recipient.told, recipient.told) == ([1], [2])
    assert not scene.recipient.is_held
    assert await scene.others_tell() == []


async def test_company_is_who_came_a_moment_ago_though_he_is_answered() -> None:
    for seconds, is_company in ((MOMENT_SECONDS / 2, True), (MOMENT_SECONDS * 2, False)):
        scene = Scene()
        scene.has_company()
        scene.turn.unanswered -= 1
        scene.clock.seconds += seconds
        assert scene.take(1)
        assert scene.recipient.is_held == is_company


@pytest.mark.parametrize(
    "why", ["no room", "several", "unreadable", "no lease", "traced", "large", "at its end"]
)
async def test_what_is_special_or_has_to_wait_is_left_untouched(why: str) -> None:
    scene = Scene()
    if why == "no room":
        scene.recipient.has_room = False
    elif why == "no lease":
        scene.recipient.objection = LEASE_LOST
    elif why == "at its end":
        scene.stream.end()
    if why == "unreadable":
        assert not scene.stream.on_message(b"\xff\xff", scene.recipient)
    elif why == "traced":
        traced = batch("T", 0, b"x", traceparent="00-1-2-01")
        assert not scene.stream.on_message(traced.SerializeToString(), scene.recipient)
    elif why == "large":
        large = batch("T", 0, bytes(LARGE_BYTES)).SerializeToString()
        assert not scene.stream.on_message(large, scene.recipient)
    else:
        more = [batch("T", 1, b"y")] if why == "several" else []
        assert not scene.take(1, *more)
    assert (scene.recipient.told, scene.writes, scene.turn.unanswered) == ([], [], 0)


@pytest.mark.parametrize("company", [False, True])
async def test_what_may_not_be_answered_any_more_is_left_to_who_says_why(company: bool) -> None:
    """The lease expired while it was written."""
    scene = Scene()
    if company:
        scene.has_company()
    scene.recipient.objection, scene.recipient.asked_max = LEASE_LOST, 1
    assert scene.take(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (scene.recipient.told, scene.recipient.is_held) == ([], False)
    assert await scene.others_tell() == [(1, "")], "through the guard, which asks again"


async def test_what_waits_for_a_sync_is_answered_by_who_can_wait() -> None:
    durable = Durability()
    scene = Scene(AppendResult(STORED.runs, durable))
    assert scene.take(1)
    assert not scene.take(2), "answers follow in their order"
    durable.settle(None)
    assert scene.recipient.told == []
    assert await scene.others_tell() == [(1, "")]
    assert scene.turn.unanswered == 0


async def others(scene: Scene, told: list[tuple[int, str]]) -> None:
    async for each in answers_of(scene.stream):
        code = Error.Code.Name(each.error.code) if each.HasField("error") else ""
        told.append((each.request_id, code))


@pytest.mark.parametrize("refusal", [None, LEASE_LOST])
@pytest.mark.parametrize("hindrance", ["", "room", "lease", "bug"])
async def test_who_waits_for_a_sync_is_answered_where_it_is_told_unless_that_cannot_be(
    refusal: RockoonError | None, hindrance: str
) -> None:
    durable, told = Durability(), list[tuple[int, str]]()
    scene = Scene(AppendResult(STORED.runs, durable))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(others(scene, told), name="answers")
        await asyncio.sleep(0)
        assert scene.take(1)
        await asyncio.sleep(0)
        scene.recipient.has_room = hindrance != "room"
        scene.recipient.objection = LEASE_LOST if hindrance == "lease" else None
        scene.recipient.failure = RuntimeError("no one foresaw") if hindrance == "bug" else None
        durable.settle(refusal)
        if not hindrance:
            assert scene.recipient.told == [1]
            assert scene.recipient.refused == [refusal is not None]
            assert scene.turn.unanswered == 0
        scene.stream.end()
    expected = "NOT_LEADER" if refusal else ""
    left = [(1, "INTERNAL" if hindrance == "bug" else expected)] if hindrance else []
    assert (told, scene.turn.unanswered) == (left, 0)


async def test_what_came_behind_one_that_waits_for_a_sync_is_answered_behind_it() -> None:
    durable, told = Durability(), list[tuple[int, str]]()
    scene = Scene(AppendResult(STORED.runs, durable))

    async def requests() -> AsyncIterator[pb.AppendRequest]:
        assert scene.take(1)
        scene.result = STORED
        yield batch("T", 0, b"y", request_id=2)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(others(scene, told), name="answers")
        await asyncio.sleep(0)
        await scene.stream.read(requests())
        durable.settle(None)
    assert (scene.recipient.told, told) == ([], [(1, ""), (2, "")])


async def test_the_end_of_a_stream_waits_for_what_it_holds() -> None:
    scene = Scene()
    scene.has_company()
    assert scene.take(1)
    assert await scene.others_tell() == [(1, "")]
    assert (scene.recipient.told, scene.writes) == ([], [1])
    assert scene.turn.unanswered == 1, "somebody else's"


async def test_who_has_gone_is_told_nothing() -> None:
    scene = Scene()
    scene.has_company()

    async def answered() -> None:
        async for _ in answers_of(scene.stream):
            raise AssertionError("there is nothing to tell")

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(answered(), name="answers")
        await asyncio.sleep(0)
        waiting.cancel()
        # Before the cancelled task runs: the write comes after it.
        assert scene.take(1)
    await asyncio.sleep(0)
    assert scene.writes == [1]
    assert (scene.recipient.told, scene.recipient.is_held) == ([], True)
    assert scene.turn.unanswered == 1


async def test_a_sender_that_is_far_ahead_is_read_again_when_he_is_answered() -> None:
    durable = asyncio.get_running_loop().create_future()
    scene = Scene(AppendResult(STORED.runs, durable))
    read = 0

    async def requests() -> AsyncIterator[Request]:
        nonlocal read
        for read in range(1, 2 * UNANSWERED_MAX + 1):
            yield batch("T", 0, b"x", request_id=read)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.stream.read(requests()), name="reads")
        await eventually(lambda: read >= UNANSWERED_MAX)
        for _ in range(UNANSWERED_MAX):
            await asyncio.sleep(0)
        assert read == UNANSWERED_MAX
        durable.set_result(None)
        answers = [each async for each in answers_of(scene.stream)]
    assert [each.request_id for each in answers] == list(range(1, 2 * UNANSWERED_MAX + 1))
    assert sum(each.batches_max > 0 for each in answers) == 1, "it is told once"
    assert scene.turn.unanswered == 0


@pytest.mark.parametrize("when", ["refused", "nobody serves"])
async def test_what_could_not_be_placed_with_others_goes_back_to_who_reads(when: str) -> None:
    scene = Scene(None)
    scene.failure = LEASE_LOST if when == "nobody serves" else None
    scene.has_company()
    assert scene.take(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(scene.recipient.left) == 1
    assert (scene.recipient.told, scene.recipient.is_held) == ([], False)
    assert scene.turn.unanswered == 1
    assert await scene.others_tell() == []


async def test_a_key_that_is_revoked_while_a_message_is_held_brings_no_further_one() -> None:
    scene = Scene()
    scene.has_company()
    assert scene.take(1)
    scene.caller.is_revoked = True
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.recipient.told == [1], "it is stored, and was permitted"
    assert not scene.take(2)
    assert scene.writes == [1]


async def test_what_a_sender_may_not_send_is_refused_on_each_way_and_the_rest_is_stored() -> None:
    scene = Scene()
    secret, traced = batch("Secret", 0, b"x"), "00-1-2-01"
    assert not scene.take(1, topic="Secret")

    async def requests() -> AsyncIterator[Request]:
        yield secret
        yield joint(batch("T", 0, b"x"), secret, batch("T", 1, b"x"))
        yield batch("Secret", 0, b"x", traceparent=traced)

    await scene.stream.read(requests())
    assert scene.writes == [1], "the two of T; `_place` knows no caller"
    told = [
        [Error.Code.Name(each.error.code) if each.HasField("error") else "" for each in replies]
        for replies in [[each, *each.more] async for each in answers_of(scene.stream)]
    ]
    assert told == [["NOT_PERMITTED"], ["", "NOT_PERMITTED", ""], ["NOT_PERMITTED"]]


@pytest.mark.parametrize("company", [False, True])
@pytest.mark.parametrize("where", ["placing", "answering"])
async def test_a_bug_is_told_and_holds_nobody_for_ever(company: bool, where: str) -> None:
    scene = Scene()
    bug = RuntimeError("no one foresaw")
    if company:
        scene.has_company()
    if where == "placing":
        scene.failure = bug
    scene.recipient.failure = bug
    assert scene.take(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not scene.recipient.is_held
    assert await scene.others_tell() == [(1, "INTERNAL")]


async def test_a_broker_takes_what_arrives_alone(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []

    class Noting(AppendStreamCall):
        def on_message(self, message: Any, sender: Any) -> bool:
            taken.append(super().on_message(message, sender))
            return taken[-1]

    monkeypatch.setattr(service, "AppendStreamCall", Noting)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], flush="async") as broker:
        call = broker.stub.AppendStream()
        for number in range(5):
            await call.write(batch("T", 0, b"%d" % number, request_id=number))
            assert (await call.read()).request_id == number
        await call.done_writing()
        assert sum(taken) >= 4, "the first may come before its reader waits"
        assert await broker.bodies("T", 0) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("kind", ["read-only", "compacted", "neither"])
async def test_a_message_alone_is_refused_where_its_topic_takes_none_such(
    tmp_path: Path, nameserver: BrokerRoutes, kind: str
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address], flush="async") as broker:
        # `on_message` appends only to queues that the store knows.
        await broker.append("T", 0, b"first", keys="k")
        revision = 0
        if kind == "read-only":
            revision = await nameserver.permit("T", PERMISSION_READ)
        elif kind == "compacted":
            revision = await nameserver.set_attribute("T", "cleanup.policy", "COMPACTION")
        call = broker.stub.AppendStream()
        for number in range(3):
            await call.write(batch("T", 0, b"x", request_id=number, route_revision=revision))
            reply = await call.read()
            refused = Error.Code.Name(reply.error.code) if reply.HasField("error") else ""
            assert reply.request_id == number
            assert refused == {"read-only": "TOPIC_NOT_WRITABLE", "compacted": "KEY_MISSING"}.get(
                kind, ""
            )
        await call.done_writing()
