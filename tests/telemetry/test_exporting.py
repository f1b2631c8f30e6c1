"""Snapshots, the metrics page and log lines, without a cluster."""

import asyncio
import io
import json
import logging
import socket
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.parser import text_string_to_metric_families
from telemetry.call_counts import counted_calls

from rockoon_broker.settings import BrokerSettings
from rockoon_broker.traffic import (
    OTHERS,
    SERIES_MAX,
    SIZE_BOUNDS,
    SIZES_WAITING_MAX,
    Flow,
    Series,
    SyncWaits,
)
from rockoon_runtime.error_guard import Call, CallTimes, method_name
from rockoon_runtime.process import node_name
from rockoon_runtime.telemetry.metrics import (
    Measurement,
    Metric,
    MetricKind,
    Snapshots,
    Times,
    counter,
    gauge,
    histogram,
)
from rockoon_runtime.telemetry.otlp import resource_of
from rockoon_runtime.telemetry.prometheus import PrometheusPage, names_on_page
from rockoon_runtime.telemetry.telemetry import JsonLines, set_up_logging, span_fields
from support.waiting import DEADLINE_SECONDS

EATEN = counter("apples_eaten_total", "Apples eaten", "who")
LEFT = gauge("apples_left", "Apples left", unit="pieces")
WEIGHT = histogram("apples_weight", "Their weight", "who", bounds=(100, 200), unit="grams")
TABLE = (EATEN, LEFT, WEIGHT)


