"""Durable facts of a replica beside its log (`config/replica` of a store)."""

from typing import NamedTuple

from rockoon_core.replication_rules import Config
from rockoon_replica.log_state import NO_RUN, Run, Version

# As `led`: the store is an older snapshot, and its replica may have led any epoch since.
ANY_EPOCH = (1 << 31) - 1


class ReplicaFacts(NamedTuple):
    """What a replica must know after any crash. A lost or damaged file makes another replica.

    Attributes:
        promised: it takes and acknowledges nothing of epochs below this one.
        led: the last epoch that it acted in as a leader.
        alone: nobody was given a byte of epoch `led`; the same process or its next one may go on
            in it.
        sound: all that it ever acknowledged is in its log.
        damaged: positions of records whose bytes are proven wrong and were not rewritten yet.
        version: the newest state that changed what it does; older ones are ignored.
        config: who voted in that state; None before the first one.
        run: this start of the process, or an earlier one that etcd was not known to have.
        run_seen: etcd was known to have it.
    """

    promised: int = 0
    led: int = 0
    alone: bool = False
    sound: bool = True
    version: Version = Version(0, 0)
    config: Config | None = None
    damaged: tuple[int, ...] = ()
    run: Run = NO_RUN
    run_seen: bool = False

    def is_alone(self, replica: str) -> bool:
        """Whether this replica votes alone, leads, and nobody else has a byte of its epoch.

        Then it needs no nameserver to go on, nor a member to lead with.
        """
        own = self.config is not None and self.config.in_sync == {replica}
        return own and self.alone and self.led == self.promised

    def in_next_run(self, number: int) -> "ReplicaFacts":
        """The facts at another start of the process.

        A start that was never seen in etcd is not counted again: otherwise an older snapshot that
        is started often enough would count as many starts as etcd.
        """
        if not self.run_seen and self.run != NO_RUN:
            return self
        return self._replace(run=Run(self.run.starts + 1, number), run_seen=False)


def facts_alone(replica: str, epoch: int, version: Version, run: Run = NO_RUN) -> ReplicaFacts:
    """What a replica knows that has its log for itself, from an epoch on that nobody else has."""
    config = Config(frozenset({replica}), 1)
    return ReplicaFacts(epoch, epoch, alone=True, version=version, config=config, run=run)
