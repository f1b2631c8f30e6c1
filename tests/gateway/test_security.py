"""Signatures of RocketMQ's clients, permissions of access keys, and TLS."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

import rockoon
from gateway.consumers import Consumer, handle, send
from gateway.gateways import RunningGateway, running_gateway
from gateway.lite_consumers import LiteConsumer, lite_parent
from gateway.wire_client import WireClient, consumer_settings, message, producer_settings
from rockoon.admin.access_keys import Permission
from rockoon.errors import NotPermitted, OffsetServiceUnavailable
from rockoon.local.authority import Authority
from rockoon.local.cluster import LocalCluster
from rockoon.net.access import AccessKey
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.delivered import transaction_id
from rockoon_gateway.producing.sending import Recall, recall_handle
from rockoon_gateway.server import serve
from rockoon_gateway.settings import GatewaySettings
from rockoon_gateway.signatures import parsed, signature_of
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as a
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.in_flight_pb2 import ClientName, ClientReport, ReportClientsRequest
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig
from rockoon_runtime.process import Stop
from rockoon_runtime.settings import SettingsError, load
from support.eventually import answered

DATE = "20261120T154601Z"

Open = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(single=True, access=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local_cluster: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local_cluster.nameservers, access=local_cluster.access) as connected:
        yield connected


@pytest.fixture
def guarded(local_cluster: LocalCluster, tmp_path: Path) -> Open:
    """Start a gateway that has the secrets of some keys."""
    assert local_cluster.access is not None
    secret = local_cluster.access.secret

    @asynccontextmanager
    async def opened(*keys: AccessKey, access: str = "on") -> AsyncIterator[RunningGateway]:
        file = tmp_path / "secrets"
        file.write_text("# of clients\n\n" + "".join(f"{key.id} {key.secret}\n" for key in keys))
        async with running_gateway(
            local_cluster, access=access, cluster_secret=secret, client_secrets=file
        ) as running:
            yield running

    return opened


def signed(key: AccessKey, *, behind: str = "", upper: bool = False) -> dict[str, str]:
    """Return the headers of a call by a key; `behind` follows its name, as in Go and C++."""
    signature = signature_of(key.secret, DATE)
    return {
        "x-mq-date-time": DATE,
        "authorization": (
            f"MQv2-HMAC-SHA1 Credential={key.id}{behind}, SignedHeaders=x-mq-date-time, "
            f"Signature={signature.upper() if upper else signature}"
        ),
    }


def test_the_signature_is_the_one_that_clients_make() -> None:
    assert signature_of("sk", DATE) == "4b9d1504deb8c7e4347e37c587c5492fd68cab21"
    assert parsed("MQv2-HMAC-SHA1 Credential=ak//Rocketmq, SignedHeaders=x, Signature=AB") == (
        "ak",
        "AB",
    )
    for wrong in ("", "Basic abc", "MQv2-HMAC-SHA1", "MQv2-HMAC-SHA1 ,=,=="):
        assert parsed(wrong) == ("", "")


@pytest.mark.parametrize(
    ("behind", "upper"), [("", False), ("//Rocketmq", False), ("/region/RocketMQ", True)]
)
async def test_a_key_may_do_what_the_cluster_lets_it(
    cluster: rockoon.Cluster, guarded: Open, behind: str, upper: bool
) -> None:
    name = f"seller-{upper}-{len(behind)}"
    await cluster.admin.create_topic("orders", if_absent=True)
    await cluster.admin.create_topic("salaries", if_absent=True)
    key = await cluster.admin.access_keys.create(
        name, permissions=[Permission.parse("topic:orders=write")]
    )
    async with guarded(key) as gateway:
        headers = signed(key, behind=behind, upper=upper)
        async with WireClient(gateway.address, headers=headers) as seller:
            assert (await seller.route("orders")).status.code == Code.OK
            assert (await seller.send(message("orders"))).status.code == Code.OK
            assert (await seller.route("salaries")).status.code == Code.UNAUTHORIZED
            refused = await seller.send(message("salaries"))
            assert refused.status.code == Code.UNAUTHORIZED
            assert refused.status.message.startswith("UNAUTHORIZED")
            recall = recall_handle(Recall("salaries", "broker-a", 1, "0" * 32, "one"))
            request = pb.RecallMessageRequest(
                topic=d.Resource(name="salaries"), recall_handle=recall
            )
            recalled = await seller.call("RecallMessage", request)
            assert recalled.status.code == Code.UNAUTHORIZED
            ending = pb.EndTransactionRequest(
                topic=d.Resource(name="salaries"),
                message_id="one",
                transaction_id=transaction_id("broker-a", 0),
                resolution=d.COMMIT,
            )
            ended_by = await seller.call("EndTransaction", ending)
            assert ended_by.status.code == Code.UNAUTHORIZED
            heartbeat = await seller.heartbeat(d.PUSH_CONSUMER, "readers")
            assert heartbeat.status.code == Code.UNAUTHORIZED
            told = await seller.telemetry().tell(producer_settings("orders"))
            assert told.status.code == Code.OK
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await seller.telemetry().tell(consumer_settings("readers", "orders"))
            assert "UNAUTHORIZED" in str(ended.value.details())


async def test_who_does_not_sign_with_a_secret_in_force_is_refused(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    key = await cluster.admin.access_keys.create(
        "reader", permissions=[Permission.parse("topic:*=read,write")]
    )
    unlisted = await cluster.admin.access_keys.create("unlisted", permissions=[])
    wrong = [
        {},
        {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=AA"},
        signed(AccessKey("reader", "another secret that is long enough")),
        signed(AccessKey("nobody", key.secret)),
        signed(unlisted),
        {**signed(key), "x-mq-date-time": "20261120T154602Z"},
    ]
    async with guarded(key) as gateway:
        for headers in wrong:
            async with WireClient(gateway.address, headers=headers) as stranger:
                assert (await stranger.route("orders")).status.code == Code.UNAUTHORIZED, headers


async def test_who_consumes_needs_to_read_the_group_and_the_topic_it_names(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    for topic in ("bills", "wages"):
        await cluster.admin.create_topic(topic)
        await send(cluster, topic, [b"1"])
    texts = {
        "bill-reader": ["topic:bills=read", "group:payers=read"],
        "wage-reader": ["topic:wages=read", "group:payers=read"],
        "groupless": ["topic:bills=read"],
    }
    keys = [
        await cluster.admin.access_keys.create(name, permissions=[*map(Permission.parse, granted)])
        for name, granted in texts.items()
    ]
    async with (
        guarded(*keys) as gateway,
        WireClient(gateway.address, headers=signed(keys[0])) as bills,
        WireClient(gateway.address, "wages", headers=signed(keys[1])) as wages,
        WireClient(gateway.address, "groupless", headers=signed(keys[2])) as groupless,
        WireClient(gateway.address, headers=signed(keys[1])) as twin,
    ):
        reader = Consumer(bills, "payers", "bills")
        (bill,) = await reader.receive_all(1)
        for topic, client in (("wages", bills), ("bills", wages), ("bills", groupless)):
            stranger = Consumer(client, "payers", topic)
            (frame,) = await stranger.frames()
            assert frame.status.code == Code.UNAUTHORIZED
            assert (await stranger.acknowledge(handle(bill))).status.code == Code.UNAUTHORIZED
            assert (await stranger.change(handle(bill), 0)).status.code == Code.UNAUTHORIZED
            assert (await stranger.forward(handle(bill))).status.code == Code.UNAUTHORIZED
        # A client id belongs to the key that used it first.
        ended = await twin.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        assert ended.status.code == Code.UNAUTHORIZED
        assert (await twin.heartbeat(d.PRODUCER)).status.code == Code.UNAUTHORIZED
        # Nor by naming a topic that it may read.
        sly = Consumer(wages, "payers", "wages")
        assert (await sly.acknowledge(handle(bill))).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await sly.change(handle(bill), 0)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await reader.acknowledge(handle(bill))).status.code == Code.OK


async def test_dead_letters_are_their_groups(cluster: rockoon.Cluster, guarded: Open) -> None:
    """As at the brokers."""
    await cluster.admin.create_topic("failing")
    await send(cluster, "failing", [b"1"])
    texts = {
        "of-the-group": ["topic:failing=read", "group:failers=read"],
        "of-all-topics": ["topic:*=read", "group:diggers=read"],
    }
    keys = [
        await cluster.admin.access_keys.create(name, permissions=[*map(Permission.parse, granted)])
        for name, granted in texts.items()
    ]
    async with (
        guarded(*keys) as gateway,
        WireClient(gateway.address, "own", headers=signed(keys[0])) as own,
        WireClient(gateway.address, "digger", headers=signed(keys[1])) as digger,
    ):
        consumer = Consumer(own, "failers", "failing")
        (bad,) = await consumer.receive_all(1)
        assert (await consumer.forward(handle(bad))).status.code == Code.OK
        (frame,) = await Consumer(digger, "diggers", "%DLQ%failers").frames()
        assert frame.status.code == Code.UNAUTHORIZED
        assert (await digger.route("%DLQ%failers")).status.code == Code.UNAUTHORIZED
        (dead,) = await Consumer(own, "failers", "%DLQ%failers").receive_all(1)
        assert dead.body == b"1"


async def test_a_key_of_one_namespace_does_everything_there_and_nothing_elsewhere(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    for topic in ("orders", "shop%orders", "other%orders", "shop2%orders"):
        await cluster.admin.create_topic(topic, queues_per_broker=1, if_absent=True)
    for topic in ("other%chat", "shop%chat"):
        await lite_parent(cluster, topic)
    texts = {
        "shopper": ["topic:shop%*=read,write", "group:shop%*=read,write"],
        "stranger": ["topic:other%*=read,write", "group:other%*=read,write"],
    }
    keys = [
        await cluster.admin.access_keys.create(name, permissions=[*map(Permission.parse, granted)])
        for name, granted in texts.items()
    ]
    half = message("orders", b"?", "half", message_type=d.TRANSACTION)
    async with guarded(*keys) as gateway:

        def by(number: int, name: str, **options: Any) -> WireClient:
            headers = {**signed(keys[number]), **options.pop("headers", {})}
            return WireClient(gateway.address, name, headers, **options)

        async with (
            by(0, "shop@1", namespace="shop") as shopper,
            by(0, "shop@2", headers={"x-mq-namespace": "shop"}) as by_header,
            by(0, "shop@3") as outside,
            by(0, "shop@4", namespace="other") as elsewhere,
            by(0, "shop@5", namespace="shop2") as alike,
            by(0, "shop@6", headers={"x-mq-namespace": "other"}) as sly,
            by(1, "other@1", namespace="other") as stranger,
        ):
            consumer = Consumer(shopper, "billing", "orders")
            assert (await shopper.send(message("orders", b"1"))).status.code == Code.OK
            told = await by_header.telemetry().tell(consumer_settings("billing", "orders"))
            assert told.status.code == Code.OK
            (got,) = await Consumer(by_header, "billing", "orders").receive_all(1)
            assert (await consumer.forward(handle(got))).status.code == Code.OK
            (dead,) = await Consumer(shopper, "billing", "%DLQ%billing").receive_all(1)
            assert dead.body == b"1"
            talker = LiteConsumer(shopper, "talkers", "chat")
            await talker.send("one", b"lite")
            await talker.subscribe("one", offset_option=d.OffsetOption(policy=d.OffsetOption.MIN))
            assert [each.body for each in await talker.receive_all(1)] == [b"lite"]
            own = [(await each.send(half)).entries[0] for each in (shopper, stranger)]
            assert await shopper.end("orders", own[0], d.ROLLBACK) == Code.OK
            assert (await outside.route("shop%orders")).status.code == Code.OK

            for client, topic in (
                (outside, "orders"),
                (outside, "other%orders"),
                (outside, "shop2%orders"),
                (outside, "%DLQ%billing"),
                (outside, "%DLQ%other%billing"),
                (outside, "%RETRY%other%billing"),
                (elsewhere, "orders"),
                (elsewhere, "shop%orders"),
                (elsewhere, "%DLQ%billing"),
                (alike, "orders"),
                (sly, "orders"),
            ):
                route, sent = await client.route(topic), await client.send(message(topic))
                (frame,) = await Consumer(client, "billing", topic).frames(wait=0)
                codes = {route.status.code, sent.status.code, frame.status.code}
                assert codes == {Code.UNAUTHORIZED}, (client.client_id, topic)
            synced = await LiteConsumer(elsewhere, "talkers", "chat").sync("one")
            assert synced.status.code == Code.UNAUTHORIZED
            # Ids and handles of another namespace are refused under a name of the own one.
            assert await shopper.end("orders", own[1], d.COMMIT) == Code.INVALID_TRANSACTION_ID
            assert (await stranger.send(message("orders", b"secret"))).status.code == Code.OK
            (secret,) = await Consumer(stranger, "billing", "orders").receive_all(1)
            settled = await consumer.acknowledge(handle(secret))
            assert settled.status.code == Code.INVALID_RECEIPT_HANDLE
            recall = recall_handle(Recall("shop%orders", "broker-a", 1, "0" * 32, "one"))
            for client, code in ((shopper, Code.NOT_FOUND), (elsewhere, Code.UNAUTHORIZED)):
                request = pb.RecallMessageRequest(
                    topic=d.Resource(name="orders"), recall_handle=recall
                )
                assert (await client.call("RecallMessage", request)).status.code == code


async def test_a_console_asks_only_about_topics_that_its_key_may_see_or_its_group_reads(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    for name in ("mall%orders", "bank%orders"):
        await cluster.admin.create_topic(name, queues_per_broker=1)
    granted = [Permission.parse("topic:mall%*=read"), Permission.parse("group:mall%*=read,write")]
    key = await cluster.admin.access_keys.create("clerk", permissions=granted)
    async with (
        guarded(key) as gateway,
        WireClient(gateway.address, headers=signed(key)) as clerk,
        grpc.aio.insecure_channel(gateway.address) as channel,
    ):
        console: Any = AdminStub(channel)
        assert await Consumer(clerk, "mall%billing", "mall%orders").receive(wait=0) == []
        group = d.Resource(name="mall%billing")
        for name, code in (("bank%orders", Code.UNAUTHORIZED), ("mall%orders", Code.OK)):
            topic = d.Resource(name=name)
            lag = a.DescribeGroupAccumulationRequest(group=group, topics=[topic])
            described = await console.DescribeGroupAccumulation(lag, metadata=clerk.metadata)
            assert described.status.code == code
            reset = a.ResetGroupOffsetRequest(
                group=group, topic=topic, reset_timestamp=Timestamp(seconds=1)
            )
            was_reset = await console.ResetGroupOffset(reset, metadata=clerk.metadata)
            assert was_reset.status.code == code


async def test_a_goodbye_by_another_key_frees_nothing_at_any_gateway(
    cluster: rockoon.Cluster, guarded: Open, local_cluster: LocalCluster
) -> None:
    await cluster.admin.create_topic("loans", queues_per_broker=1)
    await send(cluster, "loans", [b"kept", b"left"])
    await cluster.admin.create_group(GroupConfig(name="lenders", new_queue_rule=CLASSIC))
    granted = [Permission.parse("topic:loans=read"), Permission.parse("group:lenders=read")]
    honest, hostile, stranger = [
        await cluster.admin.access_keys.create(name, permissions=permissions)
        for name, permissions in (("honest", granted), ("hostile", granted), ("outside", []))
    ]
    goodbye = pb.NotifyClientTerminationRequest(group=d.Resource(name="lenders"))
    async with (
        guarded(honest, hostile) as first,
        guarded(honest, hostile) as second,
        WireClient(first.address, "one", headers=signed(honest)) as victim,
        WireClient(second.address, "one", headers=signed(hostile)) as twin,
        WireClient(second.address, "two", headers=signed(honest)) as rival,
    ):
        (kept,) = await Consumer(victim, "lenders", "loans").receive_all(
            1, batch_size=1, renewed=True
        )
        # The twin holds a message, too: once that is free, the service has its unregistration.
        (left,) = await Consumer(twin, "lenders", "loans").receive_all(
            1, batch_size=1, renewed=True
        )
        assert (await twin.call("NotifyClientTermination", goodbye)).status.code == Code.OK
        (got,) = await Consumer(rival, "lenders", "loans").receive_all(1, wait=10)
        assert (got.body, got.system_properties.delivery_attempt) == (left.body, 2)
        # A call to the offset service itself, with the name of another key, does not help either.
        name = ClientName(group="lenders", client_id="one", key_id="honest")
        report = ReportClientsRequest(
            gateway="g", gateway_id="g", clients=[ClientReport(name=name, goodbye=True)]
        )
        for key in (hostile, stranger):
            async with rockoon.connect(local_cluster.nameservers, access=key) as own:
                calling = own.call(
                    own.in_flight_service().ReportClients,
                    report,
                    unavailable=OffsetServiceUnavailable,
                )
                if key is stranger:
                    with pytest.raises(NotPermitted):
                        await calling
                else:
                    await calling
        assert await Consumer(rival, "lenders", "loans").receive(wait=0) == []
        answer = await Consumer(victim, "lenders", "loans").acknowledge(handle(kept))
        assert answer.status.code == Code.OK


async def until_code(client: WireClient, code: Code) -> None:
    await answered(lambda: client.route("orders"), lambda answer: answer.status.code == code)


async def test_a_key_that_is_disabled_or_gets_another_secret_is_over(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    keys = cluster.admin.access_keys
    await cluster.admin.create_topic("orders", if_absent=True)
    key = await keys.create("temporary", permissions=[Permission.parse("topic:*=read")])
    async with (
        guarded(key) as gateway,
        WireClient(gateway.address, headers=signed(key)) as client,
    ):
        assert (await client.route("orders")).status.code == Code.OK
        await keys.disable("temporary")
        await until_code(client, Code.UNAUTHORIZED)
        await keys.enable("temporary")
        await until_code(client, Code.OK)
        await keys.rotate("temporary", former_seconds=0)
        await until_code(client, Code.UNAUTHORIZED)


async def test_a_secret_that_is_added_to_the_file_is_accepted_until_its_key_is_deleted(
    cluster: rockoon.Cluster, guarded: Open, tmp_path: Path
) -> None:
    await cluster.admin.create_topic("orders", if_absent=True)
    may_read = [Permission.parse("topic:*=read")]
    keys = [
        await cluster.admin.access_keys.create(name, permissions=may_read)
        for name in ("present", "added")
    ]
    async with (
        guarded(keys[0]) as gateway,
        WireClient(gateway.address, headers=signed(keys[1])) as client,
    ):
        assert (await client.route("orders")).status.code == Code.UNAUTHORIZED
        with (tmp_path / "secrets").open("a") as file:
            file.write(f"{keys[1].id} {keys[1].secret}\n")
        await until_code(client, Code.OK)
        await cluster.admin.access_keys.delete(keys[1].id)
        await until_code(client, Code.UNAUTHORIZED)


async def test_an_offset_goes_back_only_with_the_permission_to_write_the_group(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    await cluster.admin.create_topic("rewound", queues_per_broker=1)
    await send(cluster, "rewound", [b"0", b"1"])
    keys = [
        await cluster.admin.access_keys.create(
            name, permissions=[Permission.parse("topic:*=read"), Permission.parse(granted)]
        )
        for name, granted in (("reads", "group:*=read"), ("rewinds", "group:*=read,write"))
    ]
    queue = d.MessageQueue(topic=d.Resource(name="rewound"), broker=d.Broker(name="broker-a"))

    def update(offset: int) -> pb.UpdateOffsetRequest:
        group = d.Resource(name="rewinders")
        return pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=offset)

    async with (
        guarded(*keys) as gateway,
        WireClient(gateway.address, "reader", headers=signed(keys[0])) as reader,
        WireClient(gateway.address, "writer", headers=signed(keys[1])) as writer,
    ):
        assert (await reader.call("UpdateOffset", update(2))).status.code == Code.OK
        assert (await reader.call("UpdateOffset", update(1))).status.code == Code.UNAUTHORIZED
        assert (await writer.call("UpdateOffset", update(1))).status.code == Code.OK


async def test_a_telemetry_stream_goes_by_what_its_key_may_do_by_then(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    keys = cluster.admin.access_keys
    await cluster.admin.create_topic("halves", if_absent=True)
    may_write = [Permission.parse("topic:halves=write")]
    sender = await keys.create("sender", permissions=may_write)
    leaving = await keys.create("leaving", permissions=may_write)
    async with (
        guarded(sender, leaving) as gateway,
        WireClient(gateway.address, "leaving@1", headers=signed(leaving)) as gone,
        WireClient(gateway.address, "sender@1", headers=signed(sender)) as client,
    ):
        stream, own = gone.telemetry(), client.telemetry()
        for each in (stream, own):
            await each.tell(producer_settings("halves"))
        await keys.disable("leaving")
        await until_code(gone, Code.UNAUTHORIZED)
        halves = [message("halves", b"?", name, message_type=d.TRANSACTION) for name in ("1", "2")]
        for half in halves:
            soon = half.system_properties.orphaned_transaction_recovery_duration
            soon.CopyFrom(Duration(seconds=1))
        assert (await client.send(*halves)).status.code == Code.OK
        # While both are permitted, they are used in turn.
        for _ in halves:
            assert (await own.next()).HasField("recover_orphaned_transaction_command")
        await stream.send(pb.TelemetryCommand(settings=producer_settings("halves")))
        with pytest.raises(grpc.RpcError):
            # The stream ends before another message.
            await stream.next()


async def test_where_keys_are_optional_a_wrong_one_is_refused_all_the_same(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    await cluster.admin.create_topic("orders", if_absent=True)
    key = await cluster.admin.access_keys.create("careful", permissions=[])
    async with guarded(key, access="optional") as gateway:
        async with WireClient(gateway.address) as unsigned:
            assert (await unsigned.route("orders")).status.code == Code.OK
        async with WireClient(gateway.address, headers=signed(key)) as bounded:
            assert (await bounded.route("orders")).status.code == Code.UNAUTHORIZED


async def test_clients_may_come_by_tls_or_plainly_to_a_cluster_of_its_own_kind(
    tmp_path: Path,
) -> None:
    """RocketMQ's clients show no certificate, which services of this cluster require."""
    outside = Authority(tmp_path / "outside")
    own = outside.issue("gateway", hosts=("gateway", "localhost", "127.0.0.1"))
    with LocalCluster(single=True, tls="mutual") as mutual:
        assert mutual.tls is not None
        async with (
            rockoon.connect(mutual.nameservers, tls=mutual.tls) as cluster,
            running_gateway(
                mutual,
                tls="on",
                tls_certificate=own.certificate,
                tls_key=own.key,
                plain_connections=True,
                cluster_tls="mutual",
                cluster_tls_ca=mutual.tls.ca,
                cluster_tls_certificate=mutual.tls.certificate,
                cluster_tls_key=mutual.tls.key,
            ) as gateway,
        ):
            await cluster.admin.create_topic("orders")
            async with WireClient(gateway.address, ca=outside.ca) as client:
                assert (await client.send(message("orders"))).status.code == Code.OK
            async with WireClient(gateway.address) as client:
                assert (await client.send(message("orders"))).status.code == Code.OK


