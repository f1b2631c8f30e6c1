"""`rockoon doctor`: a line for each check, and the remedy if one fails."""

import asyncio
import json
import socket
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rockoon.admin.cluster_status import clock_ahead_ms
from rockoon.admin.descriptions import ClusterStatus, NodeStatus
from rockoon.cli.doctor import FAIL, OK, WARN, Check, certificate_checks, cluster_checks
from rockoon.local.authority import Authority
from rockoon_core.channels import Tls
from rockoon_core.clock import wall_clock_ms
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply
from rockoon_proto.v1.nameserver_pb2 import DescribeClusterReply, Node


def checked(ran: Any) -> dict[str, dict[str, str]]:
    """The checks of a run with --json, by their subjects."""
    checks = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.status == any(each["state"] == FAIL for each in checks)
    assert all(each["advice"] for each in checks if each["state"] != OK)
    return {each["subject"]: each for each in checks}


# Checks of the test machine, whose results are unknown.
def of_this_machine(subject: str) -> bool:
    return subject in ("clock of this machine", "open files") or subject.startswith("disk of")


def test_a_healthy_cluster_and_one_with_a_dead_broker(rockoon: Any, cluster: Any) -> None:
    found = checked(rockoon("doctor", "--json", status=None))
    bad = {
        name: each
        for name, each in found.items()
        if each["state"] != OK and not of_this_machine(name)
    }
    assert not bad
    for subject in (
        "packages",
        "versions",
        "etcd at nameserver nameserver-a",
        "broker broker-a",
        "broker broker-b",
        "offset service offset",
        "clock of nameserver-a",
        "clock of broker-b",
        "clock of offset",
        "disk of broker broker-a",
        f"nameserver {cluster.nameservers[0]}",
    ):
        assert subject in found
    cluster.kill("broker-b")
    try:
        ran = rockoon("doctor", status=1)
        lines = [line for line in ran.out.splitlines() if " broker broker-b: " in line]
        assert lines[0].startswith("FAIL  broker broker-b: ")
        assert lines[0].endswith("; start it, and read its log")
    finally:
        cluster.start("broker-b")


