"""Merges of an export's small files: readers see the old or the new files, killed at any step."""

import json
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from spark.test_export import Sender, place_of, run, verified
from spark.test_export_target import (
    MERGED,
    TARGETS,
    paths,
    publish_merge_killed,
    stage,
    stage_merge,
    visible,
)

from rockoon_spark.export.reading import section_rows
from rockoon_spark.export.rows import ROW_SCHEMA, ParquetFile
from rockoon_spark.export.target import (
    ExportedFile,
    ExportManifest,
    ExportTarget,
    ExportTargetError,
    Section,
    exported_files,
    kept_paths,
    locked,
    manifests,
    publish,
    recover,
)
from rockoon_spark.jobs.export import export
from rockoon_spark.jobs.merge import merge_group, merge_small_files
from rockoon_spark.jobs.verify_export import verify_export
from support.forks import Forks
from support.seeds import seeds
from support.waiting import wait_until

# Before the manifest is staged, a file, the manifest, two removals, and at the end.
STEPS = [0, 2, len(MERGED) + 1, len(MERGED) + 2, len(MERGED) + 4, 3 * len(MERGED) + 2]


def named(target: ExportTarget) -> list[str]:
    return sorted(file.path for file in exported_files(manifests(target)))


@pytest.mark.parametrize("kind", ["path", "object store"])
@pytest.mark.parametrize("step", STEPS)
def test_a_merge_killed_at_any_step_has_replaced_all_files_or_none(
    forks: Forks, tmp_path: Path, kind: str, step: int
) -> None:
    target = TARGETS[kind](tmp_path)
    old, new = sorted(paths(1) + paths(2)), sorted(MERGED)
    for number in (1, 2):
        publish(target, stage(target, number))
    assert forks.call(publish_merge_killed, str(tmp_path), kind, step) == -signal.SIGKILL
    # A reader by the manifests finds all files that they name.
    is_published = step > len(MERGED) + 1
    assert named(target) == (new if is_published else old)
    assert set(named(target)) <= set(visible(tmp_path))

    recover(target)
    assert named(target) == visible(tmp_path) == (new if step else old)
    assert target.names("_staging") == []
    publish(target, stage(target, 4 if step else 3))
    recover(target)
    assert len(visible(tmp_path)) == len(new if step else old) + len(MERGED)


def test_replaced_files_stay_for_readers_that_have_begun(tmp_path: Path) -> None:
    target = TARGETS["object store"](tmp_path)
    old = sorted(paths(1) + paths(2))
    for number in (1, 2):
        publish(target, stage(target, number))
    publish(target, stage_merge(target, keep_seconds=1.0))
    assert named(target) == sorted(MERGED)
    assert sorted(kept_paths(target)) == old
    assert visible(tmp_path) == sorted([*old, *MERGED])
    publish(target, stage(target, 4))

    def is_over() -> bool:
        recover(target)
        return visible(tmp_path) == named(target)

    recover(target)
    assert set(old) < set(visible(tmp_path))
    wait_until(is_over, "the replaced files are removed")
    assert target.names("_staging") == kept_paths(target) == []


@pytest.mark.parametrize("kind", ["path", "object store"])
@pytest.mark.parametrize("pauses", [0, 1, 2])
def test_replaced_files_that_another_job_removes_at_the_same_time_are_no_error(
    tmp_path: Path, kind: str, pauses: int
) -> None:
    target = TARGETS[kind](tmp_path)
    for number in (1, 2):
        publish(target, stage(target, number))
    publish(target, stage_merge(target, keep_seconds=3600.0))
    (merge,) = target.names("_staging")

    class Paused(type(target)):  # type: ignore[misc]
        """Before one of its steps, the other job does the rest of all steps."""

        left = pauses

        def step(self) -> None:
            if self.left == 0:
                for path in kept_paths(target):
                    target.remove(path)
                target.remove_tree(target.staging(merge))
            self.left -= 1

        def written_seconds(self, path: str) -> float:
            self.step()
            return super().written_seconds(path)

        def write(self, path: str, content: bytes) -> None:
            self.step()
            super().write(path, content)

    recover(Paused(target.uri))
    assert named(target) == visible(tmp_path) == sorted(MERGED)
    assert target.names("_staging") == []


@pytest.mark.parametrize("kind", ["path", "object store"])
def test_a_run_that_was_not_published_removes_no_replaced_files(tmp_path: Path, kind: str) -> None:
    """A job was killed while it removed the staging directory of a rolled back merge."""
    target = TARGETS[kind](tmp_path)
    for number in (1, 2):
        publish(target, stage(target, number))
    merge = stage_merge(target)
    publish(target, stage(target, 3))
    target.write(f"{target.staging(merge.run_id)}/replaced.json", merge.to_json().encode())
    recover(target)
    assert visible(tmp_path) == named(target) == sorted(paths(1) + paths(2) + paths(3))
    assert target.names("_staging") == []
    stage_merge(target)
    target.write("_staging/merge/replaced.json", replace(merge, run=4).to_json().encode())
    recover(target)
    assert visible(tmp_path) == named(target)
    assert target.names("_staging") == []


