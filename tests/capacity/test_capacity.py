"""`make capacity`: it measures, names the saturated service, and its model is consistent."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bench.capacity import model, page
from bench.capacity.__main__ import measured
from bench.capacity.bench_cluster import LOAD, Meter
from bench.capacity.model import Costs, Demand, Shape
from bench.capacity.point import (
    QUICK,
    Part,
    Point,
    ProcessUse,
    Use,
    percentiles_ms,
    read_parts,
    slope,
)
from bench.tables import BLOCK, MISSING
from rockoon.local import LocalCluster

TINY = replace(QUICK, seconds=0.1, groups=(3, 6, 9), body_bytes=(100, 5 << 20))
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "capacity.md"
ONE_MIB = 1 << 20


def use(cores: dict[str, float], *, machine: float = 1.0, disk: float = 0.0) -> Use:
    """Ten seconds of two cores."""
    processes = {name: ProcessUse(busy * 10, ONE_MIB, 0) for name, busy in cores.items()}
    return Use(10.0, processes, machine, 2, disk)


@pytest.mark.parametrize(
    ("found", "saturated"),
    [
        (use({"broker-a": 0.95, LOAD: 0.6}, machine=1.6), "broker-a"),
        (use({"broker-a": 0.5, LOAD: 1.0}, machine=1.6), LOAD),
        (use({"broker-a": 0.92, LOAD: 0.98}, machine=2.0), "broker-a and load"),
        (use({"broker-a": 0.5, LOAD: 0.6}, machine=1.95), "all cores"),
        (use({"broker-a": 0.5, LOAD: 0.2}, machine=0.8, disk=0.97), "disk"),
        (use({"broker-a": 0.5, LOAD: 0.2}, machine=0.8, disk=0.3), "nothing"),
    ],
)
def test_what_was_saturated_is_told_apart(found: Use, saturated: str) -> None:
    assert found.saturated == saturated


def test_other_work_on_the_machine_is_what_is_nobody_s() -> None:
    assert use({"broker-a": 0.5, LOAD: 0.25}, machine=1.5).others_cores == pytest.approx(0.75)


def test_a_percentile_is_a_sample_and_a_slope_is_the_straight_line() -> None:
    samples = [number / 1000 for number in range(1, 1001)]
    assert percentiles_ms(samples) == pytest.approx({"p50": 501, "p99": 991, "p99.9": 1000})
    assert slope([(1, 5), (2, 8), (3, 11)]) == pytest.approx(3)
    with pytest.raises(ValueError, match="two different points"):
        slope([(4, 1)])


def with_figure(values: dict[float, float]) -> list[Point]:
    return [Point("m, by queues", at, figures={"bytes": value}) for at, value in values.items()]


def test_what_grows_evenly_is_foretold_and_what_does_not_is_off_by_what_it_says() -> None:
    told = model.foretold(with_figure({10: 120, 20: 220, 50: 520, 200: 2020}), "bytes")
    assert told is not None
    assert (told.factor, told.predicted, told.error) == pytest.approx((4, 2020, 0))
    squared = model.foretold(with_figure({1: 1, 2: 4, 10: 100}), "bytes")
    assert squared is not None
    assert (squared.predicted, squared.error) == pytest.approx((28, -0.72))
    assert model.foretold(with_figure({1: 1, 2: 2}), "bytes") is None


NOTHING = Costs(**{field.name: 0.0 for field in fields(Costs)})
DEMAND = Demand(
    queues=80_000,
    groups=1_000,
    queues_per_topic=8,
    readers_per_queue=2,
    members_per_group=3,
    producers=200,
    messages_per_second=30_000.0,
    body_bytes=100,
    batch_messages=10.0,
    route_changes_per_second=0.5,
    written_share=0.25,
)
SHAPE = Shape(4, 2, 2)


def load_of(costs: Costs, service: str, resource: str) -> model.Load:
    found = model.loads(costs, SHAPE, DEMAND)
    (load,) = [load for load in found if (load.service, load.resource) == (service, resource)]
    return load


def test_the_arithmetic_of_a_broker() -> None:
    # Of 4: 7,500 messages/s in 750 batches/s, each read twice; 20,000 queues, 40,000 of them read,
    # 10,000 by pulls that wait 15 s, the others by pulls that are repeated every second.
    costs = replace(
        NOTHING,
        append_message=10e-6,
        append_byte=0.1e-6,
        append_batch=100e-6,
        pull_message=5e-6,
        pull_empty=60e-6,
        queue_bytes=1000.0,
        waiting_pull_bytes=10.0,
        queue_start_seconds=100e-6,
        queue_point_seconds=1e-3,
        broker_topic_bytes=7.0,
        broker_bytes=5.0,
    )
    cpu = 7500 * 20e-6 + 750 * 100e-6 + 15_000 * 5e-6 + (1500 + 10_000 / 15 + 30_000) * 60e-6
    assert load_of(costs, "broker", "CPU").needed == pytest.approx(cpu)
    assert load_of(costs, "broker", "waiting pulls").needed == 40_000
    memory = 5 + 20_000 * 1000 + 10_000 * 10 + 10_000 * 7
    assert load_of(costs, "broker", "memory").needed == pytest.approx(memory)
    assert load_of(costs, "broker", "start after a kill").needed == pytest.approx(2.0)
    assert load_of(costs, "broker", "recovery point").needed == pytest.approx(5.0)


def test_the_arithmetic_of_the_offset_service() -> None:
    # Of 2: 1,500 members, 500 groups, 80,000 queues read; progress moves on 75,000 of them in 5 s.
    costs = replace(
        NOTHING,
        heartbeat=100e-6,
        heartbeat_member=10e-6,
        commit_call=200e-6,
        commit_entry=3e-6,
        offset_bytes=9.0,
        group_bytes=2000.0,
        group_start_seconds=1e-3,
        snapshot_topic_bytes=50.0,
        snapshot_group_bytes=20.0,
    )
    beats, commits, entries = 1500 / model.HEARTBEAT_SECONDS, 1500 / 5, 75_000 / 5
    cpu = beats * 120e-6 + commits * 200e-6 + entries * 3e-6
    assert load_of(costs, "offset", "CPU").needed == pytest.approx(cpu)
    assert load_of(costs, "offset", "streams").needed == 1500
    assert load_of(costs, "offset", "memory").needed == pytest.approx(9 + 10_000 * 2000)
    assert load_of(costs, "offset", "start after a kill").needed == pytest.approx(10.0)
    assert load_of(costs, "offset", "route snapshot").needed == 10_000 * 50 + 1000 * 20


def test_the_arithmetic_of_a_nameserver_and_etcd() -> None:
    # 3,200 clients for 2 nameservers, and all 6 nodes at each.
    costs = replace(
        NOTHING,
        watcher_second=2e-6,
        watcher_change=100e-6,
        watcher_bytes=30.0,
        nameserver_topic_bytes=4.0,
        nameserver_group_bytes=6.0,
        etcd_topic_bytes=250.0,
        etcd_group_bytes=200.0,
    )
    assert load_of(costs, "nameserver", "streams").needed == 1606
    assert load_of(costs, "nameserver", "CPU").needed == pytest.approx(1606 * 52e-6)
    memory = 1606 * 30 + 10_000 * 4 + 1000 * 6
    assert load_of(costs, "nameserver", "memory").needed == pytest.approx(memory)
    assert load_of(costs, "etcd", "database").needed == 10_000 * 250 + 1000 * 200


def test_what_needs_the_largest_share_breaks_first_whatever_its_unit() -> None:
    costs = replace(NOTHING, append_message=1e-3, queue_start_seconds=1e-3)
    found = model.loads(costs, SHAPE, DEMAND)
    assert [load.share for load in found] == sorted((load.share for load in found), reverse=True)
    assert (found[0].service, found[0].resource) == ("broker", "CPU")
    assert found[0].share == pytest.approx(7.5)


async def test_a_part_that_fails_keeps_what_it_measured_and_says_why(tmp_path: Path) -> None:
    part = await measured("sizes", TINY, tmp_path / "cluster", "sizes", tmp_path)
    # Bodies of five MiB are refused.
    assert "BodyTooLarge" in part.failure
    point, pulled = part.points
    assert (point.measure, point.at) == ("append, by body bytes", 100)
    assert (pulled.measure, pulled.at) == ("pull, by body bytes", 100)
    assert 0 < point.latency_ms["p50"] <= point.latency_ms["p99"] <= point.latency_ms["p99.9"]
    assert 0 < point.cpu_per_operation("broker-a") < 1
    assert 0 < pulled.cpu_per_operation(LOAD) < 1
    assert read_parts(tmp_path, ["sizes", "queues"]) == {"sizes": part}


async def test_groups_are_made_kept_and_found_again(tmp_path: Path) -> None:
    part = await measured("groups", TINY, tmp_path / "cluster", "groups", tmp_path)
    assert part.failure == ""
    commits = part.of("commit 1 queue, by groups")
    assert [point.at for point in commits] == [3, 6, 9]
    assert all(point.rate > 0 and point.figures["resolve_offset_cpu_us"] > 0 for point in commits)
    assert part.points[-1].figures["restart_seconds"] > 0
    told = page.blocks({"groups": part})
    assert "| 9 |" in told["groups"]
    assert "commit, eight queues" in told["saturation"]
    assert "of 'queues' is missing" in told["model"]


def test_a_page_is_filled_between_its_marks_alone(tmp_path: Path) -> None:
    document = tmp_path / "capacity.md"
    document.write_text("Before.\n<!-- begin rates -->\nold\n<!-- end rates -->\nAfter.\n")
    point = Point("send, by offered rate", 10, 9.5, percentiles_ms([0.004]), use({"load": 0.1}))
    whole = replace(point, use=use(dict.fromkeys(page.PROCESSES, 0.1)))
    for _ in range(2):
        page.write(document, {"rates": Part("rates", [whole], 1.0, "abc", "a machine", "run")})
        lines = document.read_text().splitlines()
        assert lines[:2] == ["Before.", "<!-- begin rates -->"]
        assert lines[-2:] == ["<!-- end rates -->", "After."]
        assert "| 10 | 9.5 | 4.0 | 4.0 | 4.0 |" in document.read_text()
    page.write(document, {})
    assert document.read_text().splitlines()[2] == MISSING
    assert (tmp_path / "pictures" / "capacity-latency.svg").read_text().startswith("<svg")


def test_the_page_s_prose_has_no_figure_that_could_grow_old() -> None:
    prose = BLOCK.sub("", DOCUMENT.read_text())
    unit = r"(ms|µs|MiB|KiB|MB|cores|messages|/s)\b"
    assert not re.findall(rf"\d[\d,.]* ?{unit}", prose)
    blocks = set(re.findall(r"<!-- begin (\S+) -->", DOCUMENT.read_text()))
    made = {*page.TABLES, "runs", "saturation", "extrapolation", "costs", "model", "arithmetic"}
    assert blocks == made


def test_a_meter_sees_what_a_process_burns(tmp_path: Path) -> None:
    meter = Meter(LocalCluster(), tmp_path)
    meter.start()
    burnt = sum(number * number for number in range(300_000))
    found = meter.stop()
    assert burnt > 0
    assert 0 < found.processes[LOAD].cpu_seconds <= found.seconds * 1.5
    assert found.processes[LOAD].resident_bytes > ONE_MIB
