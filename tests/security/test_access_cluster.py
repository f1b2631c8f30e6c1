"""A whole cluster with access keys: permitted callers, the time of changes, and hidden secrets."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc import aio

import rockoon
from rockoon.admin.access_keys import Permission
from rockoon.cli.up import environment_of
from rockoon.errors import (
    AccessKeyExists,
    AccessKeyNotFound,
    BrokerUnavailable,
    DelayedSettled,
    InvalidArgument,
    MessageNotFound,
    NotAuthenticated,
    NotPermitted,
    NotReady,
    OffsetServiceUnavailable,
    RockoonError,
)
from rockoon.local.directory import choose_port, secret_file
from rockoon.net.tls import dialer
from rockoon.testing.disposable import DisposableCluster
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.message_queue import MessageQueue
from rockoon_core.signature import new_secret, verifier_of
from rockoon_proto.v1.broker_pb2 import PutGenerationFileRequest, ReadLogRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate, WatchRoutesRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2 import (
    CommitEntry,
    CommitRequest,
    LagRequest,
    PlanResetRequest,
    QueryRequest,
    QueueRef,
    ResetRequest,
    ResetTarget,
)
from rockoon_spark.broker_calls import LogClient
from rockoon_spark.source.live_cluster import LogUnreadable
from rockoon_spark.source.log_reader import LogReader
from rockoon_spark.source.options import OptionError, SourceOptions
from support.command_forks import CommandForks
from support.pull_stream import StreamReader, reading
from support.waiting import DEADLINE_SECONDS, wait_until

# Until a change is in effect everywhere.
SOON_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(access=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def forks(
    cluster: DisposableCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandForks]:
    """Commands with the environment variables that `rockoon up --access` prints."""
    own = {"ROCKOON_NAMESERVERS": cluster.nameservers[0]} | environment_of(cluster)
    with CommandForks(tmp_path_factory.mktemp("command"), dict(os.environ) | own) as forks:
        yield forks


@pytest.fixture
async def root(cluster: DisposableCluster) -> AsyncIterator[rockoon.Cluster]:
    """A connection with the cluster secret."""
    async with cluster.connect() as connection:
        yield connection


async def new_key(root: rockoon.Cluster, key_id: str, *permissions: str) -> rockoon.AccessKey:
    """A key that every service knows."""
    key = await root.admin.access_keys.create(key_id, map(Permission.parse, permissions))
    await in_force(root, key)
    return key


async def in_force(root: rockoon.Cluster, key: rockoon.AccessKey) -> None:
    """Wait until nameserver, broker and offset service know a key."""

    async def connect() -> None:
        async with rockoon.connect(root.nameservers, access=key):
            pass

    async with asyncio.timeout(SOON_SECONDS):
        await until_not(NotAuthenticated, connect)
        async with rockoon.connect(root.nameservers, access=key) as connection:
            for ask in (
                lambda: connection.admin.describe_broker("broker-a"),
                lambda: connection.admin.members("nobody"),
            ):
                await until_not(NotAuthenticated, ask)


async def until_not(kind: type[RockoonError], ask: object) -> None:
    """Repeat a call until it does not fail in this way any more."""
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            try:
                await ask()  # type: ignore[operator]
            except kind:
                continue
            except RockoonError:
                pass
            return


async def until(kind: type[RockoonError], ask: object) -> RockoonError:
    """Repeat a call until it fails in this way."""
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            try:
                await ask()  # type: ignore[operator]
            except kind as refusal:
                return refusal


async def consume(connection: rockoon.Cluster, topic: str, group: str, count: int) -> list[bytes]:
    arrived: list[bytes] = []
    complete = asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        arrived.append(message.body)
        if len(arrived) >= count:
            complete.set()

    consumer = connection.push_consumer(group, {topic: "*"}, handle, consume_from="first")
    async with consumer, asyncio.timeout(SOON_SECONDS):
        await complete.wait()
    return sorted(arrived)


async def test_a_sender_sends_and_a_reader_consumes_and_neither_does_what_the_other_may(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("orders")
    sender = await new_key(root, "sender", f"topic:{topic}=write")
    reader = await new_key(root, "reader", f"topic:{topic}=read", "group:billing-*=read")
    async with cluster.connect(sender) as sending, cluster.connect(reader) as reading:
        await sending.producer().send(topic, b"one")
        await sending.producer(idempotent=True).send(topic, b"two")
        assert await consume(reading, topic, "billing-1", 2) == [b"one", b"two"]

        with pytest.raises(NotPermitted, match=f"no write permission on topic:{topic}"):
            await reading.producer().send(topic, b"three")
        with pytest.raises(NotPermitted, match=f"no read permission on topic:{topic}"):
            await consume(sending, topic, "billing-1", 1)
        with pytest.raises(NotPermitted, match="no read permission on group:audit"):
            await consume(reading, topic, "audit", 1)
        with pytest.raises(NotPermitted, match=f"no admin permission on topic:{topic}"):
            await sending.admin.delete_topic(topic)
        with pytest.raises(NotPermitted, match="no admin permission on group:billing-1"):
            await reading.admin.delete_group("billing-1")
        with pytest.raises(NotPermitted, match="no read permission on cluster"):
            await reading.admin.describe_broker("broker-a")
        # Not a status that reports every node as down.
        with pytest.raises(NotPermitted, match="no read permission on cluster"):
            await reading.admin.status()
        with pytest.raises(NotPermitted, match="no admin permission on cluster"):
            await reading.admin.access_keys.create("more")
        lag = await reading.admin.lag("billing-1", topic)
        assert lag.complete


async def test_a_failed_message_comes_again_and_dies_in_the_groups_own_topics(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    """They follow the group: their names need no permission of their own."""
    topic = cluster.new_topic("failing")
    key = await new_key(root, "failing", f"topic:{topic}=read,write", "group:failing=read")
    async with cluster.connect(key) as connection:
        await connection.producer().send(topic, b"bad")
        tries = 0
        twice = asyncio.Event()

        async def handle(message: rockoon.Message) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError(message.body)
            twice.set()

        consumer = connection.push_consumer(
            "failing",
            {topic: "*"},
            handle,
            consume_from="first",
            redelivery=rockoon.RetryPolicy(delay_levels=[1]),
        )
        async with consumer, asyncio.timeout(SOON_SECONDS):
            await twice.wait()


async def test_one_stream_sends_to_what_it_may_and_is_refused_the_rest(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    mine, other = cluster.new_topic("mine"), cluster.new_topic("other")
    # It may see the other one, so that the producer finds out at the broker.
    key = await new_key(root, "one-topic", f"topic:{mine}=write", f"topic:{other}=read")
    async with cluster.connect(key) as connection:
        producer = connection.producer()
        await producer.send(mine, b"1")
        with pytest.raises(NotPermitted, match=f"no write permission on topic:{other}"):
            await producer.send(other, b"2")
        await producer.send(mine, b"3")


async def test_one_stream_reads_what_it_may_and_is_refused_the_rest_as_that_changes(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    mine, other = cluster.new_topic("mine"), cluster.new_topic("other")
    for topic in (mine, other):
        await root.producer().send(topic, b"1", queue=MessageQueue(topic, "broker-a", 0))
    granted = [Permission.parse(f"topic:{other}=read")]
    keys = root.admin.access_keys
    key = await new_key(root, "streaming", f"topic:{mine}=read")
    async with cluster.connect(key) as connection:
        stub = BrokerStub(connection._channels.get(connection.broker_address("broker-a")))

        async def refused(reader: StreamReader) -> None:
            refusal = await reader.refusal(await reader.subscribe(other))
            assert isinstance(refusal, NotPermitted)
            assert f"no read permission on topic:{other}" in str(refusal)

        async with reading(stub) as reader:
            await refused(reader)
            refusal = await reader.refusal(await reader.subscribe(mine, group="strangers"))
            assert isinstance(refusal, NotPermitted)
            assert await reader.bodies(await reader.subscribe(mine)) == [b"1"]
            await keys.grant("streaming", granted)
            # Open streams begin again when permissions change.
            with pytest.raises(NotReady, match="permissions of 'streaming' changed"):
                await reader.answer()
        async with reading(stub) as reader:
            assert await reader.bodies(await reader.subscribe(other)) == [b"1"]
            await keys.revoke("streaming", granted)
            with pytest.raises(NotReady, match="permissions of 'streaming' changed"):
                await reader.answer()
        async with reading(stub) as reader:
            await refused(reader)
            assert await reader.bodies(await reader.subscribe(mine)) == [b"1"]


async def test_what_a_key_may_not_see_is_not_there_for_it(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    mine, secret = cluster.new_topic("mine"), cluster.new_topic("secret")
    await root.admin.create_group("hidden-group")
    sent = await root.producer().send(secret, b"hush")
    key = await new_key(root, "narrow", f"topic:{mine}=read", "group:mine=read")
    async with cluster.connect(key) as connection:
        assert [route.name for route in await connection.admin.list_topics()] == [mine]
        assert await connection.admin.list_groups() == []
        for group in ("hidden-group", "no-such-group"):
            with pytest.raises(NotPermitted):
                await connection.admin.get_group(group)
        # The same reply for an existing one and a missing one.
        told = []
        for topic in (secret, "no-such-topic"):
            with pytest.raises(NotPermitted) as refused:
                await connection.route(topic)
            told.append(str(refused.value).replace(topic, "TOPIC"))
        assert told[0] == told[1]
        with pytest.raises(MessageNotFound):
            await connection.admin.messages.get(sent.offset_message_id)
    found = await root.admin.messages.get(sent.offset_message_id)
    assert [message.body for message in found.messages] == [b"hush"]


async def test_a_group_of_ones_own_does_not_tell_of_topics_that_it_does_not_read(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    secret = cluster.new_topic("secret")
    group = cluster.new_topic("spying")
    await root.producer().send(secret, b"hush")
    await root.admin.create_group(group)
    key = await new_key(root, group, f"group:{group}=read,write")
    told = set()
    async with cluster.connect(key) as connection:
        stub = await connection.wait_offset_service(SOON_SECONDS)
        for topic in (secret, "no-such-topic"):
            queue = QueueRef(topic=topic, broker="broker-a")
            entries = [CommitEntry(queue=queue, offset=1)]
            for call in (
                stub.Lag(LagRequest(group=group, topic=topic)),
                stub.PlanReset(PlanResetRequest(group=group, topic=topic)),
                stub.Reset(ResetRequest(wanted=PlanResetRequest(group=group, topic=topic))),
                stub.Query(QueryRequest(group=group, queue=queue)),
                stub.Commit(CommitRequest(group=group, entries=entries)),
                stub.Commit(CommitRequest(group=group, entries=entries, force=True)),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    await call
                refusal = from_rpc_error(refused.value, OffsetServiceUnavailable)
                assert isinstance(refusal, NotPermitted)
                told.add(str(refusal).replace(topic, "TOPIC"))
    # One sentence for commits, one for the others.
    assert len(told) == 2


async def test_who_watches_routes_is_told_of_what_he_may_see_as_that_changes(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    mine, other = cluster.new_topic("mine"), cluster.new_topic("other")
    key = await new_key(root, "watching", f"topic:{mine}=read")
    keys, more = root.admin.access_keys, [Permission.parse(f"topic:{other}=write")]
    channel = dialer(access=key).channel(cluster.nameservers[0])

    async def read_on(call: Any) -> None:
        update = await call.read()
        while update is not aio.EOF:
            update = await call.read()

    async def told(after_revision: int, what: set[str]) -> RouteUpdate:
        """Return the first update of a watch on everything; then permissions change."""
        call = NameServerStub(channel).WatchRoutes(
            WatchRoutesRequest(after_revision=after_revision, include_groups=True)
        )
        update = await call.read()
        assert isinstance(update, RouteUpdate)
        assert {topic.config.name for topic in update.topics} == what
        assert all(entry.topic in what for entry in update.subscriptions)
        await (keys.grant if what == {mine} else keys.revoke)("watching", more)
        # It ends so that another one begins.
        with pytest.raises(grpc.RpcError) as ended:
            await read_on(call)
        assert isinstance(from_rpc_error(ended.value, BrokerUnavailable, broker="?"), NotReady)
        return update

    async with channel, asyncio.timeout(SOON_SECONDS):
        revision = (await told(0, {mine})).revision
        # The routes have not changed, but the caller may see more, and less again.
        update = await told(revision, {mine, other})
        assert update.snapshot
        assert (await told(update.revision, {mine})).snapshot


async def test_a_grant_and_a_revocation_are_in_force_in_what_is_open(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("changing")
    await root.producer().send(topic, b"one")
    keys = root.admin.access_keys
    key = await new_key(root, "changing")
    async with cluster.connect(key) as connection:
        with pytest.raises(NotPermitted):
            await connection.route(topic)
        read = [Permission.parse(f"topic:{topic}=read")]
        await keys.grant("changing", [*read, Permission.parse("group:changing=read")])
        await until_not(NotPermitted, lambda: connection.route(topic))

        arrived = asyncio.Event()

        async def handle(message: rockoon.Message) -> None:
            arrived.set()

        consumer = connection.push_consumer("changing", {topic: "*"}, handle, consume_from="first")

        async def run() -> None:
            async with consumer, asyncio.timeout(SOON_SECONDS):
                await arrived.wait()
                await keys.revoke("changing", read)
                await consumer.wait()

        # Whether a pull, the routes or the group reported it first.
        with pytest.raises(NotPermitted, match=f"permission on topic:{topic}"):
            await run()


async def test_a_deleted_key_ends_a_consumer_that_waits(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("waiting")
    await root.producer().send(topic, b"one")
    key = await new_key(root, "short-lived", f"topic:{topic}=read", "group:short-lived=read")
    async with cluster.connect(key) as connection:
        arrived = asyncio.Event()

        async def handle(message: rockoon.Message) -> None:
            arrived.set()

        consumer = connection.push_consumer(
            "short-lived", {topic: "*"}, handle, consume_from="first"
        )

        async def run() -> None:
            async with consumer, asyncio.timeout(SOON_SECONDS):
                await arrived.wait()
                await root.admin.access_keys.delete("short-lived")
                await consumer.wait()

        with pytest.raises(NotAuthenticated, match="no access key 'short-lived'"):
            await run()
    with pytest.raises(NotAuthenticated):
        async with cluster.connect(key):
            pass


async def test_a_secret_is_replaced_without_anybody_standing_still(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("rotated")
    keys = root.admin.access_keys
    former = await new_key(root, "rotated", f"topic:{topic}=write")
    async with cluster.connect(former) as old:
        producer = old.producer()
        await producer.send(topic, b"before")
        present = await keys.rotate("rotated")
        await in_force(root, present)
        await producer.send(topic, b"with the former secret")
        async with cluster.connect(present) as new:
            await new.producer().send(topic, b"with the present one")
        await keys.rotate("rotated", former_seconds=0)
        refusal = await until(NotAuthenticated, lambda: producer.send(topic, b"too late"))
    assert refusal.details["kind"] == "wrong signature"


async def test_services_and_clients_use_a_renewed_secret_file_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three rounds: both secrets are accepted, the new one signs, the old one is refused."""
    caplog.set_level("INFO", logger="rockoon_core.signature")
    with DisposableCluster(access=True) as cluster:
        services = secret_file(cluster.directory)
        former = rockoon.AccessKey("rockoon", services.read_text().strip())
        present = rockoon.AccessKey("rockoon", new_secret())
        own = tmp_path / "secret"

        def write(file: Path, *secrets: str) -> None:
            partial = file.with_suffix(".partial")
            partial.write_text("".join(f"{each}\n" for each in secrets))
            partial.replace(file)

        async with cluster.connect() as root:
            await root.admin.create_topic("orders")
            key = await new_key(root, "shop", "topic:orders=write")
            await in_force(root, key)
            write(own, key.secret)
            monkeypatch.setenv("ROCKOON_ACCESS_KEY", "shop")
            monkeypatch.setenv("ROCKOON_ACCESS_SECRET_FILE", str(own))
            async with rockoon.connect(cluster.nameservers) as client:
                producer = client.producer()
                await producer.send("orders", b"before")
                for _ in range(2):
                    # The second rotation refuses the secret from before the first one.
                    caplog.clear()
                    rotated = await root.admin.access_keys.rotate("shop")
                    await in_force(root, rotated)
                    write(own, rotated.secret)
                    while "renewed secret of access key 'shop'" not in caplog.text:
                        # Signed once, when its stream is opened, and signed each time.
                        await producer.send("orders", b"during a rotation")
                        await client.admin.describe_topic("orders")
                write(services, former.secret, present.secret)
                await in_force(root, present)
                write(services, present.secret, former.secret)
                logs = [
                    cluster.directory / "logs" / f"{each}.log" for each in ("broker-a", "offset")
                ]
                while not all("renewed secret of access key" in log.read_text() for log in logs):
                    # Nodes renew their registration, and clients call them.
                    await producer.send("orders", b"during the cluster's rotation")
                write(services, present.secret)
                await until(NotAuthenticated, lambda: root.admin.describe_broker("broker-a"))
                await producer.send("orders", b"after the last round")
                async with cluster.connect(present) as renewed:
                    status = await renewed.admin.status()
                    assert [each.error for each in status.brokers] == [None]
                    assert [each.error for each in status.offset_services] == [None]


