"""Metrics that a job leaves for node_exporter, read as Prometheus reads them."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rockoon_spark.commands.outcomes import TABLE, CommandRun, write_metrics

FIGURES = {
    "log_bytes": 900,
    "broker-a": {"log_bytes": 600, "records": 5, "records_left": 2, "seconds of": {"copy": 1.5}},
    "broker-b": {"log_bytes": 300, "records": 7},
}
DONE = CommandRun("compact", 1_800_000_000.25, 12.5, succeeded=True, figures=FIGURES, problems=0)


def samples(path: Path) -> dict[str, Sample]:
    return {
        sample.name.removeprefix("rockoon_spark_job_"): sample
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def values(path: Path) -> dict[str, float]:
    found = samples(path)
    assert {tuple(sample.labels.values()) for sample in found.values()} == {("compact",)}
    return {name: sample.value for name, sample in found.items()}


def test_a_file_tells_what_the_run_did(tmp_path: Path) -> None:
    path = tmp_path / "compact.prom"
    write_metrics(path, DONE)
    assert values(path) == {
        "ended_timestamp_seconds": 1_800_000_000.25,
        "succeeded": 1,
        "succeeded_timestamp_seconds": 1_800_000_000.25,
        "seconds": 12.5,
        "log_bytes": 900,
        "records": 12,
        "files": 0,
        "problems": 0,
    }
    assert [each.name for each in tmp_path.iterdir()] == ["compact.prom"]
    for gauge in TABLE:
        assert f"# HELP {gauge.name} {gauge.doc}\n" in path.read_text()


def test_a_run_that_fails_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    path = tmp_path / "compact.prom"
    failed = DONE._replace(ended_at=1_800_003_600.0, succeeded=False, figures={}, problems=2)
    write_metrics(path, failed)
    assert values(path)["succeeded_timestamp_seconds"] == 0
    write_metrics(path, DONE)
    write_metrics(path, failed)
    found = values(path)
    assert found["succeeded_timestamp_seconds"] == 1_800_000_000.25
    assert (found["succeeded"], found["problems"]) == (0, 2)
    assert found["ended_timestamp_seconds"] == 1_800_003_600


def test_a_file_that_is_damaged_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "compact.prom"
    write_metrics(path, DONE)
    path.write_bytes(path.read_bytes().replace(b"} 1", b"} \xff1"))
    write_metrics(path, DONE._replace(succeeded=False))
    assert values(path)["succeeded_timestamp_seconds"] == 0


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "compact.prom").mkdir()
    with pytest.raises(OSError, match=r"compact\.prom"):
        write_metrics(tmp_path / "compact.prom", DONE)
    assert [each.name for each in tmp_path.iterdir()] == ["compact.prom"]


def test_exports_into_several_targets_have_series_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "export.prom"
    target = 's3://lake/"orders\\new"'
    done = DONE._replace(command="export", figures={"messages": 9, "files": 4}, target=target)
    # The file of a former version has no target.
    write_metrics(path, done._replace(target="", ended_at=1_700_000_000.0))
    write_metrics(path, done._replace(succeeded=False))
    assert samples(path)["succeeded_timestamp_seconds"].value == 1_700_000_000
    write_metrics(path, done)
    write_metrics(path, done._replace(succeeded=False))
    found = samples(path)
    assert {tuple(sample.labels.values()) for sample in found.values()} == {("export", target)}
    assert (found["records"].value, found["files"].value) == (9, 4)
    assert found["succeeded_timestamp_seconds"].value == 1_800_000_000.25
    # The success of another target does not count.
    write_metrics(path, done._replace(succeeded=False, target="s3://lake/payments"))
    assert samples(path)["succeeded_timestamp_seconds"].value == 0
