"""A large store without a recovery point: only queues without proof are read again."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import FailingDisk, Owner, crashed_copy, recovered, settings
from support.waiting import wait_until

QUEUES = [(topic, queue_id) for topic in "AB" for queue_id in range(3)]


def filled(root: Path, choose: random.Random, used_percent: int = 10) -> Owner:
    """About a dozen CommitLog files, written over a minute: retention checks the disk once, and
    deletes the oldest of them if it is too full."""
    disk = FailingDisk()
    disk.usage_percent = used_percent
    owner = Owner(settings(root), disk)
    for number in range(70):
        topic, queue_id = choose.choice(QUEUES)
        bodies = [b"%d" % number + bytes(choose.randrange(200))] * choose.randrange(1, 6)
        owner.append(topic, queue_id, bodies, choose.choice(["", "TagA", "TagB"]))
        owner.clock.time_ms += choose.randrange(2000)
        if choose.random() < 0.3:
            owner.store.tick(owner.clock.time_ms)
            wait_until(lambda: not owner.store.point_pending, "a recovery point")
    return owner


Bodies = dict[tuple[str, int], list[bytes]]


@pytest.fixture(scope="module", params=[10, 80], ids=["whole", "shortened by retention"])
def stores(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[dict[bool, Path], Bodies]:
    """The same store after a clean stop and after a crash, and its content."""
    directory = tmp_path_factory.mktemp("stores")
    owner = filled(directory / "clean", random.Random(1), request.param)
    assert (owner.store.log_min_offset > 0) == (request.param == 80)
    wait_until(lambda: not owner.store.removals_pending, "deleted files")
    crashed = crashed_copy(directory / "clean", directory / "crashed")
    everything = {key: owner.bodies(*key) for key in QUEUES}
    owner.store.close()
    return {True: directory / "clean", False: crashed}, everything


def files_of(root: Path, queue: tuple[str, int]) -> list[Path]:
    return sorted((root / "consumequeue" / queue[0] / str(queue[1])).iterdir())


def rewrite(root: Path, queue: tuple[str, int], change: Callable[[bytes], bytes]) -> None:
    """Change a queue's whole content, but not the sizes of its files."""
    paths = files_of(root, queue)
    content = b"".join(path.read_bytes() for path in paths)
    content = change(content).ljust(len(content), b"\0")
    for number, path in enumerate(paths):
        path.write_bytes(content[number * 200 : (number + 1) * 200])


def nothing(root: Path, choose: random.Random) -> None:
    """Delete only the recovery point."""


def lose_a_queue(root: Path, choose: random.Random) -> None:
    queue = choose.choice(QUEUES)
    shutil.rmtree(root / "consumequeue" / queue[0] / str(queue[1]))


def lose_a_tail(root: Path, choose: random.Random) -> None:
    queue = choose.choice(QUEUES)
    kept = choose.randrange(len(files_of(root, queue)) * 10) * 20
    rewrite(root, queue, lambda content: content[:kept])


def lose_a_file(root: Path, choose: random.Random) -> None:
    choose.choice(files_of(root, choose.choice(QUEUES))).unlink()


def skip_an_entry(root: Path, choose: random.Random) -> None:
    """Simulate a fault of RocketMQ's recovery: one record is left out, later ones move up."""
    queue = choose.choice(QUEUES)
    at = choose.randrange(len(files_of(root, queue)) * 10) * 20
    rewrite(root, queue, lambda content: content[:at] + content[at + 20 :])


def repeat_an_entry(root: Path, choose: random.Random) -> None:
    queue = choose.choice(QUEUES)
    at = choose.randrange(1, len(files_of(root, queue)) * 10 - 1) * 20
    rewrite(
        root, queue, lambda all_of_it: (all_of_it[:at] + all_of_it[at - 20 :])[: len(all_of_it)]
    )


def swap_two_queues(root: Path, choose: random.Random) -> None:
    first, second = (root / "consumequeue" / t / str(q) for t, q in choose.sample(QUEUES, 2))
    first.rename(root / "aside")
    second.rename(first)
    (root / "aside").rename(second)


