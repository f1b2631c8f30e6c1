"""Followers that are ready to lead: their derived state equals that of a rebuild."""

import asyncio
import errno
import random
from collections import defaultdict
from pathlib import Path

import pytest

from rockoon_broker.index.directory import IndexDirectory, IndexShape
from rockoon_broker.index.follower import IndexFollower
from rockoon_broker.transactions.ends import TransactionEnding
from rockoon_core.disk import Disk
from rockoon_runtime.waking import Bell
from support.aside_desk import TwoClocks
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS
from support.warm_copies import WarmCopy


async def test_a_follower_that_takes_over_reads_no_more_than_what_was_committed_last(
    tmp_path: Path,
) -> None:
    clock = TwoClocks()
    leader, follower = WarmCopy(tmp_path / "a", clock), WarmCopy(tmp_path / "b", clock)
    leader.derived.lead()
    leader.store.open_epoch(1, "a", clock.wall_ms)
    for number in range(50):
        await leader.send(1, 2 * number, b"one", b"two")
        await leader.delay(b"later", 3600)
        await leader.begin(b"half %d" % number)
        leader.commit_all()
        follower.copy_from(leader, 1 << 20)
        follower.commit(follower.store.appended_end)
    assert follower.derived.known() == follower.rebuilt()
    await leader.send(1, 100, b"the last", b"of all")
    follower.copy_from(leader, 1 << 20)
    follower.store.confirm(follower.store.appended_end)
    assert follower.derived.lead() == 2
    waiting = follower.derived.aside
    assert (len(waiting.delays), len(waiting.transactions)) == (50, 50)
    # The half messages were not read again either.
    assert waiting.transactions._halves._facts_ahead == {}
    # A repeat is found, and the next batch is accepted.
    assert (await follower.send(1, 100, b"the last", b"of all")).runs[0].first_sequence == 100
    assert (await follower.send(1, 102, b"next")).runs[0].messages == 1
    for copy in (leader, follower):
        copy.store.close()


async def test_a_follower_whose_clock_has_jumped_by_days_gives_up_no_open_transaction(
    tmp_path: Path,
) -> None:
    clock, wrong = TwoClocks(), TwoClocks()
    leader, follower = WarmCopy(tmp_path / "a", clock), WarmCopy(tmp_path / "b", wrong)
    leader.derived.lead()
    await leader.begin(b"open")
    await leader.send(1, 0, b"one")
    leader.commit_all()
    follower.copy_from(leader, 1 << 20)
    follower.commit(follower.store.appended_end)
    wrong.wall_ms += 10 * 86_400_000
    follower.derived.lead()
    (half,) = follower.derived.aside.transactions._book
    assert half.abandon_at - wrong.monotonic_seconds() > 1000
    # The idempotent producer is not lost either.
    assert (await follower.send(1, 1, b"two")).runs[0].messages == 1
    for copy in (leader, follower):
        copy.store.close()


async def test_what_was_copied_a_moment_ago_is_applied_as_it_was_checked(tmp_path: Path) -> None:
    clock = TwoClocks()
    leader, follower = WarmCopy(tmp_path / "a", clock), WarmCopy(tmp_path / "b", clock)
    leader.derived.lead()
    for number in range(4):
        await leader.send(1, 3 * number, b"one", b"two", b"three")
    middle = leader.store.appended_end
    await leader.send(1, 12, b"the last")
    follower.copy_from(leader, middle)
    follower.copy_from(leader, 1 << 20)
    at = follower.store.log_min_offset
    # Committed in part: the rest is not seen.
    follower.store.confirm(middle - 1)
    seen = follower.store.next_chunk(at, 1 << 20)
    assert (seen.checked, seen.next_offset < middle) == (False, True)
    follower.store.confirm(follower.store.appended_end)
    assert follower.store.next_chunk(seen.next_offset, 1 << 20).next_offset == middle
    assert follower.store.next_chunk(middle, 1 << 20).checked
    follower.derived.follow()
    assert follower.derived.known() == follower.rebuilt()
    for copy in (leader, follower):
        copy.store.close()


