"""Problems of a broker, as sentences for people: `rockoon status` shows them."""

from collections.abc import Iterator

from rockoon_broker.broker import Broker


def problems_of(broker: Broker) -> Iterator[str]:
    """What makes sends or reads fail now, or will if nobody does anything; a sentence each."""
    store, aside = broker.store, broker.aside
    if reason := store.refusal_reason:
        yield f"it takes no messages: {reason}"
    if store.retention_held_end:
        held_bytes = store.retention_held_end - store.log_min_offset
        yield f"retention keeps {held_bytes} bytes of the log for copies that have not got them"
    if store.removal_failure is not None:
        yield f"old files cannot be deleted, it is tried again and again: {store.removal_failure}"
    if store.point_failure is not None:
        yield f"no recovery point can be written: {store.point_failure}"
    if broker.topics.change_failure is not None:
        yield f"a change of topics is not in force yet: {broker.topics.change_failure}"
    if not broker.topics.routes.following:
        yield "it follows no nameserver that reaches etcd: changes of topics do not reach it"
    if broker.key_index is not None and broker.key_index.failure is not None:
        yield f"the index by key waits for the disk: {broker.key_index.failure}"
    if (failure := aside.delays.delivery.work.failure) is not None and store.writable:
        yield f"delayed messages wait: {failure}"
    for damage in broker.pulls.recent_damage():
        yield f"readers met damage in {damage.path}: {damage.reason}"
