"""Checks that queues behaved as logs, from the calls and replies of all senders and readers.

Pure: its input is the calls of senders and readers, their replies, and their times. Each queue must
be *linearizable* (Herlihy and Wing 1990): every call takes effect at one moment between its start
and its reply, an append at the queue's end, a read of all messages before it. So an acknowledged
message is at one position, and every read that starts after its reply returns it; a failed message
is there or not, and this does not change; the end of a queue never decreases.

In general this is hard to decide. Here the offsets state the order in which the calls took effect:
the append at `o` comes after the reads that end at `o`, and before those that end at `o + 1`. So
such moments exist exactly if no call in this order started after the reply of a later call, which
one pass over the sorted calls shows.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

EXAMPLES_MAX = 3
NEVER_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class Append:
    """A message that a producer sent.

    Args:
        message: identity of the message, also in reads; unique.
        began_ns: time at which the producer got it; by a clock that all calls share.
        ended_ns: time at which its sender got the acknowledgement; None: never, so that the message
            may be stored or not.
        queue, offset: its position, if it was acknowledged.
        stream: messages of one stream keep their order, as those of one producer and key; "": none.
        number: number in its stream.
        is_numbered: sent by an idempotent producer, so that it is stored at most once.
    """

    message: Hashable
    began_ns: int
    ended_ns: int | None = None
    queue: str = ""
    offset: int = -1
    stream: str = ""
    number: int = 0
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A read with a reply.

    Args:
        messages: those at `first`, `first + 1`, ...; None: the reader was moved past this offset.
        end: end of the queue according to the reply.
        reader: name of the reader, with `may_be_old`.
        may_be_old: the broker may not know that another one continues the log. The read may lack
            messages that other readers have seen, but none that this reader has seen.
    """

    queue: str
    began_ns: int
    ended_ns: int
    first: int
    messages: Sequence[Hashable]
    end: int
    reader: str = ""
    may_be_old: bool = False


@dataclass(slots=True)
class _Call:
    """A call that took effect, in the order of `key`s."""

    key: int
    began_ns: int
    ended_ns: int
    said: str
    is_read: bool


@dataclass(slots=True)
class _Findings:
    """Sentences by kind, the first ones of each kind with examples."""

    _found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def note(self, kind: str, example: str) -> None:
        self._found[kind].append(example)

    def sentences(self) -> list[str]:
        return [
            f"{kind} ({len(found)}): {'; '.join(found[:EXAMPLES_MAX])}"
            for kind, found in self._found.items()
        ]


CHANGED = "a place holds one message and another"
INVENTED = "messages that nobody sent"
GAP = "places without a message"
BEYOND = "reads of more than the queue has"
TWICE = "a number of an idempotent producer is stored twice"
DISORDER = "a stream is out of its order"
TAKEN_BACK = "a read ends before what had been read"
NOT_SEEN = "a read misses what had been acknowledged"
TOO_EARLY = "read before it was sent"
OUT_OF_TURN = "an append is before one that was acknowledged when it began"
UNREAD = "acknowledged and not read afterwards"


def judge(appends: Iterable[Append], reads: Iterable[Read]) -> list[str]:
    """Return contradictions as sentences; empty if all calls are possible.

    Args:
        appends: all messages that were sent to the queues that were read.
        reads: any number of reads; the last ones must cover each position with an acknowledged
            message.
    """
    found = _Findings()
    sent = {each.message: each for each in appends}
    by_queue: dict[str, list[Read]] = defaultdict(list)
    for read in reads:
        by_queue[read.queue].append(read)
    places: dict[str, dict[int, Hashable]] = defaultdict(dict)
    for append in sent.values():
        if append.ended_ns is not None:
            _put(append.queue, places[append.queue], append.offset, append.message, found)
    last_read_ns: dict[tuple[str, int], int] = {}
    for queue, its in by_queue.items():
        for read in its:
            _look_into(read, places[queue], sent, last_read_ns, found)
    for append in sent.values():
        looked_ns = last_read_ns.get((append.queue, append.offset), -1)
        if append.ended_ns is not None and looked_ns <= append.ended_ns:
            found.note(UNREAD, f"{append.queue} {append.offset}")
    _judge_streams(places, sent, found)
    for queue, placed in places.items():
        _judge_moments(queue, placed, sent, by_queue[queue], found)
    return found.sentences()


