"""Filters by which the readers of a group read its topics, and where they differ.

A message that a reader's filter leaves out is settled for the whole group, as in RocketMQ. If
two readers of one group have different filters, each reader loses messages of the other.

Members name their filters in heartbeats. Receivers are no members: every ten seconds they report
their filters with an acquisition. Reports are not stored; after a restart receivers report again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rockoon_offset.members.membership import CLUSTERING, Membership

log = logging.getLogger(__name__)

Value = TypeVar("Value")

# How long a filter counts after it was reported: twice the time that the receiver may handle its
# messages, within these bounds.
KEPT_MS_MIN = 60_000
KEPT_MS_MAX = 600_000
# Of groups, of topics of a group, of expressions of a topic, of receivers with one expression: the
# ones that were reported least recently are forgotten.
GROUPS_MAX = 10_000
TOPICS_MAX = 4_096
EXPRESSIONS_MAX = 16
RECEIVERS_MAX = 64
WARNED_AGAIN_MS = 600_000
# In one sentence.
NAMED_MAX = 3
FILTERS_NAMED_MAX = 8
EXPRESSION_CHARACTERS_MAX = 200


class TopicFilter(NamedTuple):
    """What a reader wants of a topic: "*", tags, or an SQL92 expression."""

    topic: str
    expression: str


class Report(NamedTuple):
    """When a receiver reported a filter, and until when that counts; epoch milliseconds."""

    heard_at_ms: int
    until_ms: int


class ReceiverFilter(NamedTuple):
    """A filter of one receiver."""

    receiver: str
    filter: TopicFilter
    heard_at_ms: int


class ReaderFilters:
    """See the module.

    Args:
        membership: members have filters too.
        now_ms: epoch milliseconds of a clock that does not jump.
    """

    def __init__(self, membership: Membership, now_ms: Callable[[], int]) -> None:
        self._membership = membership
        self._now_ms = now_ms
        # Group → topic → expression → receiver → report. Each in the order of the last report.
        self._groups: dict[str, dict[str, Expressions]] = {}
        # Group and topic → the expressions that were warned of, and when.
        self._warned: dict[tuple[str, str], tuple[frozenset[str], int]] = {}

    def report(
        self, group: str, receiver: str, filters: Iterable[TopicFilter], invisible_ms: int
    ) -> str:
        """Note the filters of a receiver; logs a warning when readers of a topic differ.

        Args:
            group: its name.
            receiver: its name, for people.
            filters: one for each topic that it reads.
            invisible_ms: how long it may handle acquired messages, milliseconds.

        Returns:
            A sentence for the receiver about a topic on which readers differ; empty if none.
        """
        now_ms = self._now_ms()
        kept_ms = min(max(2 * invisible_ms, KEPT_MS_MIN), KEPT_MS_MAX)
        topics = moved_last(self._groups, group, GROUPS_MAX)
        members = self._of_members(group)
        warning = ""
        for topic, expression in filters:
            expressions = moved_last(topics, topic, TOPICS_MAX)
            receivers = moved_last(expressions, expression, EXPRESSIONS_MAX)
            receivers.pop(receiver, None)
            receivers[receiver] = Report(now_ms, now_ms + kept_ms)
            if len(receivers) > RECEIVERS_MAX:
                del receivers[next(iter(receivers))]
            forget_old(expressions, now_ms)
            readers = joined(members.get(topic, {}), expressions)
            warning = warning or self._warn(group, topic, readers, now_ms)
        return warning

    def forget(self, group: str, receiver: str) -> None:
        """Forget the filters of a receiver that has left."""
        for expressions in self._groups.get(group, {}).values():
            for receivers in expressions.values():
                receivers.pop(receiver, None)

    def of_receivers(self, group: str) -> Iterator[ReceiverFilter]:
        """Filters that receivers reported, as long as they count; sorted."""
        for topic, expressions in sorted(self._counting(group).items()):
            for expression, receivers in sorted(expressions.items()):
                for receiver, report in sorted(receivers.items()):
                    of = TopicFilter(topic, expression)
                    yield ReceiverFilter(receiver, of, report.heard_at_ms)

    def readers_of(self, group: str, topic: str) -> dict[str, list[str]]:
        """Expressions by which members and receivers share a topic, each with their names."""
        members = self._of_members(group).get(topic, {})
        return joined(members, self._counting(group).get(topic, {}))

    def conflicts(self, group: str) -> list[str]:
        """A sentence for each topic that receivers read and on which readers differ."""
        members = self._of_members(group)
        readers = {
            topic: joined(members.get(topic, {}), expressions)
            for topic, expressions in sorted(self._counting(group).items())
        }
        return [sentence(topic, of) for topic, of in readers.items() if len(of) > 1]

    def _warn(
        self, group: str, topic: str, readers: Mapping[str, Sequence[str]], now_ms: int
    ) -> str:
        if len(readers) < 2:
            self._warned.pop((group, topic), None)
            return ""
        expressions = frozenset(readers)
        before, at_ms = self._warned.get((group, topic), (frozenset(), 0))
        if expressions != before or now_ms - at_ms >= WARNED_AGAIN_MS:
            if len(self._warned) >= GROUPS_MAX:
                self._warned.clear()
            self._warned[group, topic] = expressions, now_ms
            log.warning("group %s: %s", group, sentence(topic, readers))
        # Without names: these change from report to report, and receivers log a new sentence.
        return sentence(topic, dict.fromkeys(readers, ""))

    def _of_members(self, group: str) -> dict[str, dict[str, list[str]]]:
        """Topic → expression → members that share the group's queues."""
        found: dict[str, dict[str, list[str]]] = {}
        for lease in self._membership.leases(group):
            if lease.member.mode == CLUSTERING:
                for topic, expression in lease.member.subscriptions:
                    by_expression = found.setdefault(topic, {})
                    by_expression.setdefault(expression, []).append(lease.member.member_id)
        return found

    def _counting(self, group: str) -> dict[str, "Expressions"]:
        """What counts of the reports of a group; the rest is forgotten."""
        topics = self._groups.get(group)
        if topics is None:
            return {}
        now_ms = self._now_ms()
        for topic, expressions in list(topics.items()):
            forget_old(expressions, now_ms)
            if not expressions:
                del topics[topic]
        if not topics:
            del self._groups[group]
        return topics


