"""Whether a topic's messages were delivered and settled as its groups were promised.

Pure: it is told what a producer was answered, what is stored in the end, and what each group's
consumers got and were answered, in the order in which they knew of it. A message is known by
"STREAM-NUMBER"; a producer sends the numbers of a stream one after the other, and goes on to the
next when one was answered OK. It may send one again under the same name, so a message may be stored
more than once; what then comes more than once is none of the consumers' doing.

What at-least-once delivery allows, and is no finding: a message comes again until an
acknowledgement of it was answered OK; one whose acknowledgement was answered by an error, or not at
all, comes again or not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

EXAMPLES_MAX = 3


class Kind(Enum):
    """What a consumer knows of."""

    DELIVERED = auto()
    TRIED = auto()
    """Its acknowledgement is about to be sent."""
    SETTLED = auto()
    """Its acknowledgement was answered OK."""
    ALL_SETTLED = auto()
    """The group has nothing left: its committed offsets are the queues' ends."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the history; `message` is empty for ALL_SETTLED.

    Attributes:
        batch: of DELIVERED, a number of the answer that brought it; 0: not known.
    """

    kind: Kind
    message: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What a group's consumers saw.

    Args:
        name: of the group.
        steps: of all its consumers, in one order.
        is_fifo: messages of a stream come in their order, each with the one before or after that is
            settled. If one comes again, those behind it come again, too.
        tells: the client's program sees what acknowledgements are answered; push consumers
            acknowledge by themselves.
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
    """What cannot be, in sentences; empty when every promise was kept.

    Args:
        acknowledged: messages whose producer was told that they are stored.
        copies: how often each message is stored in the end.
        groups: of this topic; all began with its first message and read until nothing was left.
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
    """Deliveries when every copy was settled."""
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
    """Whether a message is a later one of the other's stream."""
    (stream, _, number), (of_other, _, before) = message.rpartition("-"), other.rpartition("-")
    return stream == of_other and int(number) > int(before)


def _disorder(
    group: GroupHistory, copies: Mapping[str, int]
) -> Iterable[tuple[str, Sequence[str]]]:
    """What breaks the order of streams, by kind."""
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
    # By message, the answer that brought it last; by stream, the message that came last.
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
        # A copy that comes of sending again may be stored behind later ones. A program that does
        # not see acknowledgements does not know which of an answer's messages failed.
        if group.tells and last is not None and _is_behind(last, message):
            is_of_one_answer = batches[last] and batches.get(message) == batches[last]
            if copies.get(message, 1) == 1 and not is_of_one_answer:
                turned_back.append(message)
        newest[stream] = message
        batches[message] = batch
    return (OVERTAKEN, overtaken), (TURNED_BACK, turned_back), (UNSETTLED_BEFORE, unsettled)
