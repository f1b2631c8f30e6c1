"""Checks of half messages: asks producers for the outcome if the sender did not commit or roll
back."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rockoon_broker.clock import Clock
from rockoon_broker.transactions.check_book import CheckBook, WaitingHalf
from rockoon_broker.transactions.half_messages import committed_record
from rockoon_broker.transactions.half_queue import HalfMessageNotFound, HalfQueue
from rockoon_core.errors import Busy
from rockoon_format.record import encode_record

# If all producers of a group are busy, or the half message is not durable yet.
PAUSE_SECONDS = 0.1


log = logging.getLogger(__name__)

# Half messages assigned to one producer and not fetched. Few, so that a slow producer does not
# hold back many that other producers could answer.
QUEUED_MAX = 64
CHECKERS_MAX = 10_000


class Checker:
    """Check stream of one producer, with the queue of its questions."""

    def __init__(self, group: str, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self._positions: deque[int] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def has_room(self) -> bool:
        return not self._ended and len(self._positions) < QUEUED_MAX

    def ask(self, position: int) -> None:
        """Queue a question about the half message at a physical offset."""
        self._positions.append(position)
        self._changed.set()

    def end(self) -> None:
        """End the stream; no more questions are sent to the producer."""
        self._ended = True
        self._changed.set()

    async def next(self) -> int | None:
        """Wait for the next half message to ask about; None when the stream must end.

        May be cancelled safely.
        """
        while not self._ended:
            if self._positions:
                return self._positions.popleft()
            self._changed.clear()
            await self._changed.wait()
        return None

    def pop_unasked(self) -> list[int]:
        """Return and remove the questions that were not sent."""
        positions = list(self._positions)
        self._positions.clear()
        return positions


class Checkers:
    """All producers with a check stream, by producer group.

    Any producer of the group can be asked about a half message, since its sender may be dead.

    Args:
        came: called with the group of each newly registered producer.
    """

    def __init__(self, came: Callable[[str], None]) -> None:
        self._on_producer = came
        # Round robin: the most recently asked is last.
        self._groups: dict[str, deque[Checker]] = {}
        self._count = 0
        self._open = True

    def __len__(self) -> int:
        return self._count

    def enter(self, group: str, client_id: str) -> Checker:
        """Register a producer; an earlier stream of the same client ends. Raises Busy: too many
        producers are registered."""
        if not self._open:
            raise Busy(reason="the broker is stopping")
        for other in self._groups.get(group, ()):
            if other.client_id == client_id:
                # Its connection is dead, but that has not been noticed yet.
                other.end()
        if self._count >= CHECKERS_MAX:
            raise Busy(reason=f"{self._count} producers already answer checks")
        checker = Checker(group, client_id)
        self._groups.setdefault(group, deque()).append(checker)
        self._count += 1
        self._on_producer(group)
        return checker

    def leave(self, checker: Checker) -> list[int]:
        """Unregister a producer whose stream has ended; return its unsent questions."""
        checkers = self._groups.get(checker.group)
        if checkers is not None and checker in checkers:
            checkers.remove(checker)
            self._count -= 1
            if not checkers:
                del self._groups[checker.group]
        checker.end()
        return checker.pop_unasked()

    def has(self, group: str) -> bool:
        """Return whether a producer of this group has a check stream at this broker."""
        return group in self._groups

    def choose(self, group: str) -> Checker | None:
        """Return the next producer of a group, by round robin, whose queue has room; None if none
        has."""
        checkers = self._groups.get(group, deque())
        for _ in range(len(checkers)):
            checkers.rotate(-1)
            if checkers[-1].has_room:
                return checkers[-1]
        return None

    def end_all(self) -> None:
        """End the check streams of all producers, and refuse new streams."""
        self._open = False
        for checkers in self._groups.values():
            for checker in checkers:
                checker.end()


@dataclass(frozen=True, slots=True)
class DueCheck:
    """A check to send to a producer: a half message whose transaction has not ended."""

    half: WaitingHalf
    frame: bytes
    """The message as it would be stored in its topic."""


class Asking:
    """Assigns due half messages to producers, and serves the producers' check streams.

    Args:
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
            self._book.postpone(half, now + PAUSE_SECONDS)
        elif not self._checkers.has(half.group):
            self._book.park(half)
        elif (checker := self._checkers.choose(half.group)) is None:
            self._book.postpone(half, now + PAUSE_SECONDS)
        else:
            self._book.asked(half, now)
            self.checks_sent += 1
            checker.ask(half.position)

    async def checks(self, group: str, client_id: str) -> AsyncIterator[DueCheck | None]:
        """Yield the checks for a producer until either side ends the stream; the first item is None
        and states that the producer is registered.

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
        """End all check streams, because the broker stops."""
        self._checkers.end_all()

    def _gone(self, checker: Checker) -> None:
        """Handle the end of a producer's stream: its unsent checks are due again, and the number of
        checks does not include them."""
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
        except HalfMessageNotFound:
            # Retention has just deleted it; the next turn counts it.
            return None
        return DueCheck(half, encode_record(committed_record(record, facts), room=True))
