"""Checks the promises of a cluster: compares reports of senders, logs and groups.

Pure: no loop, clock, socket or disk. Its input is sent and acknowledged messages (of the senders),
the content of the queues (of their reader), and messages of groups (of their members), in any order
and in pieces; `verdict` returns the contradictions in the end. Rules:

- Every acknowledged message is in a queue, and every group has received it.
- In a queue, the messages of a stream have the order of their sending: their first copies do,
because
  a batch whose reply was lost is sent again completely.
- No message is stored twice, or received twice by one group, beyond the allowed copies: delivery is
  at least once, so kills and rebalances cause copies.
- No stored message is unsent.

Memory: two bits for each message and one for each group, up to twice that while bitmaps grow. For
streams see `load.payload`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from load.bitmap import Bitmap, Numbers

EXAMPLES_MAX = 5
SEQUENCES_MAX = 1 << 33
"""A larger sequence number is not a sender's: its bitmap would need a gigabyte."""


@dataclass(frozen=True)
class Allowed:
    """Number of allowed copies, and the reason.

    Args:
        stored_twice: in the queues, in addition to the first copy of each message.
        given_twice: the same for all groups together.
        reason: for people.
    """

    stored_twice: int = 0
    given_twice: int = 0
    reason: str = "nothing failed, and nobody took a queue over"


@dataclass
class GroupVerdict:
    """Messages of a group."""

    given: int
    missing: int
    twice: int
    invented: int


@dataclass
class Verdict:
    """Findings. Counts are of messages; `faults` is empty if all rules are kept."""

    sent: int
    acknowledged: int
    stored: int
    lost: int
    """Acknowledged, and in no queue."""
    twice: int
    """Copies in addition to the first."""
    order_breaks: int
    """Positions of messages right after a later message of their stream."""
    invented: int
    """In a queue, and sent by no sender."""
    unreported: int
    """In a queue, of a sender that ended before it could report its sends."""
    groups: dict[str, GroupVerdict]
    faults: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.faults


class _Stream:
    """One stream; see `load.payload`."""

    __slots__ = ("acknowledged", "is_closed", "is_known", "sent_end", "stored", "topic")

    def __init__(self) -> None:
        self.topic = ""
        self.sent_end = 0
        self.is_known = False
        self.is_closed = False
        self.acknowledged = Bitmap()
        self.stored = Bitmap()


class _Group:
    __slots__ = ("given", "invented", "topics", "twice")

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self.given: dict[int, Bitmap] = defaultdict(Bitmap)
        self.twice = 0
        self.invented = 0