def test_without_a_cluster_the_address_is_the_fault(rockoon: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = checked(rockoon("doctor", "--json", "--nameservers", address, status=1))
    assert "no connection to 127.0.0.1" in found[f"nameserver {address}"]["finding"]
    assert found["cluster"]["state"] == FAIL
    found = checked(rockoon("doctor", "--json", "--nameservers", "no.invalid:9876", status=1))
    assert "the address is not known" in found["nameserver no.invalid:9876"]["finding"]


def test_a_service_of_this_machine_is_checked_by_its_file(
    rockoon: Any, cluster: Any, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("broker-a", valid=timedelta(days=10))
    file = tmp_path / "broker.toml"
    file.write_text(
        f'name = "broker-x"\nlisten = "{cluster.node("broker-a").address}"\n'
        f'nameservers = "{cluster.nameservers[0]}"\nstore_path = "{tmp_path}/new/store"\n'
        f'tls = "on"\ntls_certificate = "{issued.certificate}"\ntls_key = "{issued.key}"\n'
    )
    option = ("doctor", "--json", "--settings", f"broker={file}")
    found = checked(rockoon(*option, status=None))
    assert found[f"settings of broker ({file})"]["state"] == OK
    port = f"port of broker ({cluster.node('broker-a').address})"
    assert (found[port]["state"], found[port]["finding"]) == (OK, "in use by a running process")
    assert f"disk of broker ({tmp_path}/new/store)" in found
    certificate = f"certificate of broker ({issued.certificate})"
    assert found[certificate]["state"] == WARN
    assert found[certificate]["finding"].endswith("9 days")
    found = checked(rockoon(*option, "--certificate-days", "5", status=None))
    assert found[certificate]["state"] == OK

    authority.issue("broker-a", valid=timedelta(days=-1))
    file.write_text(file.read_text().replace(cluster.node("broker-a").address, "192.0.2.7:1"))
    found = checked(rockoon(*option, status=1))
    assert "expired" in found[certificate]["finding"]
    assert found["port of broker (192.0.2.7:1)"]["state"] == FAIL

    file.write_text('stor_path = "/x"\n')
    refused = checked(rockoon(*option, status=1))[f"settings of broker ({file})"]
    assert "did you mean 'store_path'?" in refused["finding"]


def test_the_settings_option_names_a_service_and_a_file(rockoon: Any) -> None:
    assert "expected SERVICE=FILE" in rockoon.fails("doctor", "--settings", "/etc/broker.toml")
    assert "expected SERVICE=FILE" in rockoon.fails("doctor", "--settings", "proxy=/etc/p.toml")


@pytest.mark.parametrize(
    ("days", "state", "finding"),
    [(365, OK, "valid until"), (10, WARN, "9 days"), (-1, FAIL, "certificate has expired")],
)
async def test_a_certificate_that_ends_soon_is_seen_from_outside(
    days: int, state: str, finding: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("server", valid=timedelta(days=days))
    client = authority.issue("client")
    # Services refuse an expired certificate at their start: this server shows it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    async with await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tls = Tls(ca=authority.ca, certificate=client.certificate, key=client.key)
        own, seen = await asyncio.to_thread(lambda: [*certificate_checks(tls, {"a": address}, 30)])
        strange = Tls(ca=Authority(tmp_path / "stranger").ca)
        refused = await asyncio.to_thread(
            lambda: [*certificate_checks(strange, {"a": address}, 30)]
        )
    assert (own.state, own.subject) == (OK, "client certificate")
    assert (seen.state, seen.subject) == (state, "certificate of a")
    assert finding in seen.finding
    assert [each.state for each in refused] == [FAIL]


def state_of(
    ahead_ms: int | None = 0, version: str = "0.1.0", used: float = 0.1, **shared: str
) -> dict[str, Check]:
    """The checks of a cluster with one unusual broker."""
    brokers = [
        NodeStatus(
            name,
            f"{name}:1",
            node=Node(name=name, version=version, shared_settings=shared if name == "b" else {}),
            broker=DescribeBrokerReply(writable=True, disk_used_ratio=used),
            clock_ahead_ms=ahead_ms,
        )
        for name in ("a", "b")
    ]
    for each in brokers[:1]:
        assert each.node is not None
        each.node.shared_settings.update(dict.fromkeys(shared, "1"))
    answer = DescribeClusterReply(etcd_reachable=True, version="0.1.0")
    status = ClusterStatus("rockoon", [NodeStatus("n", "n:1", cluster=answer)], brokers, [])
    return {each.subject: each for each in cluster_checks(status)}


def test_clocks_versions_disks_and_settings_that_differ() -> None:
    assert state_of()["clock of b"].state == OK
    assert state_of(ahead_ms=None)["clock of b"].state == WARN
    assert str(state_of(ahead_ms=-1_500)["clock of b"]).startswith(
        "WARN  clock of b: 1.5 s behind the clock of this machine; "
    )
    assert state_of(ahead_ms=90_000)["clock of b"].state == FAIL
    assert state_of()["versions"].state == OK
    mixed = state_of(version="0.2.0")["versions"]
    assert (mixed.state, "0.2.0 (a, b)" in mixed.finding) == (WARN, True)
    assert [state_of(used=each)["disk of broker b"].state for each in (0.5, 0.8, 0.95)] == [
        OK,
        WARN,
        FAIL,
    ]
    assert "settings of brokers" not in state_of(flush="1")
    assert state_of(flush="2")["settings of brokers"].finding == "flush differ"
    assert state_of()["offset service"].state == FAIL


def test_the_difference_of_clocks_counts_only_as_far_as_the_call_proves_it() -> None:
    now_ms = wall_clock_ms()
    assert clock_ahead_ms(now_ms, 0) is None
    assert clock_ahead_ms(now_ms - 2_000, now_ms - 1_000) == 0
    assert clock_ahead_ms(now_ms - 2_000, now_ms - 5_000) == -3_000
    ahead_ms = clock_ahead_ms(now_ms - 2_000, now_ms + 60_000)
    assert ahead_ms is not None
    assert 59_000 < ahead_ms <= 60_000