def name_ext_units(root: Path, choose: random.Random) -> None:
    """RocketMQ's enableConsumeQueueExt was on for some time: codes are positions in another
    file."""
    queue = choose.choice(QUEUES)
    entries = len(files_of(root, queue)) * 10
    first = choose.randrange(entries)

    def change(content: bytes) -> bytes:
        pieces = [content[at : at + 20] for at in range(0, len(content), 20)]
        for number in range(first, min(first + 5, entries)):
            if any(pieces[number]):
                address = (-(2**63) + 26 * number).to_bytes(8, signed=True)
                pieces[number] = pieces[number][:12] + address
        return b"".join(pieces)

    rewrite(root, queue, change)


def damage_a_last_entry(root: Path, choose: random.Random) -> None:
    """The upper half of an offset was on a page that was not written."""
    queue = choose.choice(QUEUES)

    def change(content: bytes) -> bytes:
        end = len(content.rstrip(b"\0")) // 20 * 20
        return content[:end] + bytes(7) + b"\1" + (99).to_bytes(4) + bytes(8) + content[end + 20 :]

    rewrite(root, queue, change)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "crashed"])
@pytest.mark.parametrize(
    "damage",
    [
        nothing,
        lose_a_queue,
        lose_a_tail,
        lose_a_file,
        skip_an_entry,
        name_ext_units,
        repeat_an_entry,
        swap_two_queues,
        damage_a_last_entry,
    ],
)
def test_the_queues_equal_a_rebuild_whatever_was_done_to_them(
    stores: tuple[dict[bool, Path], Bodies],
    tmp_path: Path,
    damage: Callable[[Path, random.Random], None],
    clean: bool,
    seed: int,
) -> None:
    choose = random.Random(f"{damage.__name__} {clean} {seed}")
    roots, everything = stores
    root = crashed_copy(roots[clean], tmp_path / "copy")
    (root / "recoveryPoint").unlink()
    damage(root, choose)
    after = recovered(settings(root))
    assert {key: after.bodies(*key) for key in QUEUES} == everything
    if damage is nothing:
        assert after.store.recovery.boundary > 4 * 4096
    after.store.close()
    assert verify_store(root) == []


def test_records_of_a_deleted_topic_are_where_reading_begins(tmp_path: Path) -> None:
    choose = random.Random(1)
    owner = filled(tmp_path, choose)
    end = owner.store.appended_end
    owner.append("C", 0, [b"gone"])
    owner.store.drop_topics("C")
    owner.append("C", 0, [b"new"])
    for _ in range(20):
        owner.append("A", 0, [bytes(2000)])
        owner.clock.time_ms += 1000
    owner.write_point()
    owner.store.close()
    (tmp_path / "recoveryPoint").unlink()
    after = recovered(settings(tmp_path))
    assert after.store.recovery.boundary == end - end % 4096
    assert after.bodies("C", 0) == [b"new"]
    after.store.close()


def test_a_log_that_was_less_durable_than_its_queues_is_read_from_where_it_was(
    tmp_path: Path,
) -> None:
    """A power cut removes the log's newest pages; by the checkpoint they were not synced."""
    choose = random.Random(2)
    owner = filled(tmp_path / "s", choose)
    owner.write_point()
    checkpoint = (tmp_path / "s/checkpoint").read_bytes()
    for _ in range(12):
        owner.append("A", 0, [bytes(1500)] * 2)
        owner.clock.time_ms += 1000
    root = crashed_copy(tmp_path / "s", tmp_path / "copy")
    lost = owner.store.appended_end // 4096 * 4096 - 5 * 4096
    owner.store.close()
    (root / "recoveryPoint").unlink()
    (root / "checkpoint").write_bytes(checkpoint)
    (root / "commitlog" / f"{lost:020d}").write_bytes(bytes(4096))
    after = recovered(settings(root))
    assert 0 < after.store.recovery.boundary < lost
    assert after.store.appended_end <= lost
    after.store.close()
    assert verify_store(root) == []