class Checker:
    """See the module.

    Args:
        examples_max: maximum number of messages that a fault names.
    """

    def __init__(self, examples_max: int = EXAMPLES_MAX) -> None:
        self._examples_max = examples_max
        self._streams: dict[int, _Stream] = defaultdict(_Stream)
        self._groups: dict[str, _Group] = {}
        # By stream and queue: sequence number of the last first copy there.
        self._newest: dict[tuple[int, Hashable], int] = {}
        self._stored = 0
        self._twice = 0
        self._breaks = 0
        self._foreign = 0
        self._examples: dict[str, list[str]] = defaultdict(list)

    # Reports of senders.

    def sent(self, topic: str, stream: int, end: int) -> None:
        """Record that the SDK got the messages below `end`, acknowledged or not."""
        entry = self._streams[stream]
        entry.topic = topic
        entry.is_known = True
        entry.sent_end = max(entry.sent_end, end)

    def acknowledged(self, topic: str, stream: int, first: int, end: int) -> None:
        """Record that the messages from `first` up to, not including, `end` were acknowledged."""
        self.sent(topic, stream, end)
        self._streams[stream].acknowledged.add_run(first, end)

    def closed(self, stream: int) -> None:
        """Record that the sender has ended, after reports of all its sends."""
        self._streams[stream].is_known = self._streams[stream].is_closed = True

    # Content of the queues.

    def stored(self, queue: Hashable, streams: NDArray[np.uint64], sequences: Numbers) -> None:
        """Record messages of a queue, in its order; each message of a queue is reported once.

        Args:
            queue: identity of the queue.
            streams: stream of each message, uint64[n].
            sequences: number of each message in its stream, int64[n].
        """
        self._stored += len(streams)
        for stream, own in _by_stream(streams, sequences):
            possible = _possible(own)
            if len(possible) < len(own):
                self.foreign(len(own) - len(possible), f"stream {stream} in {queue}")
            if not len(possible):
                continue
            own = possible
            first_copies = self._first_copies(self._streams[stream].stored, own)
            twice = len(own) - len(first_copies)
            if twice:
                self._twice += twice
                self._note("twice", f"{twice} of stream {stream} in {queue}")
            if not len(first_copies):
                continue
            before = np.concatenate(([self._newest.get((stream, queue), -1)], first_copies[:-1]))
            behind = first_copies < before
            breaks = int(np.count_nonzero(behind))
            if breaks:
                self._breaks += breaks
                example = int(first_copies[np.argmax(behind)])
                self._note("order", f"message {example} of stream {stream} in {queue}")
            self._newest[stream, queue] = int(first_copies[-1])

    def foreign(self, count: int, where: str) -> None:
        """Record messages that are not of this run, or are changed."""
        if count:
            self._foreign += count
            self._note("invented", where)

    # Messages of groups.

    def group(self, name: str, topics: Iterable[str]) -> None:
        """Record that a group must receive all messages of these topics."""
        self._groups[name] = _Group(frozenset(topics))

    def given(self, group: str, streams: NDArray[np.uint64], sequences: Numbers) -> None:
        """Record that a member of a group handled messages, in any order."""
        for stream, own in _by_stream(streams, sequences):
            self._give(self._groups[group], stream, own)

    def given_run(self, group: str, stream: int, first: int, end: int) -> None:
        """As `given`, for consecutive messages of one stream, each once."""
        self._give(self._groups[group], stream, np.arange(first, end))

    def _give(self, group: _Group, stream: int, own: Numbers) -> None:
        possible = _possible(own)
        group.invented += len(own) - len(possible)
        own = possible
        if not len(own):
            return
        group.twice += len(own) - len(self._first_copies(group.given[stream], own))

    # The end.

    def size_bytes(self) -> int:
        """Return the memory of the bitmaps in bytes."""
        maps = [each for s in self._streams.values() for each in (s.acknowledged, s.stored)]
        maps += [each for group in self._groups.values() for each in group.given.values()]
        return sum(each.size_bytes for each in maps)

    def verdict(self, allowed: Allowed | None = None) -> Verdict:
        """Compare all reports so far."""
        permitted = allowed if allowed is not None else Allowed()
        lost = unreported = 0
        invented = self._foreign
        for number, stream in self._streams.items():
            missing, examples = stream.acknowledged.missing_in(stream.stored, self._examples_max)
            lost += missing
            for each in examples:
                self._note("lost", f"message {each} of stream {number} ({stream.topic})")
            beyond = stream.stored.count_beyond(stream.sent_end)
            if stream.is_closed or not stream.is_known:
                invented += beyond
                if beyond:
                    self._note("invented", f"{beyond} of stream {number}, never sent")
            else:
                unreported += beyond
        groups = {name: self._group_verdict(name, group) for name, group in self._groups.items()}
        found = Verdict(
            sent=sum(stream.sent_end for stream in self._streams.values()),
            acknowledged=sum(len(stream.acknowledged) for stream in self._streams.values()),
            stored=self._stored,
            lost=lost,
            twice=self._twice,
            order_breaks=self._breaks,
            invented=invented,
            unreported=unreported,
            groups=groups,
        )
        found.faults = self._faults(found, permitted)
        return found

    def _group_verdict(self, name: str, group: _Group) -> GroupVerdict:
        missing = 0
        invented = group.invented
        empty = Bitmap()
        for number, stream in self._streams.items():
            given = group.given.get(number, empty)
            if stream.topic in group.topics:
                count, examples = stream.acknowledged.missing_in(given, self._examples_max)
                missing += count
                for each in examples:
                    self._note(f"missing {name}", f"message {each} of stream {number}")
            if stream.is_closed or not stream.is_known:
                invented += given.count_beyond(stream.sent_end)
        # A stream that no sender has reported.
        unknown = group.given.keys() - self._streams.keys()
        invented += sum(len(group.given[number]) for number in unknown)
        given_count = sum(len(given) for given in group.given.values())
        return GroupVerdict(given_count, missing, group.twice, invented)

    def _faults(self, found: Verdict, allowed: Allowed) -> list[str]:
        sentences = {
            "lost": (found.lost, "were acknowledged and are in no queue"),
            "order": (found.order_breaks, "stand behind one that was sent later"),
            "invented": (found.invented, "were found that nobody sent"),
        }
        if found.twice > allowed.stored_twice:
            text = f"copies are stored, {allowed.stored_twice} are allowed ({allowed.reason})"
            sentences["twice"] = (found.twice, text)
        for name, group in found.groups.items():
            sentences[f"missing {name}"] = (group.missing, f"never came to the group {name}")
            sentences[f"invented {name}"] = (group.invented, f"came to {name} that nobody sent")
        twice = sum(group.twice for group in found.groups.values())
        if twice > allowed.given_twice:
            text = f"came to a group again, {allowed.given_twice} may ({allowed.reason})"
            sentences["given twice"] = (twice, text)
        faults = []
        for kind, (count, text) in sentences.items():
            if count:
                named = "; ".join(self._examples.get(kind, ()))
                faults.append(f"{count} messages {text}" + (f": {named}" if named else ""))
        return faults

    def _first_copies(self, seen: Bitmap, own: Numbers) -> Numbers:
        """Return the new ones, in their order, and record them."""
        if int(own[0]) >= seen.end and (len(own) == 1 or bool((np.diff(own) == 1).all())):
            seen.add_run(int(own[0]), int(own[-1]) + 1)
            return own
        fresh = own[~seen.has(own)]
        if len(fresh) > 1:
            _, first_at = np.unique(fresh, return_index=True)
            fresh = fresh[np.sort(first_at)]
        seen.add(fresh)
        return fresh

    def _note(self, kind: str, example: str) -> None:
        if len(self._examples[kind]) < self._examples_max and example not in self._examples[kind]:
            self._examples[kind].append(example)


def _by_stream(streams: NDArray[np.uint64], sequences: Numbers) -> Sequence[tuple[int, Numbers]]:
    """Return the sequence numbers of each stream, in their order."""
    if not len(streams):
        return []
    numbers = sequences.astype(np.int64)
    if bool((streams == streams[0]).all()):
        return [(int(streams[0]), numbers)]
    order = np.argsort(streams, kind="stable")
    names, starts = np.unique(streams[order], return_index=True)
    parts = np.split(numbers[order], starts[1:])
    return list(zip(map(int, names), parts, strict=True))


def _possible(own: Numbers) -> Numbers:
    """Return the numbers that a sender can have used."""
    if own.min() >= 0 and own.max() < SEQUENCES_MAX:
        return own
    return own[(own >= 0) & (own < SEQUENCES_MAX)]
