"""`make bench-gateway`: its arithmetic, its clients, and its page."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

import rockoon
from bench.compare.programs import Interrupts, MeasureFailed
from bench.gateway.clients import Turns, by_protocol, by_sdk, measured
from bench.gateway.comparison import Comparison, each
from bench.gateway.servers import GatewaySide
from bench.tables import NONE, P50, P99, Figures, between, p50_p99
from gateway.gateways import RunningGateway
from rockoon.errors import TopicNotFound
from rockoon.local.cluster import LocalCluster
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "gateway-bench.md"


def test_a_cell_is_the_range_of_the_rounds_and_a_sum_says_what_it_is_of() -> None:
    figures = Figures(["ours", "theirs"])
    for gateway in (100.0, 140.0):
        figures.add("ours", "send", {"calls/s": gateway * 10})
        figures.add_sum("ours", "send", "CPU", {"gateway": gateway, "broker": 60.0, "etcd": 0.5})
    figures.add("theirs", "send", {"calls/s": 500.0})
    figures.add_sum("theirs", "send", "CPU", {"the JVM": 300.0})
    assert figures.table().splitlines() == [
        "| measure | unit | ours | theirs |",
        "|---|---|---|---|",
        f"| send | calls/s | 1,000 {NONE} 1,400 | 500 |",
        f"| | CPU | 160 {NONE} 200 | 300 |",
        f"| | of it | gateway 120, broker 60.0 | {NONE} |",
    ]


def test_percentiles_are_milliseconds_of_the_ordered_waits() -> None:
    assert p50_p99([number / 1e3 for number in range(999, -1, -1)]) == {P50: 500.0, P99: 990.0}
    assert p50_p99([0.004]) == {P50: 4.0, P99: 4.0}


def test_cpu_of_a_call_is_microseconds() -> None:
    assert each({"gateway": 0.5, "broker": 0.0}, 1000) == {"gateway": 500.0, "broker": 0.0}


async def test_a_measure_counts_messages_and_ignores_waits_without_one() -> None:
    made = dict.fromkeys(("empty", "full"), 0)

    async def turn(kind: str, messages: int) -> int:
        await asyncio.sleep(0)
        made[kind] += messages
        return messages

    done = await measured([partial(turn, "empty", 0), partial(turn, "full", 3)], 0.05, {})
    assert done.before > 0
    assert done.count == 3 * len(done.waits) > 0
    assert done.before + done.count == made["full"]
    assert done.seconds >= 0.05
    assert done.own_seconds > 0
    assert 0 < sum(done.waits) <= done.seconds


class FailingSide(GatewaySide):
    """A side whose clients fail, as tasks of a group fail."""

    name = "failing"

    def start(self, folder: Path, *, sync: bool) -> None:  # noqa: ARG002 - it starts nothing
        failures = [MeasureFailed("a send was refused"), TopicNotFound(topic="orders")]
        raise ExceptionGroup("tasks", failures)


def test_a_client_that_fails_is_reported_and_does_not_end_the_run(tmp_path: Path) -> None:
    comparison = Comparison([FailingSide()], tmp_path, 1, 0.1, 1, Interrupts())
    comparison.run(["sends"])
    assert "\n- failing, flush = sync: a send was refused" in comparison.text()


@pytest.mark.parametrize("kind", ["protocol", "SDK"])
async def test_its_clients_send_receive_and_acknowledge(
    kind: str, gateway: RunningGateway, local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    opened: Turns = {
        "protocol": partial(by_protocol, gateway.address),
        "SDK": partial(by_sdk, local_cluster.nameservers),
    }[kind]
    topic = f"measured-by-{kind}"
    await cluster.admin.create_topic(topic)
    start = StartPolicy(consume_from=CONSUME_FROM_FIRST)
    await cluster.admin.create_group(GroupConfig(name=topic, start_policy=start))
    async with opened(topic, 2, 0) as sends:
        assert [await send() for send in sends for _ in range(2)] == [1] * 4
    async with opened(topic, 2, 1) as receives:
        received = 0
        while received < 4:
            received += sum([await receive() for receive in receives])
    assert received == 4
    lag = await cluster.admin.lag(topic)
    assert lag.complete
    assert lag.total_lag == 0


def test_its_page_has_the_place_for_it() -> None:
    assert between(PAGE)
