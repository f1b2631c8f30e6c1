"""Time for which a store has no work: until its next check of the disk, unless an event comes."""

from pathlib import Path

import pytest

from rockoon_broker.store.settings import Flush
from support.store_directory import FailingDisk, Owner, settings
from support.waiting import wait_until

INTERVAL_MS = 10_000


def idle_ms(owner: Owner) -> int:
    return owner.store.idle_ms(owner.clock.time_ms)


def settle(owner: Owner) -> None:
    """Tick until the store has no work."""

    def is_idle() -> bool:
        owner.clock.time_ms += 100
        while not owner.synced.empty():
            owner.store.confirm(owner.synced.get())
        owner.store.tick(owner.clock.time_ms)
        return idle_ms(owner) > 0

    wait_until(is_idle, "an idle store")


@pytest.mark.parametrize("flush", [Flush.SYNC, Flush.ASYNC])
def test_what_was_written_is_put_in_order_before_the_store_is_idle(
    tmp_path: Path, flush: Flush
) -> None:
    owner = Owner(settings(tmp_path, flush=flush, disk_check_interval_ms=INTERVAL_MS))
    settle(owner)
    owner.append("T")
    assert idle_ms(owner) == 0, "neither synced nor in a recovery point"
    settle(owner)
    assert owner.store.durable_end == owner.store.appended_end
    assert not owner.store.point_pending
    owner.store.drop_topics("T")
    assert idle_ms(owner) == 0
    settle(owner)
    assert not owner.store.removals_pending
    owner.store.close()


def test_the_disk_is_looked_at_in_time(tmp_path: Path) -> None:
    changes = {"disk_check_delay_ms": 0, "disk_check_interval_ms": INTERVAL_MS}
    owner = Owner(settings(tmp_path, **changes), FailingDisk())
    settle(owner)
    owner.store.clean(owner.clock.time_ms)
    before = owner.store.last_retention
    owner.clock.time_ms += idle_ms(owner) - 1
    owner.store.tick(owner.clock.time_ms)
    assert owner.store.last_retention is before
    assert idle_ms(owner) == 1
    owner.clock.time_ms += 1
    owner.store.tick(owner.clock.time_ms)
    assert owner.store.last_retention is not before
    assert idle_ms(owner) == INTERVAL_MS
    owner.store.close()


def test_entries_that_cannot_be_written_are_tried_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    owner = Owner(settings(tmp_path, flush=Flush.ASYNC), disk)
    settle(owner)
    disk.fail_write = lambda path, _: 5 if "consumequeue" in str(path) else 0
    owner.append("T")
    owner.write_point()
    assert idle_ms(owner) == 0
    disk.fail_write = lambda *_: 0
    settle(owner)
    assert owner.bodies() == [b"body"]
    owner.store.close()
