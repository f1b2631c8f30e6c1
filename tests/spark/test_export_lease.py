"""Exports into one object store at the same time, killed and paused, without Spark."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from spark.test_export_target import paths, stage, visible

from rockoon_spark.export.lease import CLAIMS, DirectoryLease, LeaseTaken
from rockoon_spark.export.target import (
    ExportManifest,
    ExportTargetError,
    locked,
    manifests,
    newest_manifest,
    publish,
    recover,
)
from support.forks import Forks
from support.object_store import ObjectStore
from support.waiting import hold_up

LEASE_SECONDS = 0.8


@pytest.fixture
def target(tmp_path: Path) -> ObjectStore:
    return ObjectStore.at(tmp_path)


def run_with_pauses(uri: str, moves: int, pipes: str) -> None:
    """Export a run. Before it publishes, or before its move of this number, it writes its process
    id into a pipe, and waits until the other pipe is closed. A refused run ends with status 3."""
    target, done = ObjectStore(uri), 0

    def pause() -> None:
        Path(pipes, "paused").write_text(str(os.getpid()))
        Path(pipes, "resumed").read_text()

    def move(source: str, place: str) -> None:
        nonlocal done
        if done == moves:
            pause()
        done += 1
        target.move(source, place)

    try:
        with locked(target, LEASE_SECONDS) as check:
            recover(target, check=check)
            manifest = stage(target, 1)
            if moves < 0:
                pause()
            publish(target, manifest, move, check)
    except ExportTargetError as error:
        Path(pipes, "error").write_text(str(error))
        sys.exit(3)


@dataclass
class PausedRun:
    """A run in a new process."""

    pid: int
    pipes: Path
    ended: Future[int]

    def resume(self) -> int:
        """Continue the run to its end; returns its exit status."""
        (self.pipes / "resumed").write_text("")
        return self.ended.result(60)


@pytest.fixture
def paused_run(
    forks: Forks, target: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], PausedRun]]:
    """Starts a run that holds the lease and pauses, see `run_with_pauses`."""
    pipes = tmp_path_factory.mktemp("pipes")
    started = []
    for name in ("paused", "resumed"):
        os.mkfifo(pipes / name)

    def start(moves: int) -> PausedRun:
        ended = thread.submit(forks.call, run_with_pauses, target.uri, moves, str(pipes))
        started.append(PausedRun(int((pipes / "paused").read_text()), pipes, ended))
        return started[0]

    with ThreadPoolExecutor(1) as thread:
        try:
            yield start
        finally:
            for run in started:
                if not run.ended.done():
                    os.kill(run.pid, signal.SIGKILL)


def export(target: ObjectStore) -> None:
    """A whole run of a job."""
    with locked(target, LEASE_SECONDS) as check:
        recover(target, check=check)
        former = newest_manifest(target)
        run = former.run + 1 if former else 1
        manifest = stage(target, run)
        publish(target, manifest, check=check)


def runs_of(target: ObjectStore) -> list[int]:
    return [manifest.run for manifest in manifests(target)]


def see_all_whole(target: ObjectStore, root: Path) -> None:
    named = [file.path for run in manifests(target) for file in run.files]
    assert visible(root) == sorted(named)
    assert target.names("_staging") == target.names(CLAIMS) == []


def test_a_second_export_gives_up_and_blocks_neither_the_first_nor_later_ones(
    target: ObjectStore, tmp_path: Path, paused_run: Callable[[int], PausedRun]
) -> None:
    first = paused_run(-1)
    with pytest.raises(
        ExportTargetError, match=rf"another job works in this directory \(process {first.pid}"
    ):
        export(target)
    assert first.resume() == 0
    assert runs_of(target) == [1]
    export(target)
    assert runs_of(target) == [1, 2]
    see_all_whole(target, tmp_path)


@pytest.mark.parametrize("moves", [-1, 0, 2, len(paths(1)) + 1])
def test_an_export_that_was_killed_is_followed_by_the_next(
    target: ObjectStore, tmp_path: Path, moves: int, paused_run: Callable[[int], PausedRun]
) -> None:
    first = paused_run(moves)
    os.kill(first.pid, signal.SIGKILL)
    assert first.ended.result(60) == -signal.SIGKILL
    assert len(target.names(CLAIMS)) == 1
    export(target)
    # From the staged manifest on, the killed run is published too.
    assert runs_of(target) == ([1, 2] if moves > 0 else [1])
    see_all_whole(target, tmp_path)


@pytest.mark.parametrize("moves", [-1, 0, 2, len(paths(1)) + 1])
def test_an_export_that_was_paused_for_longer_than_its_lease_publishes_nothing_more(
    target: ObjectStore, tmp_path: Path, moves: int, paused_run: Callable[[int], PausedRun]
) -> None:
    first = paused_run(moves)
    os.kill(first.pid, signal.SIGSTOP)
    export(target)
    os.kill(first.pid, signal.SIGCONT)
    assert first.resume() == 3
    told = (first.pipes / "error").read_text()
    assert "removed the claim of this one" in told or "was published during this run" in told
    export(target)
    assert runs_of(target) == ([1, 2, 3] if moves > 0 else [1, 2])
    see_all_whole(target, tmp_path)


def test_an_export_whose_staged_files_another_one_deleted_is_rolled_back(
    target: ObjectStore, tmp_path: Path
) -> None:
    publish(target, stage(target, 1))
    blocked = stage(target, 2)
    staging = target.staging(blocked.run_id)
    target.write(f"{staging}/manifest.json", blocked.to_json().encode())
    # As earlier versions left it: one file published, one staged, one deleted.
    target.make(paths(2)[0].rpartition("/")[0])
    target.move(target.staged_path(staging, paths(2)[0]), paths(2)[0])
    target.remove(target.staged_path(staging, paths(2)[1]))
    export(target)
    assert runs_of(target) == [1, 2]
    see_all_whole(target, tmp_path)


def test_a_run_that_is_published_stays_although_one_of_its_files_was_deleted_since(
    target: ObjectStore, tmp_path: Path
) -> None:
    manifest = stage(target, 1)
    publish(target, manifest)
    # An object store copied the manifest, and the process died before it deleted the other one.
    target.make(target.staging("id1"))
    target.write(f"{target.staging('id1')}/manifest.json", manifest.to_json().encode())
    target.remove(paths(1)[0])
    recover(target)
    assert visible(tmp_path) == sorted(paths(1)[1:])
    assert runs_of(target) == [1]
    assert target.names("_staging") == []


def test_a_failing_renewal_does_not_end_the_job_and_a_removed_claim_does(
    target: ObjectStore,
) -> None:
    with locked(target, LEASE_SECONDS) as check:
        check()
        (claim,) = target.names(CLAIMS)
        target.remove(f"{CLAIMS}/{claim}")
        with pytest.raises(ExportTargetError, match="removed the claim of this one"):
            publish(target, ExportManifest(1, "id1", {}, {}, [], []), check=check)
    assert target.names(CLAIMS) == []


class Slow(ObjectStore):
    """The process pauses for longer than a lease after it has read a claim again."""

    reads = itertools.count()

    def read(self, path: str) -> bytes:
        content = super().read(path)
        if path.startswith(CLAIMS) and next(self.reads) == 1:
            hold_up(1.5 * LEASE_SECONDS)
        return content


def test_a_job_that_was_paused_while_it_waited_does_not_take_a_valid_lease(
    target: ObjectStore,
) -> None:
    with locked(target, LEASE_SECONDS) as check:
        with pytest.raises(ExportTargetError, match="another job works in this directory"):
            export(Slow(target.uri))
        check()


class AnHourLate(ObjectStore):
    """A file system whose clock differs from that of this machine."""

    def written_seconds(self, path: str) -> float:
        return super().written_seconds(path) - 3600


def test_a_claim_expires_by_the_clock_of_the_file_system(
    target: ObjectStore, tmp_path: Path
) -> None:
    late = AnHourLate(target.uri)
    with DirectoryLease(late, LEASE_SECONDS), pytest.raises(LeaseTaken):
        DirectoryLease(late, LEASE_SECONDS).__enter__()
    # A job that died longer than a lease ago holds up no other one.
    target.write(f"{CLAIMS}/dead", b'{"host": "elsewhere", "pid": 7, "beat": 3}')
    written = target.written_seconds(f"{CLAIMS}/dead") - 31
    os.utime(tmp_path / CLAIMS / "dead", (written, written))
    began = time.monotonic()
    with DirectoryLease(late, 30):
        assert time.monotonic() - began < 15
        assert "dead" not in target.names(CLAIMS)
    assert target.names(CLAIMS) == []


def test_of_jobs_that_begin_at_once_one_works_at_a_time(target: ObjectStore) -> None:
    jobs = 4
    begin = threading.Barrier(jobs)
    working: set[int] = set()
    seen: list[int] = []

    def work(number: int) -> None:
        begin.wait()
        try:
            with DirectoryLease(target, 0.2):
                working.add(number)
                seen.append(len(working))
                working.discard(number)
        except LeaseTaken:
            seen.append(0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == jobs
    assert set(seen) <= {0, 1}
    assert target.names(CLAIMS) == []
