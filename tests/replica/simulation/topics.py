"""A topic that is deleted and created again while leaders change, as their brokers see it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from replica.simulation.stored_log import StoredLog
from replica.simulation.truth import Violation
from rockoon_broker.topics.served_topics import change_of, table_in_log
from rockoon_broker.topics.topics import RouteChange, ServedTopic, TopicTable, plan
from rockoon_format.log_marks import LogTopics
from rockoon_node.deletions import Deletions

if TYPE_CHECKING:
    from replica.simulation.node import Node
    from replica.simulation.world import World

NAME = "T"
ETCD = 1


class Routes:
    """Routes of the topic from nameservers.

    Attributes:
        incarnation: revision of its creation; None: the topic does not exist.
    """

    def __init__(self) -> None:
        self._revision = 1
        self._deleted = 0
        self.incarnation: int | None = None
        self.change(random.Random(0))

    def change(self, choose: random.Random) -> None:
        """Create the topic, or delete it and in most cases create it again immediately."""
        if self.incarnation is not None:
            self._revision += 1
            self._deleted, self.incarnation = self._revision, None
            if choose.random() < 0.3:
                return
        self._revision += 1
        self.incarnation = self._revision

    def snapshot(self) -> RouteChange:
        """Return all routes, in the form of a broker."""
        topics = [] if self.incarnation is None else [ServedTopic(NAME, 1, self.incarnation)]
        deletions = Deletions({NAME: self._deleted} if self._deleted else {}, {}, 1)
        return RouteChange(self._revision, True, ETCD, topics, (), deletions)


class TopicOfLeader:
    """A leader's use of the routes, in one life.

    Args:
        log: the log that it leads.

    Attributes:
        served: incarnation whose messages it accepts; None: none.
    """

    def __init__(self, log: StoredLog) -> None:
        self._log = log
        self.served: int | None = None
        self._table: TopicTable | None = None
        self._waiting: tuple[int, TopicTable] | None = None

    def follow(self, routes: Routes, own: LogTopics | None) -> LogTopics | None:
        """Compare with the routes, and write changes to the log.

        Args:
            own: incarnation to use instead of the log's (broken).

        Returns:
            The current incarnation, to be written to the file of topics; None: unchanged.
        """
        if self._waiting is not None:
            end, table = self._waiting
            if self._log.visible_end < end:
                return None
            return self._serve(table)
        known = self._log.topics if own is None else own
        before = self._table or table_in_log(TopicTable(), known)
        planned = plan(before, routes.snapshot())
        change = change_of(known, planned)
        if change is None:
            return self._serve(planned.table)
        self.served = None
        self._waiting = self._log.change_topics(change), planned.table
        return None

    def _serve(self, table: TopicTable) -> LogTopics:
        self._waiting, self._table = None, table
        topic = table.topics.get(NAME)
        self.served = None if topic is None else topic.incarnation
        known = {} if self.served is None else {NAME: self.served}
        return LogTopics(table.revision, table.history, known)


def check_topic(world: World, node: Node, incarnation: int | None) -> None:
    """Check that a replica with all entries shows exactly the messages of a topic.

    Args:
        incarnation: of the topic; None: it does not exist.
    """
    log = node.log
    if incarnation is None or not isinstance(log, StoredLog):
        return
    if log.visible_end < world.truth.end:
        return
    shown = log.visible_values()
    if old := [value for value in shown if world.sent_to[value] != incarnation]:
        raise Violation(f"{node.replica} shows {old} of a topic that was deleted")
    given = {value for value in world.truth.acked if world.sent_to[value] == incarnation}
    if hidden := given - {*shown}:
        raise Violation(f"{node.replica} hides {hidden}, which were acknowledged")