async def test_resets_are_for_who_may_write_the_group(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("reset")
    await root.producer().send(topic, b"one")
    assert await consume(root, topic, "moved", 1) == [b"one"]
    reader = await new_key(root, "moved-reader", f"topic:{topic}=read", "group:moved=read")
    writer = await new_key(root, "moved-writer", "group:moved=read,write")
    async with cluster.connect(reader) as reading, cluster.connect(writer) as writing:
        with pytest.raises(NotPermitted, match="no write permission on group:moved"):
            await reading.admin.plan_reset("moved", topic, ResetTarget(earliest=True))
        with pytest.raises(NotPermitted, match="no write permission on group:moved"):
            await reading.admin.reset_offsets(
                "moved", topic, ResetTarget(earliest=True), operator="a test"
            )
        plan = await writing.admin.plan_reset("moved", topic, ResetTarget(earliest=True))
        with pytest.raises(NotPermitted, match="no write permission on group:moved"):
            await reading.admin.apply_reset(plan.reset_id, "a test")
        assert (await writing.admin.apply_reset(plan.reset_id, "a test")).applied


async def test_a_group_is_cloned_by_who_may_see_the_other_one(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("cloned")
    await root.producer().send(topic, b"one")
    assert await consume(root, topic, "cloned-from", 1) == [b"one"]
    await root.admin.create_group("cloned-to")
    target = ResetTarget(group="cloned-from")
    blind = await new_key(root, "cloner-blind", f"topic:{topic}=read", "group:cloned-to=write")
    seeing = await new_key(
        root, "cloner", f"topic:{topic}=read", "group:cloned-to=write", "group:cloned-from=read"
    )
    async with cluster.connect(blind) as blinded, cluster.connect(seeing) as cloner:
        for refused in (
            blinded.admin.plan_reset("cloned-to", topic, target),
            blinded.admin.reset_offsets("cloned-to", topic, target, operator="a test"),
        ):
            with pytest.raises(NotPermitted, match="group:cloned-from"):
                await refused
        done = await cloner.admin.reset_offsets("cloned-to", topic, target, operator="a test")
        assert done.applied


async def test_producers_are_listed_for_who_may_see_their_topic(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic, other = cluster.new_topic("seen"), cluster.new_topic("unseen")
    key = await new_key(root, "onlooker", f"topic:{topic}=read")
    async with root.producer() as producer, cluster.connect(key) as connection:
        for each in (topic, other):
            await producer.send(each, b"one")
        (found,) = (await connection.admin.producers(topic)).producers
        assert (found.client_id, found.topics) == (root.client_id, [topic])
        for unseen, resource in ((other, f"topic:{other}"), ("", "cluster")):
            with pytest.raises(NotPermitted, match=resource):
                await connection.admin.producers(unseen)
        (all_of_it,) = (await root.admin.producers()).producers
        assert set(all_of_it.topics) >= {topic, other}


async def test_transactions_are_settled_by_who_may_write_the_producer_group(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("paid")
    key = await new_key(root, "payer", f"topic:{topic}=read,write", "group:payments=read,write")

    async def check(message: rockoon.Message) -> rockoon.Resolution:
        return rockoon.Resolution.COMMIT

    async with cluster.connect(key) as connection:
        producer = connection.transactional_producer("payments", check=check)
        async with producer, producer.transaction(topic, b"paid"):
            pass
        assert await consume(connection, topic, "payments", 1) == [b"paid"]
        await root.admin.access_keys.revoke("payer", [Permission.parse("group:payments=write")])
        again = connection.transactional_producer("payments", check=check)

        async def pay() -> None:
            async with again.transaction(topic, b"not paid"):
                pass

        async with again:
            await until(NotPermitted, pay)


async def test_a_delayed_message_is_taken_back_by_who_may_send_to_its_topic(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic, other = cluster.new_topic("later"), cluster.new_topic("other")
    sender = await new_key(root, "later-sender", f"topic:{topic}=write")
    reader = await new_key(root, "later-reader", f"topic:{topic}=read")
    stranger = await new_key(root, "later-stranger", f"topic:{other}=write", "cluster=read")
    operator = await new_key(root, "later-operator", "cluster=write")

    async def taken_back(key: rockoon.AccessKey, message_id: str) -> None:
        async with cluster.connect(key) as connection:
            await connection.admin.delayed.cancel(message_id)

    async with cluster.connect(sender) as sending:
        producer = sending.producer()
        first, second = [
            (await producer.send(topic, b"later", delay_seconds=3600)).offset_message_id
            for _ in range(2)
        ]
    with pytest.raises(NotPermitted, match=f"no write permission on topic:{topic}"):
        await taken_back(reader, first)
    with pytest.raises(MessageNotFound):
        await taken_back(stranger, first)
    await taken_back(sender, first)
    with pytest.raises(DelayedSettled):
        await taken_back(sender, first)
    # Nor does it learn of an existing one.
    with pytest.raises(MessageNotFound):
        await taken_back(stranger, first)
    await taken_back(operator, second)


async def test_nobody_has_the_producers_of_another_group_asked_about_what_he_sends(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("asked")
    key = await new_key(root, "asking", f"topic:{topic}=write", "group:mine=write")

    async def check(message: rockoon.Message) -> rockoon.Resolution:
        return rockoon.Resolution.UNKNOWN

    async with cluster.connect(key) as connection:
        own = connection.transactional_producer("mine", check=check)
        async with own, own.transaction(topic, b"allowed"):
            pass
        async with connection.transactional_producer("theirs", check=check) as other:
            with pytest.raises(NotPermitted, match="no write permission on group:theirs"):
                await other.begin(topic, b"of nobody there")


async def test_keys_are_made_once_and_named_as_keys_are(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    keys = root.admin.access_keys
    await keys.create("unique", [Permission.parse("topic:a=read")], "for a test")
    with pytest.raises(AccessKeyExists, match="'unique' exists already"):
        await keys.create("unique")
    found = await keys.describe("unique")
    assert found.description == "for a test"
    assert found.permissions == (Permission("topic:a", frozenset({"read"})),)
    for wrong in ("rockoon", "no spaces", ""):
        with pytest.raises(InvalidArgument):
            await keys.create(wrong)
    with pytest.raises(AccessKeyNotFound):
        await keys.grant("nobody", found.permissions)
    await keys.delete("unique")
    with pytest.raises(AccessKeyNotFound):
        await keys.delete("unique")


def environment_for(key: rockoon.AccessKey) -> dict[str, str]:
    return {"ROCKOON_ACCESS_KEY": key.id, "ROCKOON_ACCESS_SECRET": key.secret}


async def test_sparks_reading_of_the_log_goes_by_the_environment(
    cluster: DisposableCluster, root: rockoon.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.new_topic("log")
    await root.producer().send(topic, b"in the log")
    key = await new_key(root, "spark", "cluster=admin")
    for name, value in environment_for(key).items():
        monkeypatch.setenv(name, value)

    def read() -> bytes:
        with LogClient("broker-a", cluster.node("broker-a").address, 5.0) as client:
            return client.read(ReadLogRequest(at_record=True, end_offset=1 << 40)).frames

    assert b"in the log" in await asyncio.to_thread(read)
    await root.admin.access_keys.revoke("spark", [Permission.parse("cluster=admin")])
    await until(NotPermitted, lambda: asyncio.to_thread(read))


@pytest.mark.parametrize("away", ["fail", "skip"])
async def test_a_batch_of_a_topic_needs_read_on_the_topic(
    cluster: DisposableCluster, root: rockoon.Cluster, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    topic, other = cluster.new_topic("batch"), cluster.new_topic("other")
    async with root.producer() as producer:
        for name in (topic, other):
            await producer.send(name, name.encode())
    read = f"spark-read-{away}", f"topic:{topic}=read"
    admin = f"spark-admin-{away}", "cluster=admin", f"topic:{topic}=write"

    def rows(*topics: str) -> list[bytes]:
        options = {"endpoint": ",".join(cluster.nameservers), "columns": "body"}
        named = {"topics": ",".join(topics)} if topics else {}
        parsed = SourceOptions.parse({**options, **named, "onBrokerAway": away})
        reader = LogReader(parsed)
        return [
            body
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for body in batch.column("body").to_pylist()
        ]

    for name, *permissions in (read, admin):
        key = await new_key(root, name, *permissions)
        with monkeypatch.context() as patch:
            for variable, value in environment_for(key).items():
                patch.setenv(variable, value)
            # A key with `admin` on the cluster reads the whole log.
            assert await asyncio.to_thread(rows, topic) == [topic.encode()]
            if name == read[0]:
                for topics in ([other], [topic, other], []):
                    with pytest.raises((OptionError, LogUnreadable)):
                        await asyncio.to_thread(rows, *topics)


def test_blocking_code_signs_too(cluster: DisposableCluster) -> None:
    topic = cluster.new_topic("blocking")
    with cluster.connect() as connection:
        connection.send(topic, b"one")
        assert next(iter(connection.consume(topic, timeout=SOON_SECONDS))).body == b"one"


async def test_services_go_on_with_the_keys_they_know_while_no_nameserver_answers(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    topic = cluster.new_topic("away")
    key = await new_key(root, "outlasting", f"topic:{topic}=write")
    async with cluster.connect(key) as connection:
        producer = connection.producer()
        await producer.send(topic, b"before")
        await asyncio.to_thread(cluster.kill, "nameserver-a")
        try:
            await producer.send(topic, b"meanwhile")
        finally:
            await asyncio.to_thread(cluster.start, "nameserver-a")
        # Later changes take effect as usual.
        await root.admin.access_keys.disable("outlasting")
        refusal = await until(NotAuthenticated, lambda: producer.send(topic, b"after"))
    assert "is disabled" in str(refusal)


async def test_a_stream_of_requests_of_blocking_code_is_signed_when_it_is_opened(
    cluster: DisposableCluster, root: rockoon.Cluster
) -> None:
    key = await new_key(root, "uploading", "cluster=admin")
    stranger = await new_key(root, "not-uploading", "topic:*=read,write,admin")
    address = cluster.node("broker-a").address

    def upload(access: rockoon.AccessKey) -> RockoonError:
        with dialer(access=access).blocking_channel(address) as channel:
            requests = iter([PutGenerationFileRequest(upload_id="?", file_name="?")])
            try:
                BrokerStub(channel).PutGenerationFile(requests, timeout=DEADLINE_SECONDS)
            except grpc.RpcError as failure:
                return from_rpc_error(failure, BrokerUnavailable, broker="broker-a")
        raise AssertionError("the broker took a file of no generation")

    assert isinstance(await asyncio.to_thread(upload, stranger), NotPermitted)
    # It passed the gate.
    assert isinstance(await asyncio.to_thread(upload, key), InvalidArgument)


def test_a_key_from_its_making_to_its_end_by_commands(
    cluster: DisposableCluster, forks: CommandForks, tmp_path: Path
) -> None:
    topic = cluster.new_topic("commands")

    def run(*arguments: str, status: int = 0) -> str:
        ended, out, err = forks.run(arguments, b"hello\n")
        assert ended == status, (arguments, out, err)
        return out + err

    file = tmp_path / "secret-of-cli"
    made = run("access", "create", "cli", "--description", "for a test", f"--secret-file={file}")
    assert str(file) in made
    assert file.read_text().strip() not in made
    assert file.stat().st_mode & 0o077 == 0
    as_cli = ("--access-key=cli", f"--access-secret-file={file}")

    def refused(sentence: str, *arguments: str) -> None:
        """Commands are in effect when they return here; at the other services a moment later."""
        wait_until(
            lambda: sentence in run(*as_cli, *arguments, status=1), f"{arguments} to be refused"
        )

    refused("no read, write or admin permission", "produce", topic)
    shown = run("access", "grant", "cli", f"topic:{topic}=write", "group:a-*=read,admin")
    assert f"topic:{topic}" in shown
    assert "read,admin" in shown
    wait_until(lambda: forks.run((*as_cli, "produce", topic), b"one\n")[0] == 0, "the grant")
    run("access", "revoke", "cli", f"topic:{topic}=write")
    refused(f"permission on topic:{topic}", "produce", topic)
    assert "was not granted" in run("access", "revoke", "cli", "topic:x=read", status=1)
    assert "is not a permission" in run("access", "grant", "cli", "topic:x", status=1)

    assert "disabled" in run("access", "disable", "cli")
    refused("access key 'cli' is disabled", "topic", "list")
    assert "enabled" in run("access", "enable", "cli")
    next_file = tmp_path / "next-secret"
    run("access", "rotate", "cli", "--former", "0s", f"--secret-file={next_file}")
    refused("does not hold", "topic", "list")
    run(as_cli[0], f"--access-secret-file={next_file}", "topic", "list")
    assert "exists" in run("access", "rotate", "cli", f"--secret-file={next_file}", status=2)
    # Nothing is created that could not be deleted, and no file of a failed creation stays.
    nowhere = f"--secret-file={tmp_path / 'nowhere' / 'secret'}"
    assert "No such file" in run("access", "create", "lost", nowhere, status=2)
    assert "lost" not in run("access", "list")
    unused = tmp_path / "unused"
    assert "exists already" in run("access", "create", "cli", f"--secret-file={unused}", status=1)
    assert not unused.exists()
    listed = json.loads(run("access", "list", "--json"))
    (mine,) = (each for each in listed if each["key"] == "cli")
    assert mine["permissions"] == {"group:a-*": ["read", "admin"]}
    assert mine["description"] == "for a test"
    run("access", "delete", "cli", "--yes")
    assert "no access key 'cli'" in run("access", "show", "cli", status=1)


def test_nobody_shows_a_secret(
    cluster: DisposableCluster, forks: CommandForks, tmp_path: Path
) -> None:
    """Neither the logs of services, nor metrics, nor etcd, nor output of commands contain
    secrets."""
    assert cluster.access is not None

    def run(*arguments: str) -> str:
        _, out, err = forks.run(arguments, b"")
        return out + err

    made = run("access", "create", "printed", "--allow", "topic:printed=read,write")
    secret = made.split("ROCKOON_ACCESS_SECRET=")[1].split()[0]
    assert not rockoon.AccessKey("printed", secret).fault
    file = tmp_path / "secret"
    file.write_text(secret)

    def refuse() -> str:
        said = run("--access-key=printed", f"--access-secret-file={file}", "topic", "create", "x")
        assert "no admin permission on topic:x" in said
        return said

    def logged() -> str:
        return "".join(path.read_text() for path in (cluster.directory / "logs").iterdir())

    refused = refuse()
    # One refusal a second is logged, and this one may not have been it.
    line = "was refused: access key 'printed'"
    wait_until(lambda: line in logged() or line in (refuse() and logged()), "its line in a log")
    listed = run("access", "list") + run("access", "show", "printed", "--json")
    assert "topic:printed" in listed
    etcd = b"".join(
        path.read_bytes() for path in (cluster.directory / "etcd").rglob("*") if path.is_file()
    )
    assert b"/access/printed" in etcd
    port = choose_port()
    cluster.add_broker("broker-b", metrics_listen=f"127.0.0.1:{port}")
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_SECONDS) as page:
        metrics = page.read().decode()
    assert "rockoon_access_refused_total{" in metrics
    logs = logged()
    for hidden in (secret, cluster.access.secret):
        assert hidden not in logs
        assert hidden.encode() not in etcd
        assert hidden not in listed + refused + metrics
    assert verifier_of(secret).hex() not in logs
