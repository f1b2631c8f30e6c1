"""Expiry of absent broadcasting members: removes a member with its own progress.

Absence is measured by the wall clock, over restarts. A wrong clock or a long downtime of the
service must not remove members that would return. So a member is removed only after the service has
waited for it for a day of monotonic time, and after the wall clock has shown the absence as too
long for ten minutes.
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
# The wall clock may be wrong for a moment, and a removal cannot be undone.
BELIEVED_AFTER_NS = 600 * 10**9
DAY_MS = 86_400_000
# Minimum age of `seen_at_ms` of a live member before it is written again: each write is a record in
# the journal.
SEEN_MS = 3_600_000


class Absences:
    """Removes known members of all groups that are absent for too long.

    Args:
        store: ledger with the known members.
        membership: live members.
        days_max: how long an absent member is kept, days; 0: no limit.
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
        # (group, member) → first of the consecutive checks without a live member, monotonic.
        self._missed_since_ns: dict[tuple[str, str], int] = {}
        # (group, member) → first of the consecutive checks with a too long absence, monotonic.
        self._overdue_since_ns: dict[tuple[str, str], int] = {}

    @property
    def next_check_ns(self) -> int | None:
        """Monotonic time of the next check for absent members; None while no member is known."""
        return self._check_due_ns if self._store.ledger.known else None

    def expire_due(self) -> None:
        """At most once per `CHECK_NS`, record live members as present and remove members absent for
        too long.
        """
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
                if not 0 <= silent_ms < SEEN_MS:
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
                self._remove(known, silent_ms)

    def _remove(self, known: KnownMember, silent_ms: int) -> None:
        ledger = self._store.ledger
        queues = len(ledger.progress_of(reader_of(known.group, known.member)))
        log.warning(
            "REMOVED MEMBER %s OF GROUP %s with its progress on %d queues: it was absent for %.1f "
            "days",
            known.member,
            known.group,
            queues,
            silent_ms / DAY_MS,
        )
        self._store.write(ledger.members_changed(MemberForgotten(known.group, known.member)))