def read(page: PrometheusPage) -> dict[str, float]:
    with urllib.request.urlopen(
        f"http://{page.address}/metrics", timeout=DEADLINE_SECONDS
    ) as answer:
        text = answer.read().decode()
    return {
        f"{sample.name} {sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_page_is_measured_on_the_loop_once_for_each_look() -> None:
    looks: list[asyncio.AbstractEventLoop] = []

    async def measure() -> Iterable[Measurement]:
        looks.append(asyncio.get_running_loop())
        return [EATEN.at(3, "Ann"), EATEN.at(1, "Bob"), LEFT.at(False)]

    snapshots = Snapshots(TABLE, measure, {"tree": "old"})
    with PrometheusPage("127.0.0.1:0", snapshots) as page:
        assert looks == [], "nobody has looked"
        values = await asyncio.to_thread(read, page)
        again = await asyncio.to_thread(read, page)
        assert values["apples_eaten_total ['Ann', 'old']"] == 3
        assert values["apples_eaten_total ['Bob', 'old']"] == 1
        assert values["apples_left ['old']"] == values["apples_left_pieces ['old']"] == 0
        assert again["apples_eaten_total ['Ann', 'old']"] == 3
        assert looks == [asyncio.get_running_loop()] * 2
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(read, page)


async def test_a_measurement_that_fails_leaves_a_gap_and_no_wrong_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def measure() -> Iterable[Measurement]:
        raise RuntimeError("the tree is gone")

    snapshots = Snapshots(TABLE, measure, {})
    assert await asyncio.to_thread(snapshots.collect) == {}
    assert "the tree is gone" in caplog.text


async def test_an_exporter_that_asks_metric_by_metric_gets_one_snapshot() -> None:
    looks = 0

    async def measure() -> Iterable[Measurement]:
        nonlocal looks
        looks += 1
        return [LEFT.at(5)]

    snapshots = Snapshots(TABLE, measure, {})
    first = await asyncio.to_thread(snapshots.recent)
    second = await asyncio.to_thread(snapshots.recent)
    assert looks == 1
    assert first is second
    assert [each.value for each in first[LEFT]] == [5]
    assert first[EATEN] == []


def test_metrics_are_named_as_rocketmqs_documents_and_as_its_page_have_them() -> None:
    lag = gauge("rocketmq_consumer_lag_latency", "Lag", unit="milliseconds")
    behind = gauge("rocketmq_storage_flush_behind_bytes", "Behind", unit="bytes")
    assert names_on_page(lag) == (lag.name, "rocketmq_consumer_lag_latency_milliseconds")
    assert names_on_page(behind) == (behind.name,)
    with pytest.raises(ValueError, match="exactly counters end with _total"):
        Metric("apples", MetricKind.COUNTER, "Apples")
    with pytest.raises(ValueError, match="labels"):
        EATEN.at(1)


async def test_a_histogram_on_the_page_has_buckets_that_count_those_below_them_too() -> None:
    async def measure() -> Iterable[Measurement]:
        return [WEIGHT.spread([5, 2, 1], 900, "Ann")]

    with PrometheusPage("127.0.0.1:0", Snapshots(TABLE, measure, {})) as page:
        values = await asyncio.to_thread(read, page)
    for name in ("apples_weight", "apples_weight_grams"):
        buckets = [values[f"{name}_bucket {sorted((le, 'Ann'))}"] for le in ("100.0", "200.0")]
        assert buckets == [5, 7]
        assert values[f"{name}_bucket ['+Inf', 'Ann']"] == values[f"{name}_count ['Ann']"] == 8
        assert values[f"{name}_sum ['Ann']"] == 900


def test_a_histogram_must_be_one() -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        histogram("apples", "Apples", bounds=(2, 1))
    with pytest.raises(ValueError, match="exactly histograms have bounds"):
        Metric("apples", MetricKind.HISTOGRAM, "Apples")
    with pytest.raises(ValueError, match="more than one number"):
        WEIGHT.at(3, "Ann")
    with pytest.raises(ValueError, match="has 3 buckets, not 2"):
        WEIGHT.spread([1, 2], 3, "Ann")


def test_what_is_as_large_as_a_bound_belongs_below_it() -> None:
    times = Times((1, 10))
    for seconds in (0.0005, 0.001, 0.0011, 0.010, 5.0):
        times.add(seconds)
    assert times.counts == [2, 2, 1]
    assert times.total_ms == pytest.approx(5012.6)
    flow = Flow()
    flow.add("T", "normal", 4, 7 << 20, packed(10, 1024, 1025, 5 << 20))
    assert sizes_of(flow) == {"T": [2, 1, 0, 0, 0, 0, 1]}


def packed(*sizes: int) -> bytes:
    return np.array(sizes, "<u4").tobytes()


def sizes_of(flow: Flow) -> dict[str, list[int]]:
    return {series.topic: count.by_size for series, count in flow}


def test_sizes_of_many_batches_are_counted_together_each_for_its_topic_and_none_twice() -> None:
    flow = Flow()
    for number in range(1, 2 * SIZES_WAITING_MAX + 4):
        flow.add("T", "normal", 3, 6000, packed(*[2000] * 3))
        flow.add("U", "normal", 1, 10, packed(10))
        if number in (SIZES_WAITING_MAX // 2, SIZES_WAITING_MAX // 2 + 1):
            assert sizes_of(flow) == {"T": [0, 3 * number, *[0] * 5], "U": [number, *[0] * 6]}
    assert sizes_of(flow) == {"T": [0, 3 * number, *[0] * 5], "U": [number, *[0] * 6]}


def test_counting_a_batch_is_the_same_work_for_two_messages_and_for_ten_thousand() -> None:
    def calls(messages: int, size: int = 1500, bucket: int = 1) -> Counter[str]:
        flow, sizes = Flow(), packed(*[size] * messages)
        with counted_calls() as counts:
            for _ in range(SIZES_WAITING_MAX):
                flow.add("T", "normal", messages, size * messages, sizes)
        assert sizes_of(flow)["T"][bucket] == SIZES_WAITING_MAX * messages
        return counts

    assert calls(2) == calls(10_000)
    assert calls(2)["searchsorted"] + calls(2)["ndarray.searchsorted"] <= 2, "not once per batch"
    assert not calls(1)["ndarray.searchsorted"], "one message alone waits for no others"
    assert not calls(3, 1024 // 3, 0)["ndarray.searchsorted"], "together they are small"


def test_one_message_alone_is_counted_where_it_is_with_another() -> None:
    for bound in SIZE_BOUNDS:
        for size in (1, bound - 1, bound, bound + 1, (1 << 32) - 1):
            flow = Flow()
            flow.add("alone", "normal", 1, size, packed(size))
            flow.add("two", "normal", 2, 2 * size, packed(size, size))
            flow.add("small", "normal", 2, size + 1, packed(size, 1))
            sizes = sizes_of(flow)
            assert [2 * count for count in sizes["alone"]] == sizes["two"]
            alone = sizes["alone"]
            assert [alone[0] + 1, *alone[1:]] == sizes["small"]


def test_sizes_that_wait_are_few_however_many_topics_there_are() -> None:
    flow = Flow()
    batches = [packed(number, 300, 300) for number in range(10 * SIZES_WAITING_MAX - 1)]
    before = sum(map(sys.getrefcount, batches))
    for number, lengths in enumerate(batches):
        flow.add(f"T{number}", "normal", 3, 900, lengths)
    assert 0 < sum(map(sys.getrefcount, batches)) - before <= SIZES_WAITING_MAX


def test_calls_are_told_by_method_answer_and_whether_they_may_wait() -> None:
    calls = CallTimes()
    calls.record(Call("pull", "success", may_wait=True), 0.002)
    calls.record(Call("pull", "success", may_wait=True), 20)
    calls.record(Call("pull", "queue_not_found", may_wait=False), 0.002)
    waited, refused = calls.measurements()
    assert waited.labels == ("grpc", "pull", "success", "true")
    assert sum(waited.counts) == 2
    assert waited.counts[-1] == 1
    assert refused.labels == ("grpc", "pull", "queue_not_found", "false")
    assert method_name("/rockoon.v1.OffsetService/ReadAll") == "read_all"


def test_readers_that_invent_groups_do_not_make_the_broker_remember_them_all() -> None:
    flow = Flow()
    for number in range(SERIES_MAX + 5):
        flow.add("T", f"group-{number}", 2, 100)
    flow.add("T", "group-0", 1, 50)
    counts = dict(flow)
    assert len(counts) == SERIES_MAX + 1
    assert counts[Series(OTHERS, OTHERS)].messages == 10
    assert counts[Series("T", "group-0")].messages == 3
    flow.drop_topics("T")
    assert [series.topic for series, _ in flow] == [OTHERS]


def test_the_longest_wait_for_a_sync_is_told_for_ten_to_twenty_seconds() -> None:
    waits = SyncWaits()
    waits.record(1, 0.5, now_seconds=100.0)
    waits.record(1, 0.1, now_seconds=105.0)
    assert waits.batches == 2
    assert waits.seconds == pytest.approx(0.6)
    assert waits.longest_seconds(105.0) == 0.5
    assert waits.longest_seconds(111.0) == 0.5
    assert waits.longest_seconds(122.0) == 0.0


def test_a_json_line_names_the_span_it_was_written_in() -> None:
    lines = JsonLines({"service": "broker", "node": "broker-a"}, span_fields)
    tracer = TracerProvider().get_tracer("test")

    def line(**more: object) -> dict[str, object]:
        record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, "%d lost", (3,), None)
        vars(record).update(more)
        parsed: dict[str, object] = json.loads(lines.format(record))
        return parsed

    outside = line(topic="orders")
    assert outside["message"] == "3 lost"
    assert outside["level"] == "WARNING"
    assert outside["topic"] == "orders"
    assert outside["service"] == "broker"
    assert "trace_id" not in outside
    with tracer.start_as_current_span("work") as span:
        inside = line()
    context = span.get_span_context()
    assert inside["trace_id"] == f"{context.trace_id:032x}"
    assert inside["span_id"] == f"{context.span_id:016x}"


def test_an_exception_stays_within_its_json_line() -> None:
    lines = JsonLines({}, dict)
    try:
        raise ValueError("two\nlines")
    except ValueError as failure:
        exc_info = (ValueError, failure, failure.__traceback__)
        record = logging.LogRecord("a", logging.ERROR, "f.py", 1, "it failed", (), exc_info)
    text = lines.format(record)
    assert "\n" not in text
    assert "ValueError: two\nlines" in json.loads(text)["exception"]


def test_lines_of_a_replica_name_the_replica(tmp_path: Path) -> None:
    replica = BrokerSettings(
        name="broker-a", store_path=tmp_path, copies=3, replica="broker-a-1", cluster="c"
    )
    alone = BrokerSettings(name="broker-a", store_path=tmp_path, cluster="c")
    unnamed = replace(replica, replica="")
    assert [node_name(each) for each in (replica, alone, unnamed)] == [
        "broker-a-1",
        "broker-a",
        f"broker-a@{socket.gethostname()}",
    ]
    file = io.StringIO()
    root = logging.getLogger()
    former, root.handlers = root.handlers, []
    try:
        set_up_logging("broker", "text", node_name(replica), file)
        logging.getLogger("a.b").warning("%d lost", 3)
    finally:
        root.handlers = former
    assert " WARNING broker broker-a-1 a.b: 3 lost\n" in file.getvalue()


def test_json_lines_and_the_resource_of_telemetry_name_the_host() -> None:
    file = io.StringIO()
    root = logging.getLogger()
    former, root.handlers = root.handlers, []
    try:
        set_up_logging("broker", "json", "broker-a-1", file)
        logging.getLogger("a.b").warning("lost")
    finally:
        root.handlers = former
    line = json.loads(file.getvalue())
    assert (line["node"], line["host"]) == ("broker-a-1", socket.gethostname())
    labels = {"cluster": "c", "node_type": "broker", "node_id": "broker-a-1"}
    attributes = resource_of(labels).attributes
    assert attributes["host.name"] == socket.gethostname()
    assert attributes["service.instance.id"] == "broker-a-1"
