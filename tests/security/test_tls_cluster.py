"""A whole cluster in which both sides of every connection show a certificate."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import rockoon
from rockoon.errors import BrokerUnavailable, WrongIdentity
from rockoon.local import LocalClusterError
from rockoon.local.authority import Authority
from rockoon.net.tls import Tls
from rockoon.testing.disposable import DisposableCluster
from rockoon_proto.v1.broker_pb2 import ReadLogRequest
from rockoon_proto.v1.nameserver_pb2 import UnregisterNodeRequest
from rockoon_spark.broker_calls import LogClient
from support.waiting import DEADLINE_SECONDS

MESSAGES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(tls="mutual") as cluster:
        yield cluster


def environment_for(tls: Tls) -> dict[str, str]:
    return {
        "ROCKOON_TLS_CA": str(tls.ca),
        "ROCKOON_TLS_CERTIFICATE": str(tls.certificate),
        "ROCKOON_TLS_KEY": str(tls.key),
    }


async def consume(connection: rockoon.Cluster, topic: str, group: str, count: int) -> list[bytes]:
    arrived: list[bytes] = []
    complete = asyncio.Event()

    async def handle(message: rockoon.Message) -> None:
        arrived.append(message.body)
        if len(arrived) >= count:
            complete.set()

    consumer = connection.push_consumer(
        group, {topic: "*"}, handle, consume_from=rockoon.ConsumeFrom.FIRST
    )
    async with consumer, asyncio.timeout(DEADLINE_SECONDS):
        await complete.wait()
    return sorted(arrived)


async def test_messages_go_round_and_every_service_reaches_every_other(
    cluster: DisposableCluster,
) -> None:
    topic = cluster.new_topic("encrypted")
    async with cluster.connect() as connection:
        producer = connection.producer()
        for body in MESSAGES:
            await producer.send(topic, body)
        assert await consume(connection, topic, "readers", len(MESSAGES)) == sorted(MESSAGES)
        # The offset service calls the broker for it.
        lag = await connection.admin.lag("readers", topic)
        assert lag.complete
        assert (await connection.admin.status()).healthy


def test_the_command_line_takes_options_or_the_environment(cluster: DisposableCluster) -> None:
    assert cluster.tls is not None
    rockoon_command = [sys.executable, "-m", "rockoon.cli"]
    status = ["status", f"--nameservers={cluster.nameservers[0]}"]
    options = [
        f"--tls-ca={cluster.tls.ca}",
        f"--tls-certificate={cluster.tls.certificate}",
        f"--tls-key={cluster.tls.key}",
    ]
    with_options = subprocess.run([*rockoon_command, *options, *status], capture_output=True)
    assert with_options.returncode == 0, with_options.stderr
    by_environment = subprocess.run(
        [*rockoon_command, *status],
        capture_output=True,
        env=os.environ | environment_for(cluster.tls),
    )
    assert by_environment.returncode == 0, by_environment.stderr
    plain = subprocess.run([*rockoon_command, *status], capture_output=True, text=True)
    assert plain.returncode == 1
    assert "as a server with TLS does, and this client does not use TLS" in plain.stderr


def test_sparks_reading_of_the_log_goes_by_the_environment(
    cluster: DisposableCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.tls is not None
    topic = cluster.new_topic("log")
    with cluster.connect() as connection:
        connection.send(topic, b"in the log")
    for name, value in environment_for(cluster.tls).items():
        monkeypatch.setenv(name, value)
    with LogClient("broker-a", cluster.node("broker-a").address, 5.0) as client:
        request = ReadLogRequest(at_record=True, end_offset=1 << 40)
        assert b"in the log" in client.read(request).frames


async def test_a_certificate_renewed_under_a_broker_disturbs_no_one(
    cluster: DisposableCluster,
) -> None:
    topic = cluster.new_topic("renewed")
    authority = Authority(cluster.directory / "tls")
    log = cluster.node("broker-a").log_path
    async with cluster.connect() as connection:
        producer = connection.producer()
        await producer.send(topic, b"before")
        authority.issue("broker-a", hosts=("broker-a", "127.0.0.1"))
        async with cluster.connect() as another:
            await another.producer().send(topic, b"through a new connection")
        await producer.send(topic, b"after")
    assert "TLS: renewed" in log.read_text()
    assert "PRIVATE KEY" not in log.read_text()


async def test_a_client_does_not_take_a_broker_out_of_the_routes(
    cluster: DisposableCluster,
) -> None:
    async with cluster.connect() as connection:
        (broker,) = [each for each in connection.routes.nodes if each.name == "broker-a"]
        request = UnregisterNodeRequest(
            kind=broker.kind, name=broker.name, store_id=broker.store_id
        )
        with pytest.raises(WrongIdentity):
            await connection.call_nameserver("UnregisterNode", request)
        assert "broker-a" in {node.name for node in connection.routes.nodes}


async def test_a_broker_whose_certificate_lacks_its_address_is_told_by_its_clients() -> None:
    with DisposableCluster(tls="mutual") as cluster:
        own = Authority(cluster.directory / "tls").issue(
            "broker-b", hosts=("elsewhere",), file_name="of-another-host"
        )
        cluster.add_broker("broker-b", tls_certificate=own.certificate, tls_key=own.key)
        async with cluster.connect() as connection:
            status = await connection.admin.status()
    errors = {node.name: node.error for node in status.brokers}
    assert errors["broker-a"] is None
    assert isinstance(errors["broker-b"], BrokerUnavailable)
    assert "does not have the host in this address" in str(errors["broker-b"])


def test_a_broker_does_not_register_under_a_name_that_its_certificate_does_not_bear() -> None:
    with DisposableCluster(tls="mutual") as cluster:
        assert cluster.tls is not None
        with pytest.raises(LocalClusterError) as refused:
            cluster.add_broker(
                "intruder", tls_certificate=cluster.tls.certificate, tls_key=cluster.tls.key
            )
        told = str(refused.value)
        assert "exit status 78" in told
        assert "the certificate shown is that of client" in told
        assert "common name or DNS name 'intruder'" in told