async def test_settings_that_contradict_tls_or_were_removed_are_refused_with_what_to_set(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="plain_connections is set, but tls = off"):
        await serve(GatewaySettings(plain_connections=True), Stop())
    file = tmp_path / "gateway.toml"
    file.write_text('plain_listen = "0.0.0.0:8082"')
    variables = {"ROCKOON_GATEWAY_PLAIN_LISTEN": "0.0.0.0:8082"}
    for chosen, given in ((file, {}), (None, variables)):
        with pytest.raises(SettingsError, match="removed: set plain_connections = true"):
            load(GatewaySettings, "gateway", file=chosen, environment=given, arguments={})


async def test_who_may_not_write_a_group_moves_none_of_its_progress_by_subscribing(
    cluster: rockoon.Cluster, guarded: Open
) -> None:
    topic = await lite_parent(cluster, "private-chat")
    attributes = {"lite.bind.topic": topic}
    config = GroupConfig(name="talkers", fifo=True, new_queue_rule=CLASSIC, attributes=attributes)
    await cluster.admin.create_group(config)
    texts = {
        "talker": ["topic:private-chat=read,write", "group:talkers=read,write"],
        "listener": ["topic:private-chat=read", "group:talkers=read"],
        "eavesdropper": ["topic:private-chat=read", "group:others=read,write"],
    }
    keys = [
        await cluster.admin.access_keys.create(name, permissions=[*map(Permission.parse, granted)])
        for name, granted in texts.items()
    ]
    stored = stored_lite_topic(topic, "one")
    from_first = d.OffsetOption(policy=d.OffsetOption.MIN)
    async with (
        guarded(*keys) as gateway,
        WireClient(gateway.address, "talker", headers=signed(keys[0])) as talks,
        WireClient(gateway.address, "listener", headers=signed(keys[1])) as listens,
        WireClient(gateway.address, "eavesdropper", headers=signed(keys[2])) as eavesdrops,
    ):
        talker, listener = (LiteConsumer(each, "talkers", topic) for each in (talks, listens))
        await talker.send("one", b"1", b"2")
        await talker.subscribe("one")
        (first,) = await talker.receive_all(1)
        assert (await talker.acknowledge(handle(first))).status.code == Code.OK
        before = await cluster.admin.progress(topic=stored)
        for action in (d.PARTIAL_ADD, d.COMPLETE_ADD, d.PARTIAL_REMOVE, d.COMPLETE_REMOVE):
            answer = await LiteConsumer(eavesdrops, "talkers", topic).sync("one", action=action)
            assert answer.status.code == Code.UNAUTHORIZED
        answer = await listener.sync("one", offset_option=from_first)
        assert answer.status.code == Code.UNAUTHORIZED
        assert await cluster.admin.progress(topic=stored) == before
        assert await listener.receive(wait=0) == [], "nor is it subscribed"
        # It may continue to read at the group's progress.
        await listener.subscribe("one")
        await talker.subscribe("one", action=d.PARTIAL_REMOVE)
        (second,) = await listener.receive_all(1)
        assert second.body == b"2"
        assert (await listener.acknowledge(handle(second))).status.code == Code.OK
        await talker.subscribe("one", offset_option=from_first)
        await listener.subscribe("one", action=d.PARTIAL_REMOVE)
        (again,) = await talker.receive_all(1)
        assert again.body == b"1"