def test_former_versions_refuse_a_manifest_that_replaces_files(tmp_path: Path) -> None:
    target = TARGETS["path"](tmp_path)
    for number in (1, 2):
        publish(target, stage(target, number))
    publish(target, stage_merge(target))
    publish(target, stage(target, 4))
    contents = [
        json.loads((tmp_path / "_manifest" / f"{number:08}.json").read_text())
        for number in (1, 2, 3, 4)
    ]
    assert [content["format"] for content in contents] == [1, 1, 2, 1]
    assert (
        contents[0].keys()
        == contents[3].keys()
        == contents[2].keys()
        - {
            "replaces",
            "keepSeconds",
        }
    )
    assert manifests(target)[2] == ExportManifest.from_json(json.dumps(contents[2]))
    (tmp_path / "_manifest" / "00000003.json").write_text(
        json.dumps(contents[2] | {"replaces": ["topic=A/date=2026-11-20/x.parquet"]})
    )
    with pytest.raises(ExportTargetError, match=r"run 3 replaces .*, which no earlier run has"):
        exported_files(manifests(target))


def rows_of(broker: str, offsets: list[int]) -> pa.Table:
    columns: dict[str, Any] = {name: [None] * len(offsets) for name in ROW_SCHEMA.names}
    columns |= {
        "topic_name": ["A"] * len(offsets),
        "broker": [broker] * len(offsets),
        "physical_offset": offsets,
        "body": [f"{broker} {offset}" for offset in offsets],
    }
    return pa.table(columns, schema=ROW_SCHEMA)


@pytest.mark.parametrize("seed", seeds(3))
def test_rows_of_files_that_overlap_are_in_the_order_of_each_log(tmp_path: Path, seed: int) -> None:
    """A task may close a file of a topic and begin another, and large files are not merged."""
    choose = random.Random(seed)
    target = TARGETS["path"](tmp_path)
    offsets = {broker: range(0, 100 * choose.randrange(1, 5), 10) for broker in ("a", "b", "c")}
    small: list[ExportedFile] = []
    generation: list[ExportedFile] = []
    target.make("_staging")
    target.make("topic=A/date=2026-11-20")
    for broker, all_offsets in offsets.items():
        shares: dict[int, list[int]] = {}
        for offset in all_offsets:
            shares.setdefault(choose.randrange(4), []).append(offset)
        for own in shares.values():
            path = f"topic=A/date=2026-11-20/{len(small)}.parquet"
            file = ParquetFile(target, "_staging", path)
            half = choose.randrange(len(own))
            for part in filter(None, (own[:half], own[half:])):
                file.write(rows_of(broker, part), broker)
            small.append(file.close())
            staged = target.staged_path("_staging", path)
            target.move(staged, path)
    while len(small) > 1:
        chosen = choose.sample(small, choose.randrange(2, len(small) + 1))
        small = [file for file in small if file not in chosen]
        stem = f"m{len(generation)}"
        for made in merge_group(target, chosen, "_staging", stem, choose.choice([1, 1 << 20])):
            target.move(target.staged_path("_staging", made.path), made.path)
            generation.append(made)
            small.append(made)
        if len(small) > 6:
            continue
        for broker, all_offsets in offsets.items():
            start, stop = sorted(choose.sample(range(500), 2))
            found = [
                offset
                for table in section_rows(target, small, Section(broker, start, stop))
                for offset in table["physical_offset"].to_pylist()
            ]
            assert found == [offset for offset in all_offsets if start <= offset < stop]
        if choose.random() < 0.3:
            break
    assert sum(file.rows for file in small) == sum(map(len, offsets.values()))


