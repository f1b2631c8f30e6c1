"""Expiry of broadcasting members: how long they have been away, and when they are forgotten.

Days are counted by the wall clock, over restarts. Lest a clock that is set, or a service that was
itself away, forget members that are on their way back, nobody is forgotten before the service has
waited for a day, by its own reckoning, for that very member, nor before the wall clock has called
its absence too long for ten minutes.
"""

import logging
from collections.abc import Callable

from rockoon_offset.members.membership import Membership
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import reader_of
from rockoon_offset.progress.records import KnownMember, MemberForgotten

log = logging.getLogger(__name__)

CHECK_NS = 60 * 10**9
DAY_NS = 86_400 * 10**9
# A reading of the wall clock may be wrong, and what is forgotten is gone.
BELIEVED_AFTER_NS = 600 * 10**9
DAY_MS = 86_400_000
# While a member is alive: not more often, as each time is a record in the journal.
NOTE_MS = 3_600_000


class Absences:
    """Looks after the known members of all groups.

    Args:
        store: where they are known.
        membership: who is alive.
        days_max: how long an absent one is remembered; 0: for ever.
        now_ns: monotonic.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        membership: Membership,
        days_max: float,
        now_ns: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._membership = membership
        self._absent_ms_max = round(days_max * DAY_MS)
        self._now_ns = now_ns
        self._now_ms = now_ms
        self._check_due_ns = 0
        self._patience_ns = min(DAY_NS, round(days_max * DAY_NS))
        # Group and member → the first look that did not find it alive, monotonic.
        self._missed_since_ns: dict[tuple[str, str], int] = {}
        # Likewise → the first look since which the wall clock calls it away for too long.
        self._overdue_since_ns: dict[tuple[str, str], int] = {}

    @property
    def next_check_ns(self) -> int | None:
        """When `expire_due` has something to do, monotonic; None while no member is known."""
        return self._check_due_ns if self._store.ledger.known else None

    def expire_due(self) -> None:
        """Note who is alive, and forget who has been away for too long; now and then."""
        now_ns, now_ms = self._now_ns(), self._now_ms()
        if now_ns < self._check_due_ns:
            return
        self._check_due_ns = now_ns + CHECK_NS
        missed_before, self._missed_since_ns = self._missed_since_ns, {}
        overdue_before, self._overdue_since_ns = self._overdue_since_ns, {}
        for known in list(self._store.ledger.known):
            silent_ms = now_ms - known.seen_at_ms
            name = known.group, known.member
            if self._membership.live(known.group, known.member, now_ns) is not None:
                if not 0 <= silent_ms < NOTE_MS:
                    self._store.write(
                        self._store.ledger.members_changed(known._replace(seen_at_ms=now_ms))
                    )
                continue
            missed_since_ns = missed_before.get(name, now_ns)
            self._missed_since_ns[name] = missed_since_ns
            if not 0 < self._absent_ms_max < silent_ms:
                continue
            overdue_since_ns = self._overdue_since_ns[name] = overdue_before.get(name, now_ns)
            is_sure = now_ns - overdue_since_ns >= min(BELIEVED_AFTER_NS, self._patience_ns)
            if is_sure and now_ns - missed_since_ns >= self._patience_ns:
                del self._missed_since_ns[name], self._overdue_since_ns[name]
                self._forget(known, silent_ms)

    def _forget(self, known: KnownMember, silent_ms: int) -> None:
        ledger = self._store.ledger
        queues = len(ledger.progress_of(reader_of(known.group, known.member)))
        log.warning(
            "MEMBER %s OF GROUP %s IS FORGOTTEN with its progress on %d queues: it has been away "
            "for %.1f days",
            known.member,
            known.group,
            queues,
            silent_ms / DAY_MS,
        )
        self._store.write(ledger.members_changed(MemberForgotten(known.group, known.member)))
