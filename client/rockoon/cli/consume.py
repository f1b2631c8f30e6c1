"""`rockoon consume`: messages on the screen, one a line."""

import asyncio
import json
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rockoon.cli.failures import complain
from rockoon.cli.interrupt import Interrupt, wait_set
from rockoon.cli.session import find_topic
from rockoon.cli.start_place import parse_start

if TYPE_CHECKING:
    from rockoon.cluster import Cluster
    from rockoon.consumer.pull import PullLimits
    from rockoon.consumer.pull_consumer import PullConsumer
    from rockoon.consumer.push_consumer import PushConsumer
    from rockoon.message import Message
    from rockoon.offsets.start import ConsumeFrom
    from rockoon_core.message_queue import MessageQueue

# Without --follow, reading ends where the queues ended when it began.
POLL_SECONDS = 0.25
COMMIT_SECONDS = 1.0
MESSAGES_PER_POLL = 1024
LOOK_SECONDS = 0.05
# A member that has no queue after this long has others in the group that read them all.
NO_QUEUE_SECONDS = 3.0


class StartPlace:
    """Where to start, from the text after `--from`.

    Args:
        text: an offset, or what `parse_start` takes.

    Raises:
        typer.BadParameter: it is none of these.
    """

    def __init__(self, text: str) -> None:
        is_offset = text.isdecimal() and len(text) < 11
        self.offset = int(text) if is_offset else None
        # An offset starts FIRST and seeks.
        start = "first" if is_offset else text
        self.policy: ConsumeFrom = parse_start(start, further="an offset (42), ")


class Screen:
    """Prints messages, and knows when enough are printed."""

    def __init__(self, *, as_json: bool, messages_max: int | None) -> None:
        self.printed = 0
        self._as_json = as_json
        self._max = messages_max

    @property
    def full(self) -> bool:
        return self._max is not None and self.printed >= self._max

    @property
    def unlimited(self) -> bool:
        return self._max is None

    @property
    def room(self) -> int:
        """How many more may be printed, at most a poll's worth."""
        if self._max is None:
            return MESSAGES_PER_POLL
        return min(MESSAGES_PER_POLL, self._max - self.printed)

    def show(self, messages: "Iterable[Message]") -> None:
        out = sys.stdout.buffer
        for message in messages:
            line = encode(message) if self._as_json else message.body
            out.write(line + b"\n")
            self.printed += 1
        out.flush()


def encode(message: "Message") -> bytes:
    """A message with everything known of it, as one line of JSON."""
    return json.dumps(fields_of(message), ensure_ascii=False).encode()


def fields_of(message: "Message") -> dict[str, Any]:
    """Everything known of a message, for JSON."""
    said: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        said["body"] = message.body.decode()
    except UnicodeDecodeError:
        said["body_hex"] = message.body.hex()
    return said


async def consume_alone(
    cluster: "Cluster",
    topic: str,
    start: StartPlace,
    expression: str,
    screen: Screen,
    *,
    follow: bool,
) -> None:
    """Read all queues of a topic without a group, to the end they have now or on and on."""
    await find_topic(cluster, topic)
    with Interrupt() as interrupt:
        async with cluster.pull_consumer(
            consume_from=start.policy,
            on_out_of_range="earliest",
            limits=limits_of(follow=follow),
        ) as consumer:
            ends = {} if follow else await ends_of(cluster, topic)
            if follow:
                await consumer.assign_all(topic, expression)
            else:
                await consumer.assign(ends, expression)
            if start.offset is not None:
                await seek(cluster, consumer, topic, start.offset)
            await interrupt.unless(print_all(consumer, screen, ends, follow=follow))


def limits_of(*, follow: bool) -> "PullLimits | None":
    """The consumers' own with `follow`, else with a short wait.

    A broker holds a pull for messages that a filter wants; only its answer says that those that are
    there were none of them.
    """
    from rockoon.consumer.pull import PullLimits

    return None if follow else PullLimits(wait_ms=int(POLL_SECONDS * 1000))


async def seek(cluster: "Cluster", consumer: "PullConsumer", topic: str, offset: int) -> None:
    """Go to an offset on every queue that has it, to the nearest one it has on others."""
    for ends in (await cluster.admin.describe_topic(topic)).queues:
        if ends.state is not None and ends.queue in consumer.assignment:
            within = max(ends.state.min_offset, min(offset, ends.state.max_offset))
            await consumer.seek(ends.queue, within)