async def test_what_was_copied_a_moment_ago_is_indexed_without_the_disk(tmp_path: Path) -> None:
    clock = TwoClocks()
    leader, follower = WarmCopy(tmp_path / "a", clock), WarmCopy(tmp_path / "b", clock)
    leader.derived.lead()
    for number in range(9):
        await leader.begin(b"half %d" % number)
        follower.copy_from(leader, 1 << 20)
        # Applied before it is indexed, which waits longer.
        follower.commit(follower.store.appended_end)
    follower.disk.fail_read = lambda path: errno.EIO if path.parent.name == "commitlog" else 0
    directory = IndexDirectory(tmp_path / "b", IndexShape(slots=50, units=64), Disk())
    index = IndexFollower(follower.store, directory, clock, Bell())
    async with asyncio.TaskGroup() as tasks:
        indexing = tasks.create_task(index.run())
        end = await index.wait_caught_up(DEADLINE_SECONDS)
        indexing.cancel()
    assert index.end_offset == end == follower.store.appended_end
    assert index.index is not None
    assert index.index.until_ms == clock.wall_ms
    follower.store.forget_copied(end)
    assert follower.store.next_chunk(end, 1 << 20).records.count == 0
    index.close()
    for copy in (leader, follower):
        copy.store.close()


@pytest.mark.parametrize("seed", seeds(2))
async def test_what_a_follower_knows_equals_a_rebuild_after_each_step_and_promises_are_kept(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    clock = TwoClocks()
    leader, follower = WarmCopy(tmp_path / "a", clock), WarmCopy(tmp_path / "b", clock)
    leader.derived.lead()
    leader.store.open_epoch(1, "a", clock.wall_ms)
    sent: dict[int, list[list[bytes]]] = defaultdict(list)
    delayed: list[bytes] = []
    halves: dict[bytes, tuple[int, int]] = {}
    ended: dict[bytes, tuple[TransactionEnding, tuple[int, int], object]] = {}

    async def act() -> None:
        what = choose.randrange(6)
        if what == 0:
            producer = choose.randrange(1, 4)
            first = sum(map(len, sent[producer]))
            sent[producer].append([b"%d" % each for each in range(choose.randrange(1, 5))])
            await leader.send(producer, first, *sent[producer][-1])
        elif what == 1:
            delayed.append(b"delayed %d" % len(delayed))
            await leader.delay(delayed[-1], choose.choice((60, 600, 3000)))
        elif what == 2:
            body = b"half %d" % (len(halves) + len(ended))
            halves[body] = await leader.begin(body)
        elif what == 3 and halves:
            body = choose.choice(list(halves))
            half = halves.pop(body)
            ending = choose.choice((TransactionEnding.COMMITTED, TransactionEnding.ROLLED_BACK))
            leader.commit_all()
            ended[body] = ending, half, await leader.end(half, ending)
        elif what == 4:
            clock.pass_ms(choose.randrange(400_000))
            await leader.deliver()
        leader.commit_all()

    def follow() -> None:
        what = choose.randrange(12)
        if what == 0:
            follower.write_snapshots()
        elif what == 1:
            follower.cut()
        elif what == 2:
            follower.store.close()
            follower.open()
        else:
            follower.copy_from(leader, choose.choice((700, 5000, 1 << 20)))
            committed = follower.store.committed_end
            ends = [committed, follower.store.appended_end]
            follower.commit(choose.choice(ends))
        follower.derived.follow(bytes_max=choose.choice((1, 3000, 1 << 20)))
        assert follower.derived.known() == follower.rebuilt()

    for _ in range(50):
        await act()
        follow()
    while follower.store.appended_end < leader.store.appended_end:
        follower.copy_from(leader, 1 << 20)
    leader.store.close()
    follower.commit(follower.store.appended_end)
    follower.derived.lead()
    assert len(follower.derived.aside.transactions) == len(halves)
    for body, (ending, half, outcome) in ended.items():
        # A caller whose reply was lost asks the next leader.
        assert await follower.end(half, ending) == outcome, body
    for half in halves.values():
        await follower.end(half, TransactionEnding.COMMITTED)
    for _ in range(10):
        clock.pass_ms(400_000)
        await follower.deliver()
    stored = follower.bodies()
    committed = [
        body for body, (ending, *_) in ended.items() if ending is TransactionEnding.COMMITTED
    ]
    expected = sorted([*delayed, *halves, *committed])
    assert sorted(body for body in stored if not body.isdigit()) == expected
    # A sender whose reply was lost asks the next leader too.
    for producer, batches in sent.items():
        first = sum(map(len, batches[:-1]))
        await follower.send(producer, first, *batches[-1])
    assert follower.bodies() == stored
    follower.store.close()
