"""Topics of a replicated log, or of a log that was replicated: records in the log list them.

A replica uses only these records. Its own topic file may be from the last time it was leader. If a
topic was deleted and created again since, that file would make the broker lose new messages, or
serve deleted ones.
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
    """Return the topics of a log without epochs, from the broker's file."""
    incarnations = {topic.name: topic.incarnation for topic in written.served}
    return LogTopics(written.revision, written.history, incarnations)


def table_in_log(written: TopicTable, known: LogTopics) -> TopicTable:
    """Return the topic table to compare with the next routes.

    Args:
        written: table in this replica's topic file.
        known: topics in the log; of topics missing in the file only the incarnation is known.
    """
    at_least = written.revision if written.history == known.history else 0
    topics = {
        name: replace(written.topics.get(name) or ServedTopic(name, 0), incarnation=incarnation)
        for name, incarnation in known.incarnations.items()
    }
    return TopicTable(max(at_least, known.revision), known.history, topics)


def served_before_routes(written: TopicTable, known: LogTopics) -> TopicTable:
    """Return the topics of the file that can be served before routes arrive; others must wait."""
    topics = {
        name: topic
        for name, topic in written.topics.items()
        if known.incarnations.get(name) == topic.incarnation
    }
    return replace(written, topics=topics)


def change_of(known: LogTopics, planned: TopicPlan) -> TopicChange | None:
    """Return the topic change that must be appended to the log before a plan applies; None if
    none."""
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
    # Only topics that the log had in another incarnation: each deletion counts once.
    anew = sorted(changed.keys() & known.incarnations.keys() & {*planned.over})
    return TopicChange(table.revision, table.history, changed, tuple(anew))


async def record(store: "Store", appends: "Appends", planned: TopicPlan) -> Sequence[str]:
    """Append the topic change of a plan to the log; on return it is committed and applied.

    Returns:
        The topics whose messages were dropped.

    Raises:
        RockoonError: see `Appends.change_topics`; or another replica leads, or a sync has failed.
    """
    change = change_of(store.log_topics, planned)
    if change is None:
        return ()
    end, durable = appends.change_topics(change)
    failure = await durable
    if failure is not None:
        raise failure
    # Other copies may have it before this copy's disk; then it is not listed here yet.
    while store.visible_end < end:  # noqa: ASYNC110 - the next tick of the store lists it
        await asyncio.sleep(LISTED_SECONDS)
    return change.anew
