"""Member: one replica's decisions about one log. Pure: events in, actions out.

No clock, network or disk is in it. `docs/replication.md` numbers the rules that comments name.
"""

import enum
from collections.abc import Sequence

from rockoon_replica.actions import Action
from rockoon_replica.events import Event
from rockoon_replica.log import LogView
from rockoon_replica.replica_facts import ReplicaFacts


class Role(enum.Enum):
    """What a replica is at present."""

    # Copies, whether it votes or only learns.
    FOLLOWER = "follower"
    # Leads, and its epoch's record is not committed yet.
    OPENING = "opening"
    LEADING = "leading"
    # It has decided on one of the last actions.
    OVER = "over"


class Member:
    """One replica of one log.

    Args:
        replica: its id, the id of its store.
        facts: as they were read at the start.
        log: the log as it is, never written here.
        lag_max: how far behind the committed end a learner may be when it takes another's place.
    """

    def __init__(
        self, replica: str, facts: ReplicaFacts, log: LogView, *, lag_max: int = 1 << 20
    ) -> None:
        self.replica = replica
        self.facts = facts
        self.role = Role.FOLLOWER
        # Epoch that this replica leads; 0 while it leads none.
        self.epoch = 0
        # The latest round that was asked.
        self.round = 0
        self._log = log
        self._lag_max = lag_max

    def handle(self, event: Event) -> Sequence[Action]:
        """Decide. The caller carries all actions out, in their order, before the next event."""
        raise NotImplementedError(event)

    def patience(self, seconds: float) -> float:
        """How long a silent leader is waited for, in seconds.

        Doubles with each election without a committed record: two replicas that reach the
        nameservers and not each other would depose each other for ever.
        """
        raise NotImplementedError(seconds)

    def retention_end(self) -> int:
        """Up to where the leader may delete its log: a voter would have to be made anew."""
        raise NotImplementedError
