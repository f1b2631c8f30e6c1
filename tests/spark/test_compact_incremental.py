"""Runs that write new records and link all other files, and runs that are not worthwhile."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rockoon_format.generation import MANIFEST_FILE, generation_name
from rockoon_spark.jobs.compact import Worthwhile
from support.compacting import COMPACTED, RETENTION_MS, Compacting, compare, manifest, place, run
from support.compaction import generation_records, in_force
from support.seeds import seeds
from support.store_directory import crashed_copy

WHOLE_PART_BYTES = 1 << 20
"""More bytes than a test sends."""


@pytest.fixture
def owner(tmp_path: Path) -> Compacting:
    return Compacting(tmp_path / "store")


def send_zipf(
    owner: Compacting, choose: np.random.Generator, count: int, keys: int
) -> dict[tuple[str, str], bytes]:
    """Append messages whose keys have Zipf's frequencies; one in twenty is a tombstone.

    Returns:
        The newest body of each topic and key.
    """
    weights = 1 / np.arange(1, keys + 1)
    newest = {}
    for number in choose.choice(keys, count, p=weights / weights.sum()).tolist():
        body = b"" if choose.random() < 0.05 else choose.bytes(int(choose.integers(50, 200)))
        topic, key = COMPACTED[number % 2], f"key-{number}"
        owner.send(key, body, topic, number % 3)
        newest[topic, key] = body
    return newest


def inodes(root: Path, number: int) -> set[int]:
    directory = root / "compacted" / generation_name(number)
    return {path.stat().st_ino for path in directory.iterdir()}


@pytest.mark.parametrize("seed", seeds(1))
def test_twenty_runs_write_at_most_four_times_the_new_bytes(
    owner: Compacting, tmp_path: Path, seed: int
) -> None:
    choose = np.random.default_rng(seed)
    newest = send_zipf(owner, choose, 250, 500)
    run(place(owner.root, owner.clock.time_ms), part_bytes=WHOLE_PART_BYTES)
    owner.take_over(1)
    new_bytes = written_bytes = linked_parts = 0
    for number in range(2, 22):
        start = owner.store.visible_end
        newest |= send_zipf(owner, choose, 20, 500)
        new_bytes += owner.store.visible_end - start
        now_ms, before = owner.clock.time_ms, tmp_path / "before"
        if number % 5 == 0:
            crashed_copy(owner.root, before)
        report = run(place(owner.root, now_ms), part_bytes=WHOLE_PART_BYTES)
        owner.take_over(number)
        found = {
            (each.topic, each.key): each.record.body for each in generation_records(owner.root)
        }
        assert {key: body for key, body in found.items() if body} == {
            key: body for key, body in newest.items() if body
        }
        if before.exists():
            compare(owner.root, before, number, now_ms)
            shutil.rmtree(before)
        shared = inodes(owner.root, number) & inodes(owner.root, number - 1)
        assert bool(shared) == bool(report.parts_linked)
        assert report.parts <= 12
        written_bytes += report.bytes_written
        linked_parts += report.parts_linked
    assert linked_parts
    assert written_bytes <= 4 * new_bytes, f"{written_bytes / new_bytes:.1f} times the new bytes"
    owner.store.close()


def test_a_run_of_few_new_messages_is_skipped_with_the_reason(owner: Compacting) -> None:
    choose = np.random.default_rng(1)
    half = Worthwhile(0.5, 1 << 40)
    send_zipf(owner, choose, 100, 1000)
    assert run(place(owner.root, owner.clock.time_ms), worthwhile=half).is_new
    owner.take_over(1)
    send_zipf(owner, choose, 10, 1000)
    now_ms = owner.clock.time_ms
    skipped = run(place(owner.root, now_ms), worthwhile=half)
    assert (skipped.is_new, skipped.generation, skipped.bytes_written) == (False, 1, 0)
    assert 0 < skipped.dirty_ratio < 0.5
    assert skipped.skipped.startswith(f"{skipped.dirty_ratio:.1%} of the compacted topics' bytes")
    # A message of 400 ms ago, by which the broker must keep its log.
    late = Worthwhile(0.5, 400)
    assert not run(place(owner.root, now_ms + 300), worthwhile=late).is_new
    assert run(place(owner.root, now_ms + 400), worthwhile=late).is_new
    owner.take_over(2)
    send_zipf(owner, choose, 200, 1000)
    assert run(place(owner.root, owner.clock.time_ms), worthwhile=half).dirty_ratio > 0.5
    owner.take_over(3)
    owner.store.close()


def test_a_tombstone_that_expires_or_another_topic_is_worth_a_run(owner: Compacting) -> None:
    never = Worthwhile(1.0, 1 << 40)
    for number in range(10):
        owner.send(f"key-{number}", 50 * b"x")
    owner.send("key-1", b"")
    run(place(owner.root, owner.clock.time_ms))
    owner.take_over(1)
    kept_since_ms = manifest(owner.root, 1).created_ms
    owner.send("key-2")
    assert run(place(owner.root, kept_since_ms + RETENTION_MS - 1), worthwhile=never).skipped
    report = run(place(owner.root, kept_since_ms + RETENTION_MS), worthwhile=never)
    assert (report.tombstones_dropped, report.tombstones_left) == (1, 0)
    owner.take_over(2)
    owner.send("key-3")
    owner.name_compacted((*COMPACTED, "plain"))
    assert run(place(owner.root, owner.clock.time_ms), worthwhile=never).is_new
    owner.take_over(3)
    owner.store.close()


def test_a_generation_of_the_former_layout_is_gone_on_with(
    owner: Compacting, tmp_path: Path
) -> None:
    choose = random.Random(5)
    owner.send_random(choose, 100)
    run(place(owner.root, owner.clock.time_ms))
    path = owner.root / "compacted" / generation_name(1) / MANIFEST_FILE
    former = replace(manifest(owner.root, 1), version=1)
    path.write_bytes(former.to_json())
    assert "oldest_tombstone_ms" not in json.loads(path.read_text())["manifest"]["topics"][0]
    owner.take_over(1)
    for number in (2, 3):
        owner.send_random(choose, 20)
        now_ms = owner.clock.time_ms
        before = crashed_copy(owner.root, tmp_path / f"before-{number}")
        run(place(owner.root, now_ms), part_bytes=WHOLE_PART_BYTES)
        owner.take_over(number)
        compare(owner.root, before, number, now_ms)
        owner.store.close()
        owner = Compacting(owner.root, now_ms=owner.clock.time_ms)
    found = in_force(owner.root)
    assert found is not None
    assert found.version == 2
    owner.store.close()


def refuses(code: int) -> Callable[[str, str], None]:
    def link(_source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), target)

    return link


def test_files_are_copied_where_there_are_no_hard_links(
    owner: Compacting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choose = np.random.default_rng(2)
    send_zipf(owner, choose, 200, 1000)
    run(place(owner.root, owner.clock.time_ms), part_bytes=WHOLE_PART_BYTES)
    owner.take_over(1)
    send_zipf(owner, choose, 10, 1000)
    before = crashed_copy(owner.root, tmp_path / "before")
    now_ms = owner.clock.time_ms
    monkeypatch.setattr(os, "link", refuses(errno.EOPNOTSUPP))
    assert run(place(owner.root, now_ms), part_bytes=WHOLE_PART_BYTES).parts_linked == 1
    monkeypatch.undo()
    assert not inodes(owner.root, 1) & inodes(owner.root, 2)
    owner.take_over(2)
    compare(owner.root, before, 2, now_ms)
    owner.store.close()


def test_a_rewrite_leaves_nothing_superseded_and_the_former_layout(
    owner: Compacting, tmp_path: Path
) -> None:
    choose = np.random.default_rng(3)
    send_zipf(owner, choose, 200, 100)
    for number in (1, 2):
        run(place(owner.root, owner.clock.time_ms), part_bytes=WHOLE_PART_BYTES)
        owner.take_over(number)
        send_zipf(owner, choose, 10, 100)
    run(place(owner.root, owner.clock.time_ms), part_bytes=WHOLE_PART_BYTES)
    owner.take_over(3)
    assert any(part.superseded for part in manifest(owner.root, 3).parts)
    before = crashed_copy(owner.root, tmp_path / "before")
    now_ms = owner.clock.time_ms
    # Without new records, the run makes a generation in any case.
    report = run(
        place(owner.root, now_ms),
        worthwhile=Worthwhile(1.0, 1 << 40, rewrites=True),
        part_bytes=WHOLE_PART_BYTES,
    )
    assert (report.generation, report.parts_linked, report.bytes_linked) == (4, 0, 0)
    owner.take_over(4)
    made = manifest(owner.root, 4)
    assert (made.version, {part.superseded for part in made.parts}) == (1, {0})
    compare(owner.root, before, 4, now_ms)
    owner.store.close()