Expressions = dict[str, dict[str, Report]]


def moved_last(known: dict[str, dict[str, Value]], key: str, keys_max: int) -> dict[str, Value]:
    """Return the entry of a key, made if it is missing, as the last one; the first one is forgotten
    when there are too many."""
    entry = known[key] = known.pop(key, {})
    if len(known) > keys_max:
        del known[next(iter(known))]
    return entry


def forget_old(expressions: Expressions, now_ms: int) -> None:
    for expression, receivers in list(expressions.items()):
        for receiver in [name for name, each in receivers.items() if each.until_ms <= now_ms]:
            del receivers[receiver]
        if not receivers:
            del expressions[expression]


def joined(
    members: Mapping[str, Sequence[str]], receivers: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
    """Names of members and receivers by their expressions."""
    expressions = [*members, *(each for each in receivers if each not in members)]
    return {each: [*members.get(each, ()), *receivers.get(each, ())] for each in expressions}


def sentence(topic: str, readers: Mapping[str, Sequence[str]]) -> str:
    """Say who reads a topic by which filter."""
    parts = [
        f"{shown(expression)}{named(list(names))}" for expression, names in sorted(readers.items())
    ]
    more = len(parts) - FILTERS_NAMED_MAX
    if more > 0:
        parts[FILTERS_NAMED_MAX:] = [f"and {more} more filters"]
    return (
        f"readers of topic {topic} have different filters: {', '.join(parts)}. A message that one "
        "filter leaves out is settled for the whole group, so the others do not get it"
    )


def shown(expression: str) -> str:
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        expression = f"{expression[:EXPRESSION_CHARACTERS_MAX]}..."
    return repr(expression)


def named(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f" ({', '.join(names[:NAMED_MAX])}{more})"
