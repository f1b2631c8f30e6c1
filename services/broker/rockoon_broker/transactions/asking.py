"""Asks producers about half messages whose sender has neither committed nor rolled back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from rockoon_broker.clock import Clock
from rockoon_broker.transactions.check_book import CheckBook, WaitingHalf
from rockoon_broker.transactions.checkers import Checker, Checkers
from rockoon_broker.transactions.half_messages import committed_record
from rockoon_broker.transactions.half_queue import HalfMessageGone, HalfQueue
from rockoon_format.record import encode_record

# If all producers of a group are busy, or the half message is not durable yet.
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class DueCheck:
    """A half message about which a producer is asked."""

    half: WaitingHalf
    frame: bytes
    """The message as it would be stored in its topic."""


class Asking:
    """Assigns due half messages to producers, and the streams on which these are asked.

    Args:
        book: waiting half messages.
        halves: reads them.
        clock: its monotonic time is used.

    Attributes:
        checks_sent: number of questions sent.
    """

    def __init__(self, book: CheckBook, halves: HalfQueue, clock: Clock) -> None:
        self._book = book
        self._halves = halves
        self._clock = clock
        self._checkers = Checkers(lambda group: book.on_producer(group, clock.monotonic_seconds()))
        self.checks_sent = 0

    def ask(self, half: WaitingHalf, now: float) -> None:
        """Ask a producer about a due half message, if the group has a producer.

        Args:
            half: from `CheckBook.pop_due`.
            now: monotonic seconds.
        """
        if not self._halves.is_visible(half.position):
            # Not durable yet, so its sender has no answer either.
            self._book.put_off(half, now + PAUSE_SECONDS)
        elif not self._checkers.has(half.group):
            self._book.park(half)
        elif (checker := self._checkers.choose(half.group)) is None:
            self._book.put_off(half, now + PAUSE_SECONDS)
        else:
            self._book.asked(half, now)
            self.checks_sent += 1
            checker.ask(half.position)

    async def checks(self, group: str, client_id: str) -> AsyncIterator[DueCheck | None]:
        """Yield the questions to a producer until either side ends; first None: it is registered.

        Raises:
            Busy: too many producers are registered.
        """
        checker = self._checkers.enter(group, client_id)
        try:
            yield None
            while (position := await checker.next()) is not None:
                check = self._due_check(position)
                if check is not None:
                    yield check
        finally:
            self._gone(checker)

    def end(self) -> None:
        """End the producers' streams, because the broker stops."""
        self._checkers.end_all()

    def _gone(self, checker: Checker) -> None:
        """After a producer's stream: its unsent questions are due again, and not counted."""
        now = self._clock.monotonic_seconds()
        for position in self._checkers.leave(checker):
            half = self._book.find(position)
            if half is not None:
                self._book.not_asked(half, now)
                self.checks_sent -= 1

    def _due_check(self, position: int) -> DueCheck | None:
        half = self._book.find(position)
        if half is None:
            return None
        try:
            record, facts = self._halves.read(position)
        except HalfMessageGone:
            # Retention has just deleted it; the next turn counts it.
            return None
        return DueCheck(half, encode_record(committed_record(record, facts), room=True))
