"""Consistency of a group: differences between subscriptions and settings of its members."""

from collections.abc import Collection, Iterable

from rockoon_format.names import is_retry_topic
from rockoon_proto.v1.offset_pb2 import CLUSTERING, Member


def contradictions(members: Collection[Member]) -> list[str]:
    """Return a text for each setting that must be equal on members that share queues and differs.

    If members use different allocations, some queues have no reader and others have two. If they
    have different topics or expressions, messages that one member excludes count as consumed for
    the group.

    Args:
        members: all members of a group; broadcasting members are ignored.
    """
    sharing = [each for each in members if each.mode == CLUSTERING]
    texts = _differing(
        "share queues by different rules", ((m.allocation, m.member_id) for m in sharing)
    )
    expressions: dict[str, dict[str, str]] = {}
    for member in sharing:
        for entry in member.subscriptions:
            if not is_retry_topic(entry.topic):
                expressions.setdefault(entry.topic, {})[member.member_id] = entry.expression
    for topic, by_member in sorted(expressions.items()):
        every = ((by_member.get(m.member_id, "nothing"), m.member_id) for m in sharing)
        texts += _differing(f"read different things of topic {topic}", every)
    return texts


def _differing(what: str, said: Iterable[tuple[str, str]]) -> list[str]:
    members_by_word: dict[str, list[str]] = {}
    for word, member in said:
        members_by_word.setdefault(word or "unnamed", []).append(member)
    if len(members_by_word) < 2:
        return []
    parts = "; ".join(
        f"{word}: {_some(members)}" for word, members in sorted(members_by_word.items())
    )
    return [f"members {what}: {parts}"]


def _some(members: list[str], shown_max: int = 3) -> str:
    rest = len(members) - shown_max
    return ", ".join(members[:shown_max]) + (f" and {rest} more" if rest > 0 else "")