class Reading:
    """The rows of an export by three readers of its directory, and by its manifests."""

    def __init__(self, root: Path) -> None:
        self.out = root / "out"
        self.target = ExportTarget.of(str(self.out))

    def files_of_directories(self) -> Mapping[str, int]:
        return Counter(path.rpartition("/")[0] for path in self.target.parquet_paths())

    def by_manifests(self) -> list[tuple[Any, ...]]:
        found = [str(self.out / path) for path in named(self.target)]
        table = ds.dataset(found, format="parquet").to_table(
            columns=["broker", "physical_offset", "topic_name", "body"]
        )
        return sorted(zip(*table.to_pydict().values(), strict=True))

    def by_directory(self) -> list[tuple[Any, ...]]:
        table = ds.dataset(self.out, format="parquet", partitioning="hive").to_table(
            columns=["broker", "physical_offset", "topic_name", "body"]
        )
        return sorted(zip(*table.to_pydict().values(), strict=True))

    def by_duckdb(self) -> list[tuple[Any, ...]]:
        return duckdb.sql(
            "SELECT broker, physical_offset, topic_name, body FROM read_parquet("
            f"'{self.out}/*/*/*.parquet', hive_partitioning = true) ORDER BY ALL"
        ).fetchall()

    def by_spark(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        frame = spark.read.parquet(str(self.out))
        found = frame.select("broker", "physical_offset", "topic_name", "body").collect()
        return sorted(tuple(row) for row in found)


def test_runs_of_two_brokers_become_one_file_for_each_topic_and_date(
    spark: SparkSession, tmp_path: Path
) -> None:
    senders = {name: Sender(tmp_path / name) for name in ("broker-a", "broker-b")}
    target, reading = str(tmp_path / "out"), Reading(tmp_path)

    def send_and_export(**options: Any) -> None:
        for name, sender in senders.items():
            for topic in ("T", "7", "%RETRY%billing"):
                sender.send(60, topic, body=lambda n: b"%d" % n if n % 3 else b"\xff%d" % n)
            place = place_of(tmp_path, name)
            export(spark, place, target, sealed_only=False, section_bytes=9000, **options)

    send_and_export()
    send_and_export()
    before, few = reading.by_directory(), reading.files_of_directories()
    assert max(few.values()) > 4
    assert len(before) == 720
    report = merge_small_files(spark, target)
    assert (report.merged, report.run) == (sum(few.values()), 5)
    assert report.files == len(few)
    assert set(reading.files_of_directories().values()) == {1}
    assert reading.by_directory() == reading.by_manifests() == before
    assert reading.by_duckdb() == reading.by_spark(spark) == before
    nothing = merge_small_files(spark, target)
    assert (nothing.merged, nothing.files, nothing.run) == (0, 0, 5)

    # Each broker's next run continues, and merges the merged files again.
    send_and_export(merges=True)
    assert set(reading.files_of_directories().values()) == {1}
    assert reading.by_directory() == reading.by_manifests()
    assert len(reading.by_directory()) == 1080
    for name in senders:
        report_of, problems = verify_export(spark, target, place_of(tmp_path, name))
        assert problems == []
        assert (report_of.messages, report_of.compared) == (1080, 540)
    (path, *_) = sorted((tmp_path / "out").rglob("*.parquet"))
    assert path.parent.parent.name.startswith("topic=%25RETRY")
    assert pq.ParquetFile(path).num_row_groups == 2


def test_what_is_wrong_in_a_merged_file_is_found_and_a_damaged_file_is_not_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "broker-a")
    for _ in range(3):
        sender.send(30)
        run(spark, tmp_path)
    target = ExportTarget.of(str(tmp_path / "out"))
    path = target.parquet_paths()[1]
    content = (tmp_path / "out" / path).read_bytes()
    (tmp_path / "out" / path).write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.raises(Exception, match="its checksum differs from the manifest: the files"):
        merge_small_files(spark, str(tmp_path / "out"))
    assert target.names("_staging") == []
    (tmp_path / "out" / path).write_bytes(content)
    assert verified(spark, tmp_path) == []
    assert run(spark, tmp_path, merges=True).merged == 3
    (merged,) = exported_files(manifests(target))
    table = pq.read_table(tmp_path / "out" / merged.path, partitioning=None)
    replaced = pa.concat_tables([table.slice(0, 40), table.slice(41)])
    target.make("_staging")
    file = ParquetFile(target, "_staging", merged.path)
    file.write(replaced, "broker-a")
    wrong = file.close()
    target.move(target.staged_path("_staging", merged.path), merged.path)
    manifest = tmp_path / "out" / "_manifest" / "00000004.json"
    content_of = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content_of | {"files": [wrong.to_json()]}))
    (problem,) = verified(spark, tmp_path)
    missing = table["physical_offset"][40].as_py()
    assert f"the message at physical offset {missing} is in no file" in problem


def test_a_job_that_keeps_replaced_files_leaves_their_list(
    spark: SparkSession, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "broker-a")
    sender.send(10)
    run(spark, tmp_path)
    sender.send(10)
    target = ExportTarget.of(str(tmp_path / "out"))
    assert run(spark, tmp_path, merges=True, keep_seconds=3600.0).merged == 2
    assert len(kept_paths(target)) == 2
    assert sorted([*named(target), *kept_paths(target)]) == target.parquet_paths()
    assert verified(spark, tmp_path) == []


def test_a_merge_waits_for_no_other_job(spark: SparkSession, tmp_path: Path) -> None:
    sender = Sender(tmp_path / "broker-a")
    sender.send(10)
    run(spark, tmp_path)
    target = ExportTarget.of(str(tmp_path / "out"))
    with locked(target), pytest.raises(ExportTargetError, match="another job works"):
        merge_small_files(spark, target.uri)