async def ends_of(cluster: "Cluster", topic: str) -> "dict[MessageQueue, int]":
    """Where each queue ends now.

    Raises:
        RockoonError: a broker does not say; to leave its queues out would be to hide messages.
    """
    ends: dict[MessageQueue, int] = {}
    for each in (await cluster.admin.describe_topic(topic)).queues:
        if each.error is not None:
            raise each.error
        assert each.state is not None
        ends[each.queue] = each.state.max_offset
    return ends


async def print_all(
    consumer: "PullConsumer", screen: Screen, ends: "dict[MessageQueue, int]", *, follow: bool
) -> None:
    while not screen.full:
        if not follow and all(consumer.position(queue) >= end for queue, end in ends.items()):
            return
        messages = await consumer.poll(max_messages=screen.room, timeout=POLL_SECONDS)
        screen.show(
            message for message in messages if follow or message.queue_offset < ends[message.queue]
        )


async def consume_in_group(
    cluster: "Cluster",
    topic: str,
    group: str,
    start: StartPlace | None,
    expression: str,
    screen: Screen,
    *,
    follow: bool,
) -> None:
    """Read as a member of a group; what was printed is committed, when it ends at the latest.

    Without `follow` it ends when this member's queues are read to where they ended when it began.
    """
    from rockoon.consumer.push_consumer import ConsumeResult
    from rockoon.consumer.redelivery import LocalRedelivery
    from rockoon.consumer.timing import Timing
    from rockoon.offsets.start import ConsumeFrom

    await find_topic(cluster, topic)
    ends = {} if follow else await ends_of(cluster, topic)
    finished = asyncio.Event()
    failures: list[OSError] = []

    async def take(messages: "Message | list[Message]") -> ConsumeResult:
        if finished.is_set():
            return ConsumeResult.LATER
        try:
            screen.show(messages if isinstance(messages, list) else [messages])
        except OSError as failure:
            # The output is gone: no other delivery of the message will do better.
            failures.append(failure)
            finished.set()
            return ConsumeResult.LATER
        if screen.full:
            finished.set()
        return ConsumeResult.SUCCESS

    with Interrupt() as interrupt:
        async with cluster.push_consumer(
            group,
            {topic: expression},
            take,
            consume_from=start.policy if start is not None else ConsumeFrom.GROUP,
            concurrency=1,
            # One at a time when they are counted: none beyond the last may be taken.
            batch_max=MESSAGES_PER_POLL if screen.unlimited else 1,
            timing=Timing(commit_seconds=COMMIT_SECONDS),
            # LATER means here that it was not printed: the next reader gets it, and at once.
            redelivery=LocalRedelivery(),
            pull_limits=limits_of(follow=follow),
            missing_topics="wait" if follow else "end",
        ) as consumer:
            waits = [consumer.wait(), wait_set(finished)]
            # Who says where to start does not wonder where it is.
            tell = start is None
            if not follow:
                waits.append(wait_read(consumer, ends, tell=tell))
            elif tell:
                waits.append(tell_start_when_placed(consumer))
            await interrupt.unless(*waits)
    for failure in failures:
        raise failure


def tell_start(consumer: "PushConsumer") -> None:
    """Say so when a group without progress starts behind messages: nothing is seen of them."""
    passed = {
        queue.topic
        for queue, view in consumer.queues().items()
        if view.start.reason == "LAST" and view.start.offset
    }
    for topic in passed:
        reset = shlex.join(("rockoon", "offsets", "reset", consumer.group, topic, "--to-earliest"))
        complain(
            f"group {consumer.group} had no progress on {topic}: it starts behind the messages "
            f"that are there; `{reset}` makes it read them"
        )


async def tell_start_when_placed(consumer: "PushConsumer") -> None:
    """The same once a member has queues; never ends."""
    while True:
        if consumer.queues():
            tell_start(consumer)
            await wait_set(asyncio.Event())
        await asyncio.sleep(LOOK_SECONDS)


async def wait_read(
    consumer: "PushConsumer", ends: "dict[MessageQueue, int]", *, tell: bool
) -> None:
    """Wait until a member has read its queues to the ends given, or gets no queue at all.

    Args:
        consumer: the member.
        ends: of the topic's queues.
        tell: say where it started, if that may surprise.

    Raises:
        ConsumeDisabled: the group is paused.
    """
    from rockoon.errors import ConsumeDisabled

    loop = asyncio.get_running_loop()
    no_queue_before = loop.time() + NO_QUEUE_SECONDS
    while True:
        if consumer.is_paused:
            raise ConsumeDisabled(group=consumer.group)
        views = consumer.queues()
        if views or loop.time() > no_queue_before:
            behind = [q for q, view in views.items() if view.commit_offset < ends.get(q, 0)]
            if not behind:
                break
        await asyncio.sleep(LOOK_SECONDS)
    if tell:
        tell_start(consumer)
