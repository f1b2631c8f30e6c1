"""A broker of a fake cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from grpc import StatusCode

from rockoon_core import errors
from rockoon_core.changes import Changes
from rockoon_format import sql92
from rockoon_format.hashes import tags_code
from rockoon_format.message_id import encode_offset_id
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_format.properties import decode, encode
from rockoon_format.record import Record, decode_record, encode_host, encode_record
from rockoon_proto.v1 import broker_pb2 as broker_wire
from rockoon_proto.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from support.fakes.bulk_calls import check_bulk
from support.fakes.listener import Listener

HOST = encode_host("127.0.0.1", 10911)
BEAT_SECONDS = 5.0


@dataclass
class FakeQueue:
    min_offset: int = 0
    frames: list[bytes] = field(default_factory=list)
    """From `min_offset` on."""
    codes: list[int] = field(default_factory=list)

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.frames)

    def append(self, topic: str, queue_id: int, body: bytes, tags: str) -> int:
        offset = self.max_offset
        record = Record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=1000 * offset,
            body=body,
            properties=encode({"TAGS": tags} if tags else {}),
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=1000 + offset,
            store_host=HOST,
        )
        self.frames.append(encode_record(record))
        self.codes.append(tags_code(tags) if tags else 0)
        return offset

    def take_back(
        self, original: Record, topic: str, properties: dict[str, str], attempts: int
    ) -> None:
        record = replace(
            original,
            topic=topic.encode(),
            queue_id=0,
            queue_offset=self.max_offset,
            physical_offset=1000 * self.max_offset,
            properties=encode(properties),
            reconsume_times=attempts,
        )
        self.frames.append(encode_record(record))
        self.codes.append(tags_code(properties.get("TAGS", "")))

    def expire(self, offset: int) -> None:
        """Retention deletes what lies below an offset."""
        gone = offset - self.min_offset
        del self.frames[:gone], self.codes[:gone]
        self.min_offset = offset


class FakePullStream:
    """What one stream serves."""

    def __init__(self, broker: "FakeBroker") -> None:
        self._broker = broker
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._credit: dict[int, list[int]] = {}
        self._given = Changes()

    async def read(self, requests: Any) -> None:
        # What gRPC raises here when the server stops has no name.
        with suppress(Exception):
            await self._read(requests)

    async def _read(self, requests: Any) -> None:
        loop = asyncio.get_running_loop()
        async for request in requests:
            for wanted in request.subscribe:
                self._credit[wanted.id] = [0, 0]
                self.tasks[wanted.id] = loop.create_task(self._serve(wanted.id, wanted.pull))
            for credit in request.credit:
                self._credit[credit.id][0] += credit.messages
                self._credit[credit.id][1] += credit.bytes
            self._given.notify()
            for number in request.unsubscribe:
                self.tasks[number].cancel()

    async def _serve(self, number: int, wanted: Any) -> None:
        credit, asked = self._credit[number], broker_wire.PullRequest()
        asked.CopyFrom(wanted)
        # The first answer comes at once.
        asked.wait_ms, ended = 0, False
        while not ended:
            while min(credit) <= 0:
                await self._given.wait(self._given.count)
            asked.max_messages = min(wanted.max_messages or 1024, credit[0])
            is_first = asked.wait_ms == 0
            try:
                reply = await self._broker.Pull(asked, None)
            except errors.RockoonError as refusal:
                reply, ended = broker_wire.PullReply(error=refusal.to_wire()), True
            else:
                found, nothing = reply.status == broker_wire.FOUND, asked.offset == reply.max_offset
                ended = not (found or nothing or reply.status == broker_wire.NO_MATCHED_MESSAGE)
                credit[0] -= len(reply.record_lengths) // 4
                credit[1] -= len(reply.frames)
            asked.wait_ms = 30_000
            if ended or is_first or reply.next_offset != asked.offset:
                reply.subscription_id, reply.ended = number, ended
                await self.answers.put(reply)
            asked.offset = max(reply.next_offset, asked.offset)


class FakeBroker(BrokerServicer):
    """Queues in memory, with long polling; store time of message n is 1000 + n."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listener = Listener(add_BrokerServicer_to_server, self)
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.appended = Changes()
        self.pulls: list[tuple[str, int, int]] = []
        self.streams = 0
        """How many were opened."""
        self.knows_streams = True
        """False: of a version that has none."""
        self.is_silent = False
        """True: streams give no signs of life."""
        self.damaged: set[tuple[str, int, int]] = set()
        """Topic, queue id, offset of messages that the disk does not give."""
        self.refused: set[tuple[str, int, int]] = set()
        """Of messages at which the disk fails, and with it each pull that comes so far."""
        self.damaged_tags: set[tuple[str, int, int]] = set()
        """Of messages whose tags are not what they were: who filters by tags is told so."""
        self.sent_back: list[tuple[broker_wire.SendBackRequest, broker_wire.SendBackReply]] = []
        self.refuse_send_backs: errors.RockoonError | None = None
        """Raised by SendBack while it is set."""
        self.knows_originals = True
        """False: retention has deleted them all."""
        self.refused_bodies: set[bytes] = set()
        """What SendBack takes for too large."""

    def _find(self, topic: str, queue_id: int) -> FakeQueue:
        found = self.queues.get((topic, queue_id))
        if found is None:
            raise errors.QueueNotFound(topic=topic, queue=queue_id, broker=self.name)
        return found

    async def Pull(self, request: Any, _: Any) -> broker_wire.PullReply:
        queue = self._find(request.topic, request.queue_id)
        self.pulls.append((request.topic, request.queue_id, request.offset))
        try:
            async with asyncio.timeout(request.wait_ms / 1000):
                while request.offset == queue.max_offset:
                    await self.appended.wait(self.appended.count)
                    queue = self._find(request.topic, request.queue_id)
        except TimeoutError:
            pass
        reply = broker_wire.PullReply(min_offset=queue.min_offset, max_offset=queue.max_offset)
        if queue.max_offset == 0:
            reply.status = broker_wire.NO_MESSAGE_IN_QUEUE
        elif request.offset < queue.min_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_TOO_SMALL, queue.min_offset
        elif request.offset == queue.max_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_OVERFLOW_ONE, request.offset
        elif request.offset > queue.max_offset:
            reply.status, reply.next_offset = broker_wire.OFFSET_OVERFLOW_BADLY, queue.max_offset
        else:
            self._fill(reply, queue, request)
        return reply

    async def PullStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Each subscription is answered as its pulls would be, as far as its credit goes."""
        if not self.knows_streams:
            await context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")
        self.streams += 1
        stream = FakePullStream(self)
        # No TaskGroup: the generator may be left at its `yield`.
        reading = asyncio.get_running_loop().create_task(stream.read(requests))
        try:
            while True:
                found = []
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        found.append(await stream.answers.get())
                if not self.knows_streams:
                    await context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")
                if found or not self.is_silent:
                    yield broker_wire.PullStreamReply(answers=found)
        finally:
            reading.cancel()
            for task in stream.tasks.values():
                task.cancel()

    def _fill(self, reply: broker_wire.PullReply, queue: FakeQueue, request: Any) -> None:
        start = request.offset - queue.min_offset
        most = request.max_messages or 1024
        wanted = set(request.tag_hashes)
        # A filter looks further for as many.
        stop = len(queue.frames) if wanted else min(start + most, len(queue.frames))
        selects = sql92.compile(request.sql_expression or "TRUE").matches_encoded
        found: list[bytes] = []
        for index in range(start, stop):
            if wanted and queue.codes[index] not in wanted:
                continue
            if len(found) == most:
                stop = index
                break
            place = (request.topic, request.queue_id, queue.min_offset + index)
            if place in self.refused:
                raise errors.Internal(service="broker", reason="OSError(5, 'Input/output error')")
            if place in self.damaged or (wanted and place in self.damaged_tags):
                if not found:
                    raise errors.StoreCorrupt(path="commitlog/0", reason="no record")
                stop = index
                break
            if selects(decode_record(queue.frames[index], check_crc=False).properties) is True:
                found.append(queue.frames[index])
        reply.status = broker_wire.FOUND if found else broker_wire.NO_MATCHED_MESSAGE
        reply.next_offset = queue.min_offset + stop
        reply.frames = b"".join(found)
        reply.record_lengths = b"".join(len(frame).to_bytes(4, "little") for frame in found)

    async def SendBack(self, request: Any, _: Any) -> broker_wire.SendBackReply:
        """Retries come at once, whatever the delay; dead letters lie in the group's topic."""
        if self.refuse_send_backs is not None:
            raise self.refuse_send_backs
        reply = broker_wire.SendBackReply()
        attempts_max = request.attempts_max if request.HasField("attempts_max") else 16
        for failed in request.messages:
            result = reply.results.add()
            if not failed.record and not self.knows_originals:
                missing = errors.MessageNotFound(position=failed.queue_offset)
                result.error.CopyFrom(missing.to_wire())
                continue
            frame = failed.record
            if not frame:
                held = self._find(failed.topic, failed.queue_id)
                frame = held.frames[failed.queue_offset - held.min_offset]
            original = decode_record(frame)
            if original.body in self.refused_bodies:
                result.error.CopyFrom(errors.PropertiesTooLarge(index=0, limit=0).to_wire())
                continue
            result.dead = failed.delay_level < 0 or original.reconsume_times >= attempts_max
            result.topic = (dlq_topic if result.dead else retry_topic)(request.group)
            failed_now = max(failed.deliveries, 1) if result.dead else 1
            result.attempts = original.reconsume_times + failed_now
            kept = decode(original.properties)
            properties = {
                "RETRY_TOPIC": failed.topic,
                "ORIGIN_MESSAGE_ID": encode_offset_id(HOST, failed.physical_offset),
                **kept,
                "ROCKOON_FAILURE": failed.failure,
            }
            result.origin_message_id = properties["ORIGIN_MESSAGE_ID"]
            queue = self.queues.setdefault((result.topic, 0), FakeQueue())
            queue.take_back(original, result.topic, properties, result.attempts)
        self.sent_back.append((request, reply))
        self.appended.notify()
        return reply

    async def QueueStatus(self, request: Any, _: Any) -> broker_wire.QueueStatusReply:
        check_bulk(request.queues)
        reply = broker_wire.QueueStatusReply(as_of_ms=10_000)
        for wanted in request.queues:
            queue = self._find(wanted.topic, wanted.queue_id)
            reply.queues.add(queue=wanted, min_offset=queue.min_offset, max_offset=queue.max_offset)
        return reply

    async def SearchOffset(self, request: Any, _: Any) -> broker_wire.SearchOffsetReply:
        check_bulk(request.queues)
        reply = broker_wire.SearchOffsetReply()
        for wanted in request.queues:
            queue = self._find(wanted.topic, wanted.queue_id)
            offset = min(max(request.timestamp_ms - 1000, queue.min_offset), queue.max_offset)
            reply.offsets.add(queue=wanted, offset=offset)
        return reply
