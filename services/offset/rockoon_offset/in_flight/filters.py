"""Filters of a group's readers, and warnings where the filters differ.

A message that one reader's filter excludes is settled for the whole group, as in RocketMQ. If two
readers of one group have different filters, each reader discards messages that the other wants.

Members name their filters in heartbeats. Receivers are no members: every ten seconds they report
their filters with an acquisition. Reports are not stored; after a restart receivers report again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rockoon_offset.members.membership import CLUSTERING, NO_SDK, ClientSdk, Membership

log = logging.getLogger(__name__)

Value = TypeVar("Value")

# How long a report is valid: twice the time that the receiver may handle its messages, within these
# bounds.
KEPT_MS_MIN = 60_000
KEPT_MS_MAX = 600_000
# Bounds on groups, topics of a group, expressions of a topic, receivers of an expression. Beyond a
# bound, the entry that was reported least recently is removed.
GROUPS_MAX = 10_000
TOPICS_MAX = 4_096
EXPRESSIONS_MAX = 16
RECEIVERS_MAX = 64
WARNED_AGAIN_MS = 600_000
# Receivers that left last, of all groups: a call that arrived before a receiver left reports no
# filters of the receiver.
REMOVED_MAX = 10_000
# Names and filters in one warning.
NAMED_MAX = 3
FILTERS_NAMED_MAX = 8
EXPRESSION_CHARACTERS_MAX = 200


class TopicFilter(NamedTuple):
    """Filter of a reader for one topic: "*", tags, or an SQL92 expression."""

    topic: str
    expression: str


class ReceiverProgram(NamedTuple):
    """Network address and SDK of a receiver, for display only; empty for clients of gateways."""

    address: str = ""
    sdk: ClientSdk = NO_SDK


NO_PROGRAM = ReceiverProgram()


class FilterReport(NamedTuple):
    """Times at which a receiver's filter was reported and expires; epoch milliseconds."""

    heard_at_ms: int
    until_ms: int
    program: ReceiverProgram


class ReceiverFilter(NamedTuple):
    """One receiver and its filter for a topic."""

    receiver: str
    filter: TopicFilter
    heard_at_ms: int
    program: ReceiverProgram


