"""Durable facts of a replica beside its log (`config/replica` of a store)."""

from typing import NamedTuple

from rockoon_core.replication_rules import Config
from rockoon_replica.log_state import Version


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
    """

    promised: int = 0
    led: int = 0
    alone: bool = False
    sound: bool = True
    version: Version = Version(0, 0)
    config: Config | None = None
    damaged: tuple[int, ...] = ()

    def is_alone(self, replica: str) -> bool:
        """Whether this replica votes alone, leads, and nobody else has a byte of its epoch.

        Then it needs no nameserver to go on, nor a member to lead with.
        """
        own = self.config is not None and self.config.in_sync == {replica}
        return own and self.alone and self.led == self.promised


def facts_alone(replica: str, epoch: int, version: Version) -> ReplicaFacts:
    """What a replica knows that has its log for itself, from an epoch on that nobody else has."""
    config = Config(frozenset({replica}), 1)
    return ReplicaFacts(promised=epoch, led=epoch, alone=True, version=version, config=config)
