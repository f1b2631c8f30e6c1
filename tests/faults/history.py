"""Replies to senders and readers of a topic, in the form of `support.log_history`."""

import time
from collections.abc import Hashable, Iterable, Iterator

from faults.workload import RUN, Books, Stored

from load import payload
from rockoon.consumer.pull import Pulled, PullOutOfRange
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue
from support.log_history import Append, Read, judge


def identities(messages: Iterable[Message]) -> Iterator[Hashable]:
    """Return stream and number of each message; of a foreign message its body."""
    for message in messages:
        headers, wrong = payload.decode([message.body], RUN)
        yield message.body if wrong else (int(headers["stream"][0]), int(headers["sequence"][0]))


class History:
    """All reads of a topic; its books have the sent and acknowledged messages.

    Args:
        books: books of the topic; odd senders are idempotent producers.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._reads: list[Read] = []

    def pulled(
        self, queue: MessageQueue, offset: int, began_ns: int, answer: Pulled | PullOutOfRange
    ) -> None:
        """Record a reply to a pull from `offset`."""
        messages: list[Hashable] = []
        if isinstance(answer, Pulled):
            messages = [None] * (answer.next_offset - offset)
            its = answer.batch or ()
            for place, identity in zip(answer.offsets, identities(its), strict=True):
                messages[place - offset] = identity
        self._note(queue, offset, began_ns, messages, answer.max_offset)

    def given(self, message: Message) -> None:
        """Record a consumer's message; the time of its read is unknown, and may be long ago."""
        offset = message.queue_offset
        self._note(message.queue, offset, 0, list(identities([message])), offset + 1)

    def at_the_end(self, stored: Stored, began_ns: int) -> None:
        """Record a complete read from the beginning, after the last send."""
        for queue, messages in stored.messages.items():
            found = dict(zip((m.queue_offset for m in messages), identities(messages), strict=True))
            end = max(found, default=-1) + 1
            self._note(queue, 0, began_ns, [found.get(each) for each in range(end)], end)

    def judge(self) -> list[str]:
        """Return contradictions; empty if there are none."""
        answered = {
            (each.stream, each.sequence): (each.time_ns, str(each.queue), each.offset)
            for each in self._books.acknowledged
        }
        appends = []
        for (stream, number), began_ns in self._books.began_ns.items():
            ended_ns, queue, offset = answered.get((stream, number), (None, "", -1))
            is_numbered = bool(stream // payload.LANES_MAX % 2)
            appends.append(
                Append(
                    (stream, number),
                    began_ns,
                    ended_ns,
                    queue,
                    offset,
                    str(stream),
                    number,
                    is_numbered,
                )
            )
        return judge(appends, self._reads)

    def _note(
        self,
        queue: MessageQueue,
        first: int,
        began_ns: int,
        messages: list[Hashable],
        end: int,
    ) -> None:
        self._reads.append(Read(str(queue), began_ns, time.monotonic_ns(), first, messages, end))
