"""Judge of a run with several gateways: which promises did not hold, with the messages. Pure.

each message is handled once; again only if the client that handled it was killed
no attempt is counted while the receiver lives
no dead letter, since no handler fails
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# If a message was handled so shortly before its client was killed, its acknowledgement may be lost.
ACKNOWLEDGED_SECONDS = 10.0
NOT_HANDLED = "never handled"
HANDLED_AGAIN = "handled again without a kill of its client"
ATTEMPT_COUNTED = "attempt counted while its receiver lived"
DEAD_LETTER = "dead letter without a failure"
NOT_ACKNOWLEDGED = "not acknowledged at the end"
KINDS = (NOT_HANDLED, HANDLED_AGAIN, ATTEMPT_COUNTED, DEAD_LETTER, NOT_ACKNOWLEDGED)


@dataclass(frozen=True)
class Delivery:
    """A call of a listener; times are of one monotonic clock, seconds.

    Attributes:
        body: names the message.
        message_id: of the protocol.
        attempt: number that the client received.
        client: the client process.
        began: when the listener was called.
        handled: when it returned; None if it did not.
    """

    body: str
    message_id: str
    attempt: int
    client: str
    began: float
    handled: float | None


@dataclass(frozen=True)
class Group:
    """All that happened to the messages of one consumer group.

    Attributes:
        name: of the group.
        sent: when each message was acknowledged to its producer, by body.
        copies: how often each is stored; a producer whose call failed sends again.
        deliveries: calls of listeners.
        killed: when a client process was killed, by its name.
        dead_letters: bodies in the group's dead letter topic.
        lag: messages that were not acknowledged at the end.
    """

    name: str
    sent: Mapping[str, float]
    copies: Mapping[str, int]
    deliveries: Sequence[Delivery]
    killed: Mapping[str, float]
    dead_letters: Sequence[str]
    lag: int


def violations(group: Group) -> Iterator[str]:
    """Yield each broken promise as a sentence."""
    by_body: dict[str, list[Delivery]] = {body: [] for body in group.sent}
    for each in group.deliveries:
        by_body.setdefault(each.body, []).append(each)
    for body, deliveries in by_body.items():
        yield from _of_message(group, body, sorted(deliveries, key=lambda each: each.began))
    for body in group.dead_letters:
        yield f"{group.name}: message {body}: {DEAD_LETTER}"
    if group.lag:
        yield f"{group.name}: {NOT_ACKNOWLEDGED}: {group.lag} messages"


def _of_message(group: Group, body: str, deliveries: Sequence[Delivery]) -> Iterator[str]:
    """Yield at most one sentence, with all that is wrong with a message, and its deliveries."""
    problems = []
    if all(each.handled is None for each in deliveries):
        problems.append(NOT_HANDLED)
    allowed = group.copies.get(body, 1) + sum(_is_lost(group, each) for each in deliveries)
    if len(deliveries) > allowed:
        problems.append(f"{HANDLED_AGAIN} ({len(deliveries)} times, {allowed} allowed)")
    counted = [each.attempt for each in deliveries if each.attempt > _attempts_max(group, each)]
    if counted:
        problems.append(f"{ATTEMPT_COUNTED} ({', '.join(map(str, counted))})")
    if problems:
        history = "; ".join(map(_text, deliveries)) or "no delivery"
        yield f"{group.name}: message {body}: {', '.join(problems)}: {history}"


def _attempts_max(group: Group, delivery: Delivery) -> int:
    """Highest attempt that kills of clients explain.

    Messages that a client has fetched and not yet handled are lost with it, too.
    """
    sent = group.sent.get(delivery.body, 0.0)
    return 1 + sum(sent <= at <= delivery.began for at in group.killed.values())


def _is_lost(group: Group, delivery: Delivery) -> bool:
    """Whether the client was killed before the acknowledgement."""
    killed = group.killed.get(delivery.client)
    if killed is None:
        return False
    return delivery.handled is None or delivery.handled > killed - ACKNOWLEDGED_SECONDS


def _text(each: Delivery) -> str:
    end = "not handled" if each.handled is None else f"handled in {each.handled - each.began:.0f} s"
    return f"{each.message_id} attempt {each.attempt} by {each.client} at {each.began:.0f} s, {end}"


def summary(found: Iterable[str]) -> Counter[str]:
    """Count violations by kind."""
    return Counter(kind for each in found for kind in KINDS if kind in each)
