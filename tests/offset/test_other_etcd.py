"""The nameservers follow another etcd: its revisions and incarnations prove nothing here."""

from pathlib import Path

import grpc
import pytest
from offset.cluster import GROUP, TOPIC, Cluster, running

from rockoon_core.errors import NotReady
from rockoon_core.failed_call import from_rpc_error
from rockoon_offset.journal.store import JournalStore
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.settings import SettingsError

OURS, OTHER, RESTORED = 0x51, 0xDEAD, 0xBEEF
OUR_CLUSTER, OTHER_CLUSTER = 0xC1, 0xC2


async def read_half(cluster: Cluster) -> pb.Start:
    """A member has read 4 of 10 messages, and all processes know the routes."""
    cluster.broker.queue(TOPIC).append(10)
    await cluster.set_group(start_policy={"consume_from": "CONSUME_FROM_FIRST"})
    start = await cluster.start_of()
    assert not (await cluster.commit(4, start.epoch)).HasField("error")
    await cluster.until_revision()
    return start


async def offsets(cluster: Cluster) -> list[int]:
    return [entry.offset for entry in await cluster.progress()]


async def resolve_failure(cluster: Cluster) -> NotReady | None:
    request = pb.ResolveRequest(group=GROUP, member_id="m1", queues=[cluster.ref()])
    try:
        await cluster.stub.Resolve(request)
    except grpc.RpcError as failure:
        reason = from_rpc_error(failure, AssertionError)  # type: ignore[arg-type]
        return reason if isinstance(reason, NotReady) else None
    return None


@pytest.mark.parametrize("revision", [1, 5000])
@pytest.mark.parametrize("seen", ["seen", "missed"])
async def test_routes_of_another_etcd_cost_nobody_its_place(
    cluster: Cluster, seen: str, revision: int, caplog: pytest.LogCaptureFixture
) -> None:
    start = await read_half(cluster)
    if seen == "missed":
        await cluster.stop_service()
    await cluster.nameserver.lose_everything(revision, OTHER)
    if seen == "missed":
        await cluster.start_service()
    await cluster.until(lambda: resolve_failure(cluster))
    assert await offsets(cluster) == [4]
    reason = await resolve_failure(cluster)
    assert reason is not None
    assert reason.retriable
    assert "000000000000dead" in str(reason)
    assert "it lacks topic orders, group billing" in str(reason)
    # A running reader needs no routes to continue.
    assert (await cluster.commit(5, start.epoch)).offset == 5
    # Later updates of this etcd are not believed either; one log line reports it.
    await cluster.create_topic("orders")
    await cluster.delete_topic("orders")
    assert await resolve_failure(cluster) is not None
    assert await offsets(cluster) == [5]
    errors = [entry for entry in caplog.records if entry.levelname == "ERROR"]
    assert ["accept_etcd_cluster_id" in entry.message for entry in errors] == [True]


async def test_when_the_old_etcd_is_back_everything_goes_on(cluster: Cluster) -> None:
    start = await read_half(cluster)
    nameserver = cluster.nameserver
    topics, groups, revision = dict(nameserver.topics), dict(nameserver.groups), nameserver.revision
    subscriptions = dict(nameserver.subscriptions)
    await nameserver.lose_everything(5000, OTHER)
    await cluster.until(lambda: resolve_failure(cluster))
    await nameserver.stop()
    nameserver.revision, nameserver.etcd_cluster_id = revision, OURS
    nameserver.topics, nameserver.groups = topics, groups
    nameserver.subscriptions = subscriptions
    await nameserver.start()
    await cluster.until(lambda: goes_on(cluster))
    again = await cluster.start_of()
    assert (again.offset, again.epoch) == (4, start.epoch)
    # Deletions count again.
    await cluster.delete_topic()
    await cluster.until(lambda: is_empty(cluster))


async def goes_on(cluster: Cluster) -> bool:
    return await resolve_failure(cluster) is None


async def is_empty(cluster: Cluster) -> bool:
    return not await cluster.progress()


