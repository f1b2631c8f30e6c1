"""First epoch of a store that was one of several copies, and is the only one from now on."""

from rockoon_broker.broker import Broker
from rockoon_broker.store.errors import StorageError
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_runtime.process import ExitStatus, Fatal


def open_own_epoch(broker: Broker, facts: ReplicaFacts | None, now_ms: int) -> None:
    """Append the record of the epoch from which the log has only one copy.

    A former copy may have other bytes of the epoch before. If it returns, it is cut to the
    common part.

    Raises:
        Fatal: the record cannot be written.

    """
    if facts is None or facts.config is None:
        return
    boundaries = broker.store.boundaries()
    if not boundaries or boundaries[-1].epoch < facts.led:
        (itself,) = facts.config.in_sync
        try:
            broker.store.open_epoch(facts.led, itself, now_ms)
        except StorageError as failure:
            raise Fatal(ExitStatus.STORE, f"cannot open an epoch: {failure}") from failure
