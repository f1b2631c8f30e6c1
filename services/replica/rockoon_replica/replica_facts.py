"""Durable facts of a replica beside its log (`config/replica` of a store)."""

from typing import NamedTuple

from rockoon_core.replication_rules import Config
from rockoon_replica.log_state import NO_RUN, ProcessRun, StateVersion

# Value of `led` for a store that is an older snapshot: it may have led any epoch since.
ANY_EPOCH = (1 << 31) - 1


class ReplicaFacts(NamedTuple):
    """Facts that a replica must know after any crash. If the file is lost or damaged, the replica
    must not run.

    Attributes:
        promised: it accepts and acknowledges no records of epochs below this one.
        led: the last epoch in which it acted as leader.
        alone: no other replica has records of epoch `led`; this process or its next one may resume
            it.
        sound: its log has all records that it ever acknowledged.
        damaged: positions of records whose bytes are proven wrong and were not rewritten yet.
        version: the newest state that had an effect; older ones are ignored.
        config: as in `version`; None before the first one.
        run: this start of the process. If no nameserver has confirmed that etcd has recorded the
            last start, a new start keeps that start's value.
        run_seen: True once a nameserver has confirmed that etcd has recorded `run`.
    """

    promised: int = 0
    led: int = 0
    alone: bool = False
    sound: bool = True
    version: StateVersion = StateVersion(0, 0)
    config: Config | None = None
    damaged: tuple[int, ...] = ()
    run: ProcessRun = NO_RUN
    run_seen: bool = False

    def is_alone(self, replica: str) -> bool:
        """True if this replica is the only voter, leads, and no other replica has records of its
        epoch.

        Then it can resume without nameservers, and lead without a member.
        """
        own = self.config is not None and self.config.in_sync == {replica}
        return own and self.alone and self.led == self.promised

    def in_next_run(self, number: int) -> "ReplicaFacts":
        """Return the facts after another start of the process.

        A start that was never seen in etcd is not counted again: otherwise an older snapshot that
        is started often enough would count as many starts as etcd.
        """
        if not self.run_seen and self.run != NO_RUN:
            return self
        return self._replace(run=ProcessRun(self.run.starts + 1, number), run_seen=False)


def facts_alone(
    replica: str, epoch: int, version: StateVersion, run: ProcessRun = NO_RUN
) -> ReplicaFacts:
    """Return the facts of the only copy, from an epoch that no other replica has."""
    config = Config(frozenset({replica}), 1)
    return ReplicaFacts(epoch, epoch, alone=True, version=version, config=config, run=run)
