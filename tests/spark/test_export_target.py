"""Publishing of an export, killed at every step, without Spark."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rockoon_spark.export.target import (
    ExportedFile,
    ExportManifest,
    ExportPosition,
    ExportTarget,
    ExportTargetError,
    Section,
    discard,
    is_export,
    locked,
    manifests,
    newest_manifest,
    publish,
    recover,
)
from support.forks import Forks
from support.object_store import ObjectStore

PATHS = [
    "topic=A/date=2026-11-20/00000001-x-0.parquet",
    "topic=A/date=2026-11-21/00000001-x-1.parquet",
    "topic=%25RETRY%25g/date=2026-11-20/00000001-x-2.parquet",
]
MERGED = [path.replace("00000001-x", "00000003-m") for path in PATHS]
# Before the former manifest is moved aside, before each file, before the manifest, and at the end.
STEPS = range(len(PATHS) + 3)
TARGETS: dict[str, Callable[[Path], ExportTarget]] = {
    "path": lambda directory: ExportTarget.of(str(directory)),
    "uri": lambda directory: ExportTarget.of(directory.as_uri()),
    "object store": ObjectStore.at,
}


@pytest.fixture(params=list(TARGETS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def paths(run: int) -> list[str]:
    return [path.replace("00000001", f"{run:08}") for path in PATHS]


def stage(target: ExportTarget, run: int, job: str = "id") -> ExportManifest:
    """Stage the files of a run, and return its manifest."""
    run_id = f"{job}{run}"
    staging = target.staging(run_id)
    target.make(staging)
    files = []
    for path in paths(run):
        with target.create(target.staged_path(staging, path)) as stream:
            stream.write(path.encode())
        files.append(ExportedFile(path, "broker-a", 1, len(path), 0, run, run))
    return ExportManifest(
        run,
        run_id,
        {"names": None, "pattern": None},
        {"broker-a": ExportPosition(run * 1000)},
        [Section("broker-a", run * 1000 - 1000, run * 1000)],
        files,
    )


def stage_merge(target: ExportTarget, keep_seconds: float = 0.0) -> ExportManifest:
    """Stage a merge that replaces the files of runs 1 and 2."""
    staging = target.staging("merge")
    target.make(staging)
    files = []
    for path in MERGED:
        with target.create(target.staged_path(staging, path)) as stream:
            stream.write(path.encode())
        files.append(ExportedFile(path, "broker-a", 2, len(path), 0, 1, 2))
    former = manifests(target)
    return ExportManifest(
        3,
        "merge",
        former[-1].topics,
        former[-1].positions,
        [],
        files,
        replaces=paths(1) + paths(2),
        keep_seconds=keep_seconds,
    )


def publish_killed(directory: str, kind: str, step: int, half_done: str = "") -> None:
    """Publish run 2; the process is killed before the move of this number, or after all moves.

    Args:
        half_done: "copied" if the move has copied its file in an object store.
    """
    target, done = TARGETS[kind](Path(directory)), 0
    manifest = stage(target, 2)

    def move(source: str, place: str) -> None:
        nonlocal done
        if done == step:
            if half_done == "copied":
                target.write(place, target.read(source))
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        target.move(source, place)

    publish(target, manifest, move)
    os.kill(os.getpid(), signal.SIGKILL)


def publish_merge_killed(directory: str, kind: str, step: int) -> None:
    """Publish the merge of runs 1 and 2; the process is killed before the move or removal of this
    number, or after all of them."""
    target, done = TARGETS[kind](Path(directory)), 0
    manifest, remove = stage_merge(target), target.remove

    def count() -> None:
        nonlocal done
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    def move(source: str, place: str) -> None:
        count()
        content = target.read(source)
        target.write(place, content)
        remove(source)

    def remove_counted(path: str) -> None:
        if path.startswith("topic="):
            count()
        remove(path)

    object.__setattr__(target, "remove", remove_counted)
    publish(target, manifest, move)
    os.kill(os.getpid(), signal.SIGKILL)


def visible(root: Path) -> list[str]:
    """Return all Parquet files that a reader without the manifests finds; all must be whole."""
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))
    assert all((root / path).read_bytes() == path.encode() for path in found)
    return found


@pytest.mark.parametrize("kind", ["path", "object store"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_while_it_publishes_is_there_whole_or_not_at_all_behind_the_next(
    forks: Forks, tmp_path: Path, kind: str, step: int
) -> None:
    target = TARGETS[kind](tmp_path)
    publish(target, stage(target, 1))
    assert forks.call(publish_killed, str(tmp_path), kind, step) == -signal.SIGKILL

    # A reader of the manifests finds whole runs at each moment.
    named = [file.path for run in manifests(target) for file in run.files]
    is_done = step == STEPS[-1]
    assert named == paths(1) + (paths(2) if is_done else [])
    assert set(named) <= set(visible(tmp_path))

    recover(target)
    expected = paths(1) + (paths(2) if step else [])
    assert visible(tmp_path) == target.parquet_paths() == sorted(expected)
    assert [file.path for run in manifests(target) for file in run.files] == expected
    newest = newest_manifest(target)
    assert newest is not None
    assert newest.positions["broker-a"].end_offset == (2000 if step else 1000)
    assert target.names("_staging") == []
    # A finished run is not published again, and the next run can follow.
    recover(target)
    publish(target, stage(target, newest.run + 1))
    assert [run.run for run in manifests(target)] == list(range(1, newest.run + 2))


@pytest.mark.parametrize("step", [0, 2, STEPS[-2]])
def test_a_run_killed_between_a_copy_and_its_deletion_in_an_object_store_is_published(
    forks: Forks, tmp_path: Path, step: int
) -> None:
    target = ObjectStore.at(tmp_path)
    publish(target, stage(target, 1))
    ended = forks.call(publish_killed, str(tmp_path), "object store", step, "copied")
    assert ended == -signal.SIGKILL
    recover(target)
    assert visible(tmp_path) == sorted(paths(1) + paths(2))
    assert [run.run for run in manifests(target)] == [1, 2]
    assert target.names("_staging") == []


def test_a_run_that_died_while_it_made_files_leaves_nothing(tmp_path: Path) -> None:
    target = ExportTarget.of(str(tmp_path))
    publish(target, stage(target, 1))
    stage(target, 2)
    assert visible(tmp_path) == target.parquet_paths() == sorted(paths(1))
    recover(target)
    assert target.names("_staging") == []
    stage(target, 2)
    discard(target, "id2")
    assert target.names("_staging") == []


def test_a_run_that_another_has_overtaken_publishes_nothing(tmp_path: Path) -> None:
    target = ExportTarget.of(str(tmp_path))
    slow = stage(target, 1)
    other = ExportManifest(1, "other", slow.topics, slow.positions, [], [])
    target.make(target.staging("other"))
    publish(target, other)
    with pytest.raises(ExportTargetError, match="another export was published during this run"):
        publish(target, slow)
    assert visible(tmp_path) == []
    # The run had begun to publish, but another run has its number: it is rolled back.
    target.write(f"{target.staging('id1')}/manifest.json", slow.to_json().encode())
    target.make(paths(1)[0].rpartition("/")[0])
    target.move(target.staged_path(target.staging("id1"), paths(1)[0]), paths(1)[0])
    recover(target)
    assert visible(tmp_path) == target.parquet_paths() == target.names("_staging") == []
    assert [run.run_id for run in manifests(target)] == ["other"]
    publish(target, stage(target, 2))
    assert visible(tmp_path) == sorted(paths(2))


def test_one_export_at_a_time(tmp_path: Path, kind: str) -> None:
    target = TARGETS[kind](tmp_path / "made")
    with (
        locked(target, 0.5),
        pytest.raises(ExportTargetError, match="another job works in this directory"),
        locked(target, 0.5),
    ):
        pass
    with locked(target, 0.5):
        pass


def test_a_directory_of_others_and_a_broken_manifest_are_refused(tmp_path: Path) -> None:
    target = ExportTarget.of(str(tmp_path))
    assert not is_export(target)
    assert newest_manifest(target) is None
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(ExportTargetError, match=r"mine\.parquet is not part of an export"):
        newest_manifest(target)
    (tmp_path / "mine.parquet").unlink()

    for run in (1, 2, 3):
        publish(target, stage(target, run))
    assert is_export(target)
    manifest = tmp_path / "_manifest" / "00000002.json"
    content = json.loads(manifest.read_text())
    for wrong in ("{", json.dumps(content | {"format": 3}), json.dumps(content | {"files": 1})):
        manifest.write_text(wrong)
        with pytest.raises(ExportTargetError, match=r"00000002\.json is not a valid manifest"):
            manifests(target)
    manifest.unlink()
    with pytest.raises(ExportTargetError, match=r"00000002\.json is missing"):
        manifests(target)


def test_a_file_system_that_nobody_knows_is_told() -> None:
    with pytest.raises(ExportTargetError, match="nowhere://bucket/export is in no file system"):
        newest_manifest(ExportTarget.of("nowhere://bucket/export"))
