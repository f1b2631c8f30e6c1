"""Checks that a topic's messages were delivered and settled as promised to its groups.

Pure: its input is the replies to a producer, the messages that are stored in the end, and for each
group the deliveries and replies of its consumers, in the order in which the consumers saw them. A
message is named "STREAM-NUMBER". A producer sends the numbers of a stream one after another, each
after the previous one was acknowledged. It may repeat a send under the same name, so a message may
be stored more than once; consumers do not cause these repetitions.

At-least-once delivery allows this: a message is delivered again until an acknowledgement of it got
the reply OK; if the reply was an error, or was lost, the message is delivered again or not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

EXAMPLES_MAX = 3


class Kind(Enum):
    """Kinds of steps that a consumer sees."""

    DELIVERED = auto()
    TRIED = auto()
    """Its acknowledgement is about to be sent."""
    SETTLED = auto()
    """Its acknowledgement got the reply OK."""
    ALL_SETTLED = auto()
    """The group has no message left: its committed offsets are the queues' ends."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the history; `message` is empty for ALL_SETTLED.

    Attributes:
        batch: of DELIVERED, number of the reply with the message; 0: not known.
    """

    kind: Kind
    message: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """Steps of a group's consumers.

    Args:
        name: name of the group.
        steps: steps of all its consumers, in one order.
        is_fifo: messages of a stream are delivered in order, each after the previous one is
            is_fifo: messages of a stream are delivered in order, each together with the previous
                one, or
        after that one is settled. If one is delivered again, the later ones are delivered again,
        too.
            by themselves.
    """

    name: str
    steps: Sequence[Step]
    is_fifo: bool = False
    tells: bool = True


LOST = "acknowledged to its producer and not stored"
INVENTED = "delivered and not stored"
NEVER = "stored and never delivered"
CAME_BACK = "delivered after it was settled"
OVERTAKEN = "delivered before an earlier one of its stream"
TURNED_BACK = "delivered again after a later one of its stream"
UNSETTLED_BEFORE = "delivered while an earlier one of its stream was not acknowledged"


def judge(
    acknowledged: Iterable[str], copies: Mapping[str, int], groups: Iterable[GroupHistory]
) -> list[str]:
    """Return violations as sentences; empty if every promise was kept.

    Args:
        acknowledged: messages whose producer got an acknowledgement.
        copies: number of stored copies of each message in the end.
        groups: groups of this topic; all began with its first message and read to the end.
    """
    found = [_sentence(LOST, [each for each in acknowledged if not copies.get(each)])]
    for group in groups:
        delivered = {step.message for step in group.steps if step.kind is Kind.DELIVERED}
        for kind, messages in (
            (INVENTED, sorted(delivered - copies.keys())),
            (NEVER, sorted(copies.keys() - delivered)),
            (CAME_BACK, _came_back(group, copies)),
            *(_disorder(group, copies) if group.is_fifo else ()),
        ):
            found.append(_sentence(f"{group.name}: {kind}", messages))
    return [sentence for sentence in found if sentence]


def _sentence(kind: str, messages: Sequence[str]) -> str:
    return f"{kind} ({len(messages)}): {', '.join(messages[:EXAMPLES_MAX])}" if messages else ""


def _came_back(group: GroupHistory, copies: Mapping[str, int]) -> list[str]:
    """Return deliveries after every copy was settled."""
    settled = Counter[str]()
    seen = set[str]()
    back = []
    for step in group.steps:
        if step.kind is Kind.ALL_SETTLED:
            settled.update({each: copies.get(each, 1) for each in seen})
        elif step.kind is Kind.SETTLED:
            settled[step.message] += 1
        elif step.kind is Kind.DELIVERED:
            if settled[step.message] >= copies.get(step.message, 1):
                back.append(step.message)
            if group.is_fifo and step.message in seen:
                for message in [each for each in settled if _is_behind(each, step.message)]:
                    del settled[message]
            seen.add(step.message)
    return back


def _is_behind(message: str, other: str) -> bool:
    """Return whether a message is a later one of the other's stream."""
    (stream, _, number), (of_other, _, before) = message.rpartition("-"), other.rpartition("-")
    return stream == of_other and int(number) > int(before)


def _disorder(
    group: GroupHistory, copies: Mapping[str, int]
) -> Iterable[tuple[str, Sequence[str]]]:
    """Return violations of the order of streams, by kind."""
    numbers: dict[str, list[int]] = {}
    for each in copies:
        stream, _, number = each.rpartition("-")
        numbers.setdefault(stream, []).append(int(number))
    before = {
        f"{stream}-{number}": f"{stream}-{earlier}"
        for stream, its in numbers.items()
        for earlier, number in zip(sorted(its), sorted(its)[1:], strict=False)
    }
    tried = set[str]()
    # By message, the number of the reply that delivered it last; by stream, its last message.
    batches: dict[str, int] = {}
    newest: dict[str, str] = {}
    overtaken, turned_back, unsettled = [], [], []
    for step in group.steps:
        if step.kind is Kind.TRIED:
            tried.add(step.message)
        if step.kind is not Kind.DELIVERED:
            continue
        message, batch = step.message, step.batch
        stream = message.rpartition("-")[0]
        earlier, last = before.get(message), newest.get(stream)
        if earlier is not None and earlier not in batches:
            overtaken.append(message)
        elif earlier is not None and group.tells and earlier not in tried:
            unsettled += [message] if not batch or batches[earlier] != batch else []
        # A copy by a repeated send may be stored after later messages. A program that does
        # not see acknowledgements does not know which messages of a reply have failed.
        if group.tells and last is not None and _is_behind(last, message):
            is_of_one_answer = batches[last] and batches.get(message) == batches[last]
            if copies.get(message, 1) == 1 and not is_of_one_answer:
                turned_back.append(message)
        newest[stream] = message
        batches[message] = batch
    return (OVERTAKEN, overtaken), (TURNED_BACK, turned_back), (UNSETTLED_BEFORE, unsettled)
