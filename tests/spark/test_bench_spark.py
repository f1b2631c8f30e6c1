"""The benchmark writes whole stores, and every measure of it runs."""

from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.compare.programs import NotHere
from bench.spark.beside_kafka import QUERIES, measure_beside_kafka
from bench.spark.jobs import COLUMN_SETS, JOBS, WORK, partitions_of, read_columns, seconds_of
from bench.spark.many_queues import measure_plans
from bench.spark.report import GIB, JOB, Figure, Figures
from bench.spark.stores import StoreMade, make_store
from rockoon_format.scan import ScanEnd, scan

FILE_BYTES = 2 << 20


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[StoreMade]:
    return make_store(tmp_path_factory.mktemp("bench") / "stores", FILE_BYTES, 2, topics=2)


def test_a_made_log_is_what_recovery_accepts_and_queues_count_without_a_gap(
    stores: list[StoreMade],
) -> None:
    for store in stores:
        records = 0
        found: dict[tuple[bytes, int], list[int]] = {}
        for path in sorted((store.path / "commitlog").iterdir()):
            content = path.read_bytes()
            log = scan(content, 0, len(content), records_max=FILE_BYTES)
            assert log.end is ScanEnd.BLANK
            assert (log.physical_offsets == log.offsets + int(path.name)).all()
            records += log.count
            names = [log.topics[number] for number in log.topic_numbers.tolist()]
            queues = zip(names, log.queue_ids.tolist(), strict=True)
            for queue, offset in zip(queues, log.queue_offsets.tolist(), strict=True):
                found.setdefault(queue, []).append(offset)
        assert records == store.records
        assert all(offsets == list(range(len(offsets))) for offsets in found.values())
        assert len(found) == 16


def test_every_measure_of_a_process_sees_every_record(stores: list[StoreMade]) -> None:
    partitions = partitions_of(stores[1].path)
    assert sum(len(each.scan()[1].starts) for each in partitions) == stores[1].records
    for name, work in WORK.items():
        assert sum(map(work, partitions)) in (0, stores[1].records), name
        assert seconds_of(work, partitions, cores=1).seconds > 0
    assert seconds_of(WORK["find records"], partitions, cores=2).seconds > 0


# Other tests cover the reads; these tests cover the benchmark.
@pytest.mark.soak
def test_every_measure_of_spark_runs(
    spark: SparkSession, stores: list[StoreMade], tmp_path: Path
) -> None:
    store = stores[1]
    spent = read_columns(spark, store.path, COLUMN_SETS["offsets"])
    assert spent.seconds > 0
    assert spent.cpu_seconds > 0
    runs = {}
    for name, run in JOBS.items():
        (tmp_path / name).mkdir()
        runs[name] = run(spark, store.path, tmp_path / name)
    assert runs["index"].entries == 2 * store.records
    assert {runs[name].entries for name in ("rebuild", "compact", "export")} == {store.records}
    assert runs["rebuild"].shuffle_bytes > 0
    assert all(each.bytes_written > 0 for each in runs.values())


@pytest.mark.soak
def test_plans_and_queries_beside_kafka_are_measured(tmp_path: Path) -> None:
    plans = measure_plans(100, 1)
    assert len(plans) == 3
    assert all(each.cpu_seconds > 0 for each in plans)
    try:
        figures = measure_beside_kafka(tmp_path, 2000, 1)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert {(each.query, each.source) for each in figures} == set(
        product(QUERIES, ("rockoon", "kafka"))
    )
    assert {each.rows for each in figures} == {2000, 20}


def test_the_slope_leaves_out_what_a_run_costs_beside_its_bytes() -> None:
    figures = Figures()
    for seconds in (3.0, 9.0):
        figures.add(Figure(JOB, "index", 1, GIB, 100, seconds, entries=10))
    figures.add(Figure(JOB, "index", 1, 2 * GIB, 200, 5.0, entries=20))
    slope = figures.slopes(JOB, 1)["index"]
    assert (slope.seconds_per_gib, slope.start_seconds) == (2.0, 1.0)
    assert (slope.records_per_second, slope.entries_per_second) == (50, 5)