def _put(
    queue: str,
    placed: dict[int, Hashable],
    offset: int,
    message: Hashable,
    found: _Findings,
) -> None:
    before = placed.setdefault(offset, message)
    if before != message:
        found.note(CHANGED, f"{queue} {offset}: {before!r}, {message!r}")


def _look_into(
    read: Read,
    placed: dict[int, Hashable],
    sent: Mapping[Hashable, Append],
    last_read_ns: dict[tuple[str, int], int],
    found: _Findings,
) -> None:
    """Check a read alone, and against the known positions."""
    if read.first + len(read.messages) > read.end:
        found.note(BEYOND, f"{read.queue} from {read.first}, which ends at {read.end}")
    for offset, message in enumerate(read.messages, read.first):
        if message is None:
            found.note(GAP, f"{read.queue} {offset}")
            continue
        if message not in sent:
            found.note(INVENTED, f"{read.queue} {offset}: {message!r}")
            continue
        _put(read.queue, placed, offset, message, found)
        place = read.queue, offset
        last_read_ns[place] = max(last_read_ns.get(place, -1), read.began_ns)


def _judge_streams(
    places: Mapping[str, Mapping[int, Hashable]],
    sent: Mapping[Hashable, Append],
    found: _Findings,
) -> None:
    """Check that numbers of idempotent producers are stored once, and first copies in order."""
    seen: dict[Hashable, str] = {}
    for queue, placed in places.items():
        newest: dict[str, int] = {}
        for offset in sorted(placed):
            append = sent[placed[offset]]
            place = f"{queue} {offset}"
            if append.message in seen:
                if append.is_numbered:
                    found.note(TWICE, f"{append.message!r}: {seen[append.message]}, {place}")
                continue
            seen[append.message] = place
            if append.stream and append.number < newest.get(append.stream, -1):
                found.note(DISORDER, f"{place}: {append.number} of {append.stream}")
            newest[append.stream] = append.number


def _judge_moments(
    queue: str,
    placed: Mapping[int, Hashable],
    sent: Mapping[Hashable, Append],
    reads: Sequence[Read],
    found: _Findings,
) -> None:
    """Check that there is a moment for each call; see the module."""
    calls = [call_of(read) for read in reads if not read.may_be_old]
    old = {read.reader for read in reads if read.may_be_old}
    by_reader: dict[str, list[_Call]] = defaultdict(list)
    for read in reads:
        if read.reader in old:
            by_reader[read.reader].append(call_of(read))
        if read.may_be_old:
            # No reply is needed before it, but its messages must have been sent.
            calls.append(replace(call_of(read), began_ns=-NEVER_NS))
    for its in by_reader.values():
        _order(queue, its, found)
    for offset, message in placed.items():
        append = sent[message]
        # A copy by a repeated send may be stored later than the acknowledged one.
        is_answered = (append.queue, append.offset) == (queue, offset)
        ended_ns = append.ended_ns if is_answered and append.ended_ns is not None else NEVER_NS
        said = f"append {offset}"
        calls.append(_Call(2 * offset + 1, append.began_ns, ended_ns, said, is_read=False))
    _order(queue, calls, found)


def call_of(read: Read) -> _Call:
    said = f"a read to {read.end}"
    return _Call(2 * read.end, read.began_ns, read.ended_ns, said, is_read=True)


def _order(queue: str, calls: list[_Call], found: _Findings) -> None:
    """Find calls that started after the reply of a call that must come after them."""
    calls.sort(key=lambda call: -call.key)
    # The earliest reply of the calls after the current one.
    first: _Call | None = None
    for _, group in groupby(calls, lambda call: call.key):
        same = list(group)
        for call in same:
            if first is not None and call.began_ns > first.ended_ns:
                found.note(_kind(call, first), f"{queue}: {first.said}, then {call.said}")
        earliest = min(same, key=lambda call: call.ended_ns)
        if first is None or earliest.ended_ns < first.ended_ns:
            first = earliest


def _kind(call: _Call, later: _Call) -> str:
    """Return the name of the contradiction if a call starts after the reply of a call that must
    come after it."""
    if call.is_read:
        return TAKEN_BACK if later.is_read else NOT_SEEN
    return TOO_EARLY if later.is_read else OUT_OF_TURN
