"""A photograph: the whole observable state of a cluster as JSON, by the public SDK alone.

Two programs of different commits photograph the same data directory; the photographs must be equal.
Left out are values that change by themselves: owners of queues, messages that wait for a near time,
and the groups of the photographer.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

import rockoon

READER = "photographer"
# The broker may deliver, retry or check messages of these topics between two photographs.
MOVING = ("soon", "paid", "%RETRY%")
KEYS = ("key-3", "key-last", "no-such-key")
POLL_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1

Photograph = dict[str, Any]


async def photograph(cluster: rockoon.Cluster) -> Photograph:
    """Return topics, messages, groups, progress, pending messages and index queries."""
    admin = cluster.admin
    routes = await admin.list_topics(include_system=True)
    groups = [each for each in await admin.list_groups() if READER not in each.group.config.name]
    names = [each.group.config.name for each in groups]
    return {
        "topics": {
            route.name: topic_settings(route) for route in routes if not is_moving(route.name)
        },
        "groups": {
            each.group.config.name: {
                "config": fields(each.group.config),
                "topics": sorted(name for name in each.topics if not is_moving(name)),
            }
            for each in groups
        },
        "messages": {
            route.name: await messages(cluster, route)
            for route in routes
            if route.readable and not is_moving(route.name)
        },
        "progress": await progress(cluster),
        "in flight": {name: await in_flight(cluster, name) for name in names},
        "delayed": await delayed(cluster),
        "half messages": await half_messages(cluster),
        "dead letters": {each.group: each.messages for each in await admin.dead_letters.overview()},
        "by key": {key: await by_key(cluster, key) for key in KEYS},
    }


def fields(message: Message, *besides: str) -> dict[str, Any]:
    """Return the fields of a message besides some, which a former version need not know."""
    for name in besides:
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    return MessageToDict(message)


def is_moving(topic: str) -> bool:
    return topic.startswith(MOVING) or READER in topic


def topic_settings(route: rockoon.TopicRoute) -> Mapping[str, object]:
    return {
        "permissions": route.permissions,
        "attributes": dict(route.attributes),
        "incarnation": route.incarnation,
        "queues": {str(queue): route.create_revisions[queue] for queue in route.queues},
    }


async def messages(
    cluster: rockoon.Cluster, route: rockoon.TopicRoute
) -> Mapping[str, list[list[Any]]]:
    """Return every message of a topic, by queue."""
    async with asyncio.timeout(POLL_SECONDS_MAX):
        # A broker that has just started may not know its queues yet.
        while True:
            queues = (await cluster.admin.describe_topic(route.name)).queues
            left = {str(each.queue): each.state.max_offset for each in queues if each.state}
            if len(left) == len(queues):
                break
            await asyncio.sleep(LOOK_SECONDS)
    found: dict[str, list[list[Any]]] = {queue: [] for queue in left}
    async with cluster.pull_consumer(READER, consume_from="first") as consumer:
        await consumer.assign_all(route.name)
        await consumer.seek_to_beginning()
        async with asyncio.timeout(POLL_SECONDS_MAX):
            while any(
                end > 0 and (not found[queue] or found[queue][-1][0] < end - 1)
                for queue, end in left.items()
            ):
                for message in await consumer.poll(timeout=1.0):
                    found[str(message.queue)].append(facts(message))
    return found


def facts(message: rockoon.Message) -> list[Any]:
    return [
        message.queue_offset,
        message.message_id,
        message.store_timestamp_ms,
        message.born_timestamp_ms,
        message.tags,
        message.keys,
        message.properties,
        message.body.hex(),
    ]


async def progress(cluster: rockoon.Cluster) -> list[object]:
    """Return the stored progress of each group, without the owners of queues, which may change."""
    return [
        fields(each, "owner", "acknowledged_by", "acknowledged_at_ms")
        for each in await cluster.admin.progress()
        if READER not in each.group and not is_moving(each.queue.topic)
    ]


async def in_flight(cluster: rockoon.Cluster, group: str) -> list[object]:
    """Return the receivers' progress. A message in flight becomes visible again when its time ends,
    so the two numbers are added."""
    return [
        {
            "queue": fields(each.queue),
            "settled": [each.settled_to, each.settled_above],
            "unsettled": each.in_flight + each.visible_again,
            "acquired to": each.acquired_to,
            "attempt": each.attempt_max,
        }
        for each in (await cluster.admin.in_flight(group)).queues
        if not is_moving(each.queue.topic)
    ]


async def delayed(cluster: rockoon.Cluster) -> list[list[object]]:
    waiting = await cluster.admin.delayed.list(1024)
    assert not waiting.errors, waiting.errors
    return sorted(
        [
            each.message_id,
            str(each.queue),
            # The broker converts between two clocks, so the times differ by a millisecond or two.
            round((each.deliver_at_ms - each.store_timestamp_ms) / 1000),
            each.level,
            each.offset_message_id,
        ]
        for each in waiting.messages
        if not is_moving(each.queue.topic)
    )


async def half_messages(cluster: rockoon.Cluster) -> list[object]:
    replies = []
    for each in await cluster.admin.transactions():
        assert each.reply is not None, each.error
        replies.append(each.reply)
    # The broker increases the number of checks with time.
    found = [fields(waiting, "checks") for reply in replies for waiting in reply.transactions]
    return sorted(found, key=str)


async def by_key(cluster: rockoon.Cluster, key: str) -> list[str]:
    """Return the ids of the messages with a key, once the index contains all these messages."""
    async with asyncio.timeout(POLL_SECONDS_MAX):
        while True:
            found = await cluster.admin.messages.query("plain", key)
            if found.whole:
                return sorted(message.message_id for message in found.messages)
            await asyncio.sleep(LOOK_SECONDS)


def differences(former: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each difference of two photographs."""
    if isinstance(former, dict) and isinstance(found, dict):
        for key in sorted(former.keys() | found.keys()):
            if key in former and key in found:
                yield from differences(former[key], found[key], f"{place}/{key}")
            else:
                yield f"{place}/{key}: {'is missing' if key in former else 'is new'}"
    elif isinstance(former, list) and isinstance(found, list) and len(former) == len(found):
        for index, (one, other) in enumerate(zip(former, found, strict=True)):
            yield from differences(one, other, f"{place}/{index}")
    elif former != found:
        yield f"{place}: was {former!r}, is {found!r}"


def offsets_alone(whole: Photograph) -> Photograph:
    """Return a photograph with as much of the groups' progress as an export of offsets keeps."""
    kept = {name: whole[name] for name in whole.keys() - {"in flight"}}
    names = ("group", "member", "queue", "offset", "metadata")
    progress = [{name: each[name] for name in names if name in each} for each in whole["progress"]]
    return kept | {"progress": [each for each in progress if "offset" in each]}