async def test_an_operator_accepts_another_etcd_that_has_what_was_read(cluster: Cluster) -> None:
    start = await read_half(cluster)
    nameserver = cluster.nameserver
    await nameserver.lose_everything(2, OTHER)
    await cluster.until(lambda: resolve_failure(cluster))
    cluster.more_settings["accept_etcd_cluster_id"] = f"{OTHER:016x}"
    await cluster.restart_service()
    reason = await resolve_failure(cluster)
    assert "it lacks topic orders, group billing" in str(reason)
    kept = cluster.broker.queue(TOPIC)
    await cluster.create_topic(queues=2)
    cluster.broker.queues[TOPIC, 0] = kept
    await cluster.set_group(start_policy={"consume_from": "CONSUME_FROM_LAST"})
    await cluster.restart_service()
    again = await cluster.start_of()
    assert (again.offset, again.epoch) == (4, start.epoch)
    assert again.reason == pb.COMMITTED
    assert not (await cluster.commit(6, again.epoch)).HasField("error")
    # From now on it is the service's etcd, with or without the setting.
    del cluster.more_settings["accept_etcd_cluster_id"]
    await cluster.restart_service()
    assert (await cluster.start_of()).offset == 6
    await cluster.delete_topic()
    await cluster.until(lambda: is_empty(cluster))


async def test_a_service_that_starts_in_another_cluster_takes_nobodys_place_there(
    cluster: Cluster,
) -> None:
    nameserver = cluster.nameserver
    nameserver.cluster_id = OUR_CLUSTER
    await cluster.restart_service()
    await read_half(cluster)
    # A restored etcd is another one of the same cluster: the service is in it.
    await cluster.stop_service()
    nameserver.etcd_cluster_id = RESTORED
    await cluster.start_service()
    assert "000000000000beef" in str(await resolve_failure(cluster))
    await cluster.stop_service()
    assert nameserver.store_clusters["offset"] == OUR_CLUSTER

    nameserver.cluster_id, nameserver.etcd_cluster_id = OTHER_CLUSTER, OTHER
    nameserver.store_clusters.clear()
    with pytest.raises(ExceptionGroup) as failure:
        await cluster.start_service()
    fatal = cluster.stop.fatal
    assert failure.group_contains(Fatal)
    assert fatal is not None
    assert fatal.status == ExitStatus.CONFIGURATION
    assert f"accept_etcd_cluster_id = {OTHER:016x}" in str(fatal)
    assert nameserver.store_clusters == {}

    # The cluster that an operator accepts is the service's cluster from then on.
    cluster.more_settings["accept_etcd_cluster_id"] = f"{OTHER:016x}"
    await cluster.start_service()
    assert nameserver.store_clusters == {"offset": OTHER_CLUSTER}
    assert await offsets(cluster) == [4]
    del cluster.more_settings["accept_etcd_cluster_id"]
    await cluster.restart_service()
    assert await resolve_failure(cluster) is None


async def test_a_service_that_runs_when_its_cluster_becomes_another_stays(
    cluster: Cluster,
) -> None:
    cluster.nameserver.cluster_id = OUR_CLUSTER
    await cluster.restart_service()
    start = await read_half(cluster)
    cluster.nameserver.cluster_id = OTHER_CLUSTER
    await cluster.nameserver.lose_everything(5000, OTHER)
    await cluster.until(lambda: resolve_failure(cluster))
    assert not cluster.stop.requested
    assert (await cluster.commit(5, start.epoch)).offset == 5


@pytest.mark.parametrize("same", [True, False])
async def test_progress_from_before_identities_were_told_needs_a_queue_that_vouches_for_it(
    cluster: Cluster, same: bool
) -> None:
    cluster.nameserver.etcd_cluster_id = 0
    await cluster.restart_service()
    await cluster.stop_service()
    store = JournalStore(cluster.store_path, lambda _: None)
    store.write([store.ledger.counters._replace(etcd_cluster_id=0)])
    store.close()
    await cluster.start_service()
    await read_half(cluster)
    await cluster.stop_service()
    cluster.nameserver.etcd_cluster_id = OURS
    if not same:
        await cluster.nameserver.lose_everything(5000, OTHER)
    await cluster.start_service()
    assert (await resolve_failure(cluster) is None) == same
    assert await offsets(cluster) == [4]


async def test_a_cluster_id_that_is_none_is_a_wrong_setting(tmp_path: Path) -> None:
    settings = Cluster(tmp_path).settings(
        nameservers=("127.0.0.1:1",), accept_etcd_cluster_id="dead"
    )
    with pytest.raises(ExceptionGroup) as failure:
        async with running(settings, Stop()):
            pass
    assert failure.group_contains(SettingsError, match="16 hexadecimal digits")
