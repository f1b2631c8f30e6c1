"""Topics of a log that has, or had, copies: its own records say whose messages it holds.

Each copy knows it from them alone. What a copy has written down beside its log may be of a time in
which it led last: a topic that was deleted and created again since would lose messages once more,
or show those that are over.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rockoon_broker.topics.topics import ServedTopic, TopicPlan, TopicTable
from rockoon_format.log_marks import LogTopics, TopicChange

if TYPE_CHECKING:
    from rockoon_broker.append import Appends
    from rockoon_broker.store.store import Store

LISTED_SECONDS = 0.1


def as_log_topics(written: TopicTable) -> LogTopics:
    """What a log without epochs holds, by what its broker has written down."""
    incarnations = {topic.name: topic.incarnation for topic in written.served}
    return LogTopics(written.revision, written.history, incarnations)


def table_in_log(written: TopicTable, known: LogTopics) -> TopicTable:
    """What the next routes are compared with.

    Args:
        written: as this copy has written it down.
        known: what the log says; of a topic that was not written down nothing else is known.
    """
    at_least = written.revision if written.history == known.history else 0
    topics = {
        name: replace(written.topics.get(name) or ServedTopic(name, 0), incarnation=incarnation)
        for name, incarnation in known.incarnations.items()
    }
    return TopicTable(max(at_least, known.revision), known.history, topics)


def served_before_routes(written: TopicTable, known: LogTopics) -> TopicTable:
    """What was written down and is still so: the rest waits for routes."""
    topics = {
        name: topic
        for name, topic in written.topics.items()
        if known.incarnations.get(name) == topic.incarnation
    }
    return replace(written, topics=topics)


def change_of(known: LogTopics, planned: TopicPlan) -> TopicChange | None:
    """What the log has to say before a plan is in force; None if it does."""
    table = planned.table
    wanted = {
        topic.name: topic.incarnation
        for topic in table.topics.values()
        if topic.queues or topic.name in known.incarnations
    }
    changed = {
        name: wanted.get(name)
        for name in known.incarnations.keys() | wanted.keys()
        if known.incarnations.get(name) != wanted.get(name)
    }
    if not changed and table.history == known.history:
        return None
    # Only what the log knew in another incarnation: what is over is not over twice.
    anew = sorted(changed.keys() & known.incarnations.keys() & {*planned.over})
    return TopicChange(table.revision, table.history, changed, tuple(anew))


async def record(store: "Store", appends: "Appends", planned: TopicPlan) -> Sequence[str]:
    """Have the log say what a plan says; when this returns, that is committed and in force.

    Returns:
        The topics whose messages are gone.

    Raises:
        RockoonError: as `Appends.change_topics`; or another replica leads, or a sync has failed.
    """
    change = change_of(store.log_topics, planned)
    if change is None:
        return ()
    end, durable = appends.change_topics(change)
    failure = await durable
    if failure is not None:
        raise failure
    # Others may have it before this copy's disk has; then it is not listed here yet.
    while store.visible_end < end:  # noqa: ASYNC110 - the next tick of the store lists it
        await asyncio.sleep(LISTED_SECONDS)
    return change.anew
