"""Asking producers what became of half messages whose sender has not said it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from rockoon_broker.clock import Clock
from rockoon_broker.transactions.check_book import CheckBook, WaitingHalf
from rockoon_broker.transactions.checkers import Checker, Checkers
from rockoon_broker.transactions.half_messages import committed_record
from rockoon_broker.transactions.half_queue import HalfMessageGone, HalfQueue
from rockoon_format.record import encode_record

# When all producers of a group have their hands full, or the half message is not durable yet.
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class DueCheck:
    """A half message that a producer is asked about."""

    half: WaitingHalf
    frame: bytes
    """The message as its topic would get it."""


class Asking:
    """Whom to ask about which half message, and the streams on which it is asked.

    Args:
        book: which half messages wait.
        halves: where they are read.
        clock: the monotonic one is used.

    Attributes:
        checks_sent: how often somebody was asked.
    """

    def __init__(self, book: CheckBook, halves: HalfQueue, clock: Clock) -> None:
        self._book = book
        self._halves = halves
        self._clock = clock
        self._checkers = Checkers(
            lambda group: book.producer_came(group, clock.monotonic_seconds())
        )
        self.checks_sent = 0

    def ask(self, half: WaitingHalf, now: float) -> None:
        """Ask a producer about a half message that is due, if there is one.

        Args:
            half: from `CheckBook.take_due`.
            now: monotonic seconds.
        """
        if not self._halves.is_visible(half.position):
            # Not durable yet: its sender has not been answered either.
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
        """What a producer is asked, until either side ends it; first None: it is on the list.

        Raises:
            Busy: too many producers are on it.
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
        """End the producers' streams: the broker is stopping."""
        self._checkers.end_all()

    def _gone(self, checker: Checker) -> None:
        """A producer's stream has ended: what it was to be asked is due again, and not counted."""
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
            # Retention has just taken it; the next turn counts it.
            return None
        return DueCheck(half, encode_record(committed_record(record, facts), room=True))