class ReaderFilters:
    """Filters of a group's members and receivers for each topic.

    Args:
        membership: members, with their filters.
        now_ms: clock that does not jump, epoch milliseconds.

    Attributes:
        removals: number of receivers removed so far.
    """

    def __init__(self, membership: Membership, now_ms: Callable[[], int]) -> None:
        self._membership = membership
        self._now_ms = now_ms
        # Group → topic → expression → receiver → report. Each dict in the order of last reports.
        self._groups: dict[str, dict[str, Expressions]] = {}
        # (group, topic) → (expressions in the last warning, its time).
        self._warned: dict[tuple[str, str], tuple[frozenset[str], int]] = {}
        self.removals = 0
        # (group, receiver) → `removals` after its last removal, in this order.
        self._removed: dict[tuple[str, str], int] = {}

    def report(
        self,
        group: str,
        names: Sequence[str],
        filters: Iterable[TopicFilter],
        invisible_ms: int,
        removals: int,
        program: ReceiverProgram = NO_PROGRAM,
    ) -> Iterator[str]:
        """Store the filters of receivers of one program, one per iteration: thousands of filters
        need half a second. Logs a warning if the filters of a topic differ. Between two iterations,
        receivers may leave and members may join or leave.

        Args:
            names: display names of the receivers; all of them have these filters.
            filters: one filter for each topic that the receivers read.
            invisible_ms: how long a receiver may handle acquired messages, milliseconds.
            removals: value of the attribute when the receivers' call arrived. Receivers that were
                removed later are omitted.
            program: address and SDK of the receivers' program, for display.

        Yields:
            Warning for the receivers about the first topic with different filters so far; empty if
            there is none.
        """
        now_ms = self._now_ms()
        kept_ms = min(max(2 * invisible_ms, KEPT_MS_MIN), KEPT_MS_MAX)
        report = FilterReport(now_ms, now_ms + kept_ms, program)
        members, version = self._of_members(group), self._membership.version(group)
        checked, warning = removals, ""
        for topic, expression in filters:
            if self.removals != checked:
                checked = self.removals
                names = [each for each in names if self._removed.get((group, each), 0) <= removals]
                if not names:
                    return
            if self._membership.version(group) != version:
                members, version = self._of_members(group), self._membership.version(group)
            # Not once for all filters: between two iterations, the group may have been removed.
            topics = moved_last(self._groups, group, GROUPS_MAX)
            expressions = moved_last(topics, topic, TOPICS_MAX)
            receivers = moved_last(expressions, expression, EXPRESSIONS_MAX)
            for name in names:
                receivers.pop(name, None)
                receivers[name] = report
                if len(receivers) > RECEIVERS_MAX:
                    del receivers[next(iter(receivers))]
            remove_expired(expressions, now_ms)
            readers = joined(members.get(topic, {}), expressions)
            warning = warning or self._warn(group, topic, readers, now_ms)
            yield warning

    def remove(self, group: str, receiver: str) -> None:
        """Remove the filters of a receiver that has left the group."""
        self.removals += 1
        self._removed.pop((group, receiver), None)
        self._removed[group, receiver] = self.removals
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        for expressions in self._groups.get(group, {}).values():
            for receivers in expressions.values():
                receivers.pop(receiver, None)

    def of_receivers(self, group: str) -> Iterator[ReceiverFilter]:
        """Return the filters of receivers whose reports have not expired, sorted."""
        for topic, expressions in sorted(self._valid(group).items()):
            for expression, receivers in sorted(expressions.items()):
                for receiver, report in sorted(receivers.items()):
                    of = TopicFilter(topic, expression)
                    yield ReceiverFilter(receiver, of, report.heard_at_ms, report.program)

    def readers_of(self, group: str, topic: str) -> dict[str, list[str]]:
        """Return the clustering members and receivers that use each filter expression."""
        members = self._of_members(group).get(topic, {})
        return joined(members, self._valid(group).get(topic, {}))

    def conflicts(self, group: str) -> list[str]:
        """Return a warning for each topic whose receivers have readers with different filters."""
        members = self._of_members(group)
        readers = {
            topic: joined(members.get(topic, {}), expressions)
            for topic, expressions in sorted(self._valid(group).items())
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
        # Without names: names change from report to report, and receivers log each new warning.
        return sentence(topic, dict.fromkeys(readers, ""))

    def _of_members(self, group: str) -> dict[str, dict[str, list[str]]]:
        """Return the ids of the clustering members, by topic and filter expression."""
        found: dict[str, dict[str, list[str]]] = {}
        for lease in self._membership.leases(group):
            if lease.member.mode == CLUSTERING:
                for topic, expression in lease.member.subscriptions:
                    by_expression = found.setdefault(topic, {})
                    by_expression.setdefault(expression, []).append(lease.member.member_id)
        return found

    def _valid(self, group: str) -> dict[str, "Expressions"]:
        """Return a group's valid reports of receivers, and remove expired ones."""
        topics = self._groups.get(group)
        if topics is None:
            return {}
        now_ms = self._now_ms()
        for topic, expressions in list(topics.items()):
            remove_expired(expressions, now_ms)
            if not expressions:
                del topics[topic]
        if not topics:
            del self._groups[group]
        return topics


Expressions = dict[str, dict[str, FilterReport]]


def moved_last(known: dict[str, dict[str, Value]], key: str, keys_max: int) -> dict[str, Value]:
    """Return the entry of a key, created if missing, and move it to the end.

    With more than `keys_max` keys, the first key is removed.
    """
    entry = known[key] = known.pop(key, {})
    if len(known) > keys_max:
        del known[next(iter(known))]
    return entry


def remove_expired(expressions: Expressions, now_ms: int) -> None:
    for expression, receivers in list(expressions.items()):
        for receiver in [name for name, each in receivers.items() if each.until_ms <= now_ms]:
            del receivers[receiver]
        if not receivers:
            del expressions[expression]


def joined(
    members: Mapping[str, Sequence[str]], receivers: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
    """Return the names of members and receivers that use each filter expression."""
    expressions = [*members, *(each for each in receivers if each not in members)]
    return {each: [*members.get(each, ()), *receivers.get(each, ())] for each in expressions}


def sentence(topic: str, readers: Mapping[str, Sequence[str]]) -> str:
    """Return the warning text about a topic: its filters, and the readers of each filter."""
    parts = [
        f"{shown(expression)}{named(list(names))}" for expression, names in sorted(readers.items())
    ]
    more = len(parts) - FILTERS_NAMED_MAX
    if more > 0:
        parts[FILTERS_NAMED_MAX:] = [f"and {more} more filters"]
    return (
        f"readers of topic {topic} have different filters: {', '.join(parts)}. A message that one "
        "filter excludes is settled for the whole group, so the other readers do not get it"
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
