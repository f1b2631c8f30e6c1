"""`rockoon consume`: prints messages, one per line."""

import asyncio
import json
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from rockoon.cli.arguments import parse_start
from rockoon.cli.failures import complain
from rockoon.cli.output import picked
from rockoon.cli.session import find_topic
from rockoon.cli.watch import Interrupt, wait_set

if TYPE_CHECKING:
    from rockoon.cluster import Cluster
    from rockoon.consumer.pull import PullLimits
    from rockoon.consumer.pull_consumer import PullConsumer
    from rockoon.consumer.push_consumer import PushConsumer
    from rockoon.message import Message
    from rockoon.offsets.start import ConsumeFrom
    from rockoon_core.message_queue import MessageQueue

# Poll timeout, and broker wait of a pull without --follow.
POLL_SECONDS = 0.25
COMMIT_SECONDS = 1.0
MESSAGES_PER_POLL = 1024
LOOK_SECONDS = 0.05
# A member without a queue after this long: other members of the group read all queues.
NO_QUEUE_SECONDS = 3.0


class StartOption:
    """Start position, from the value of `--from`. `text`: an offset, or a text for `parse_start`.
    Raises typer.BadParameter: the text is neither."""

    def __init__(self, text: str) -> None:
        is_offset = text.isdecimal() and len(text) < 11
        self.offset = int(text) if is_offset else None
        # For an offset, the consumer starts at the first message and then seeks.
        start = "first" if is_offset else text
        self.policy: ConsumeFrom = parse_start(start, further="an offset (42), ")


class Screen:
    """Prints messages and counts them up to a maximum."""

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
        """Number of messages to fetch next: the rest up to the maximum, at most one poll."""
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
    """Return a message with all its fields as one line of JSON."""
    return json.dumps(fields_of(message), ensure_ascii=False).encode()


def fields_of(message: "Message") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic,
        **picked(message.queue, "broker", "queue_id"),
        "offset": message.queue_offset,
        **picked(message, "message_id", "offset_message_id", "tags", "keys"),
        **picked(message, "born_timestamp_ms", "store_timestamp_ms", "reconsume_times"),
        "properties": message.properties,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_hex"] = message.body.hex()
    return fields


async def consume_without_group(
    cluster: "Cluster",
    topic: str,
    start: StartOption,
    expression: str,
    screen: Screen,
    *,
    follow: bool,
) -> None:
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
    """Return the pull limits of the consumer: None (the defaults) with `follow`, else limits with a
    short wait.

    A broker holds a pull until a message matches the filter. Without `follow`, only a reply shows
    that none of the existing messages matched.
    """
    from rockoon.consumer.pull import PullLimits

    return None if follow else PullLimits(wait_ms=int(POLL_SECONDS * 1000))


async def seek(cluster: "Cluster", consumer: "PullConsumer", topic: str, offset: int) -> None:
    """Seek each queue to an offset, or to the nearest offset that the queue has."""
    for ends in (await cluster.admin.describe_topic(topic)).queues:
        if ends.state is not None and ends.queue in consumer.assignment:
            within = max(ends.state.min_offset, min(offset, ends.state.max_offset))
            await consumer.seek(ends.queue, within)


async def ends_of(cluster: "Cluster", topic: str) -> "dict[MessageQueue, int]":
    """Return the current end of each queue. Raises RockoonError: a broker does not answer. Leaving
    out its queues would hide messages."""
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
    start: StartOption | None,
    expression: str,
    screen: Screen,
    *,
    follow: bool,
) -> None:
    """Read as a member of a group; printed messages are committed, at the latest at the end.

    Without `follow`, it ends once this member has read its queues to the ends they had at its
    start.
    """
    from rockoon.consumer.consume_result import ConsumeResult
    from rockoon.consumer.push_consumer import Timing
    from rockoon.consumer.redelivery import LocalRedelivery
    from rockoon.offsets.start import ConsumeFrom

    await find_topic(cluster, topic)
    ends = {} if follow else await ends_of(cluster, topic)
    finished = asyncio.Event()
    failures: list[OSError] = []

    async def handle(messages: "Message | list[Message]") -> ConsumeResult:
        if finished.is_set():
            return ConsumeResult.LATER
        try:
            screen.show(messages if isinstance(messages, list) else [messages])
        except OSError as failure:
            # Standard output is closed: another delivery of the message would fail too.
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
            handle,
            consume_from=start.policy if start is not None else ConsumeFrom.GROUP,
            concurrency=1,
            # With a maximum, one message at a time: none after the last one may be consumed.
            batch_max=MESSAGES_PER_POLL if screen.unlimited else 1,
            timing=Timing(commit_seconds=COMMIT_SECONDS),
            # LATER means that the message was not printed: it is redelivered without a delay.
            redelivery=LocalRedelivery(),
            pull_limits=limits_of(follow=follow),
            missing_topics="wait" if follow else "end",
        ) as consumer:
            waits = [consumer.wait(), wait_set(finished)]
            # With --from the operator knows the start: no warning.
            warn = start is None
            if not follow:
                waits.append(wait_read(consumer, ends, warn=warn))
            elif warn:
                waits.append(warn_if_skipping_once_assigned(consumer))
            await interrupt.unless(*waits)
    for failure in failures:
        raise failure


def warn_if_skipping(consumer: "PushConsumer") -> None:
    """Warn that a group without progress starts after the existing messages and skips them."""
    passed = {
        queue.topic
        for queue, view in consumer.queues().items()
        if view.start.reason == "LAST" and view.start.offset
    }
    for topic in passed:
        reset = shlex.join(("rockoon", "offsets", "reset", consumer.group, topic, "--to-earliest"))
        complain(
            f"group {consumer.group} had no progress on {topic}: it starts after the existing "
            f"messages; `{reset}` makes it read them"
        )


async def warn_if_skipping_once_assigned(consumer: "PushConsumer") -> None:
    """Call `warn_if_skipping` once the member has queues; never returns."""
    while True:
        if consumer.queues():
            warn_if_skipping(consumer)
            await wait_set(asyncio.Event())
        await asyncio.sleep(LOOK_SECONDS)


async def wait_read(
    consumer: "PushConsumer", ends: "dict[MessageQueue, int]", *, warn: bool
) -> None:
    """Wait until a member has read its queues up to `ends`, or gets no queue within
    `NO_QUEUE_SECONDS`.

    Args:
        ends: end of each queue of the topic.
        warn: warn if the member skipped messages at its start.

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
    if warn:
        warn_if_skipping(consumer)


def filter_of(topic: str, tags: str, sql: str | None) -> str:
    """Return the filter expression for `--tags` and `--sql`. Raises typer.BadParameter: `sql` is
    not a valid expression, or tags are set too."""
    if sql is None:
        return tags
    from rockoon.errors import InvalidExpression
    from rockoon.subscription import ALL, Sql, Subscription

    if tags != ALL:
        raise typer.BadParameter(
            "cannot be combined with --tags: write TAGS IN ('new', 'paid') in the expression",
            param_hint="--sql",
        )
    try:
        Subscription.sql(topic, sql)
    except InvalidExpression as failure:
        raise typer.BadParameter(str(failure), param_hint="--sql") from failure
    return Sql(sql)
