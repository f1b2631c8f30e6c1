"""Problems of a broker as sentences, shown by `rockoon status`."""

from collections.abc import Iterator

from rockoon_broker.broker import Broker
from rockoon_broker.store.retention.foreign_store import KEEPS_ALL_FILES


def problems_of(broker: Broker) -> Iterator[str]:
    """Yield a sentence per problem that makes sends or reads fail, now or soon."""
    store, aside = broker.store, broker.aside
    if reason := store.refusal_reason:
        yield f"it takes no messages: {reason}"
    if store.keeps_all_files:
        yield KEEPS_ALL_FILES
    if store.retention_held_end:
        held_bytes = store.retention_held_end - store.log_min_offset
        yield f"retention keeps {held_bytes} bytes of the log for copies that lack them"
    if store.removal_failure is not None:
        yield f"old files cannot be deleted, retrying: {store.removal_failure}"
    if store.point_failure is not None:
        yield f"no recovery point can be written: {store.point_failure}"
    if broker.topics.change_failure is not None:
        yield f"a change of topics is delayed: {broker.topics.change_failure}"
    if not broker.topics.routes.following:
        yield "no connected nameserver reaches etcd: changes of topics do not arrive"
    if broker.key_index is not None and broker.key_index.failure is not None:
        yield f"indexing by key is interrupted by the disk: {broker.key_index.failure}"
    if (failure := aside.delays.delivery.work.failure) is not None and store.writable:
        yield f"delayed messages are not delivered: {failure}"
    for damage in broker.pulls.recent_damage():
        yield f"readers found damage in {damage.path}: {damage.reason}"
