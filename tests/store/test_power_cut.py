"""The power goes at any moment, again and again: what was acknowledged is there afterwards."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.store.verify import verify_store
from support.seeds import seeds
from support.store_directory import Owner, PowerCutDisk, recovered, settings

Key = tuple[str, int]


class Journal:
    """What was appended and what of it was acknowledged, queue by queue."""

    def __init__(self) -> None:
        self.appended: dict[Key, list[bytes]] = {}
        self.acknowledged: dict[Key, int] = {}

    def check(self, owner: Owner) -> None:
        """Every queue holds all that was acknowledged, and nothing that was never appended."""
        for key, bodies in self.appended.items():
            found = owner.bodies(*key)
            assert found == bodies[: len(found)], key
            assert len(found) >= self.acknowledged.get(key, 0), key
            self.appended[key] = found


def run_until_cut(
    configured: StoreSettings, target: Path, journal: Journal, choose: random.Random
) -> None:
    """Append, confirm and tick at random, and cut the power in the middle of it."""
    disk = PowerCutDisk(configured.root)
    owner = Owner(configured, disk)
    journal.check(owner)
    number = 0
    for _ in range(choose.randrange(5, 40)):
        waiting = []
        for _ in range(choose.randrange(1, 4)):
            key = (choose.choice("AB"), choose.randrange(2))
            number += 1
            bodies = [b"%d" % number + bytes(choose.randrange(250))] * choose.randrange(1, 4)
            waiting.append((key, owner.append(*key, bodies)))
            journal.appended.setdefault(key, []).extend(bodies)
        if choose.random() < 0.7 and configured.flush is Flush.SYNC:
            owner.confirm(waiting[-1][1].end_offset)
            for key, bodies in journal.appended.items():
                journal.acknowledged[key] = len(bodies)
        owner.clock.time_ms += 600
        owner.store.tick(owner.clock.time_ms)
    disk.cut(target, choose)
    owner.store.close()


@pytest.mark.parametrize("flush", [Flush.SYNC, Flush.ASYNC])
@pytest.mark.parametrize("seed", seeds(12))
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: Flush, seed: int) -> None:
    choose = random.Random(seed)
    journal = Journal()
    root = tmp_path / "0"
    root.mkdir()
    configured = settings(root, flush=flush, commit_log_file_bytes=choose.choice([2048, 8192]))
    for generation in range(1, 4):
        target = tmp_path / str(generation)
        run_until_cut(configured, target, journal, choose)
        configured = replace(configured, root=target)
    last = recovered(configured)
    journal.check(last)
    assert last.store.recovery.reason in ("recovery point", "clean stop"), last.store.recovery
    last.store.close()
    assert verify_store(configured.root) == []
