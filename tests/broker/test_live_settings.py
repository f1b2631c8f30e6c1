"""A running broker whose settings change: each part uses the new values."""

import operator
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.broker import Broker
from rockoon_broker.clock import SystemClock
from rockoon_broker.settings import BrokerSettings
from rockoon_core.disk import Disk
from rockoon_node.nameservers import Nameservers
from rockoon_runtime.frontend import ConnectionSettings
from rockoon_runtime.live_settings import live_names
from rockoon_runtime.telemetry.telemetry import TelemetrySettings
from support.broker import settings_of

# Applied by Frontend; tests/cluster/test_live_settings.py tests it.
OF_EVERY_SERVICE = {*live_names(ConnectionSettings), *live_names(TelemetrySettings)}
# The first is read at each use; tests/cluster/test_drain.py tests the other.
OTHERS = {"copy_away_seconds_max", "drained"}
# New value of each other live setting, and the part that uses it.
USED: dict[str, tuple[Any, str]] = {
    "reserved_hours": (1.0, "pending.delays.delivery._reserved_ms"),
    "delete_when": ("05", "store._cleaner._rules.delete_hours"),
    "disk_used_percent_max": (70, "store._cleaner._rules.used_percent_max"),
    "disk_forced_percent": (80, "store._cleaner._rules.forced_percent"),
    "disk_full_percent": (95, "compaction.uploads.used_percent_max"),
    "disk_reserve_percent": (3, "store._cleaner._rules.reserve_percent"),
    "disk_pressure_policy": ("delete", "store._cleaner._rules.deletes_unread"),
    "retention_wait_for_groups": (("g",), "unread.waited_groups"),
    "retention_wait_bytes_max": (7, "store._cleaner._rules.wait_bytes_max"),
    "disk_check_interval_ms": (9_000, "store._dues.settings.disk_check_interval_ms"),
    "unsynced_bytes_max": (8192, "store.settings.unsynced_bytes_max"),
    "body_bytes_max": (1000, "store._appender._record_limits"),
    "properties_bytes_max": (1000, "appends._limits.properties_bytes_max"),
    "batch_bytes_max": (5000, "appends._batch_bytes_max"),
    "batch_messages_max": (10, "appends._lengths_bytes_max"),
    "delay_seconds_max": (60, "pending.delays._rules.delay_seconds_max"),
    "delayed_messages_max": (10, "pending.delays.pending_max"),
    "transaction_timeout_ms": (1, "pending.transactions._book._rules.timeout_seconds"),
    "transaction_check_interval_ms": (1, "pending.transactions._book._rules.interval_seconds"),
    "transaction_checks_max": (3, "pending.transactions._book._rules.checks_max"),
    "transactions_pending_max": (9, "pending.transactions.pending_max"),
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = settings_of(tmp_path, ["127.0.0.1:1"], disk_forced_percent=90)
    nameservers = Nameservers(settings.nameservers, settings.cluster)
    opened = await Broker.open(
        settings,
        ("127.0.0.1", 1),
        nameservers,
        clock=SystemClock(),
        disk=Disk(),
        on_failed=pytest.fail,
    )
    yield opened
    opened.store.close()
    await nameservers.close()


def test_each_live_setting_has_a_part_that_uses_it() -> None:
    assert set(live_names(BrokerSettings)) == OF_EVERY_SERVICE | OTHERS | USED.keys()


async def test_the_parts_of_an_open_broker_use_new_values_and_then_the_former_ones(
    broker: Broker,
) -> None:
    loaded = broker.settings
    for name, (value, part) in USED.items():
        used: Callable[[Broker], Any] = operator.attrgetter(part)
        before = used(broker)
        broker.use_settings(replace(loaded, **{name: value}))
        assert used(broker) != before, name
        broker.use_settings(loaded)
        assert used(broker) == before, name


async def test_a_shorter_retention_deletes_files_later_than_a_lower_mark(broker: Broker) -> None:
    """Delayed messages in files that expire earlier are stored again before."""
    store, now_ms = broker.store, broker.appends.store_clock.now_ms()
    broker.use_settings(replace(broker.settings, disk_full_percent=95))
    assert store._dues.disk_check_ms <= now_ms + 1000
    broker.use_settings(replace(broker.settings, reserved_hours=1.0))
    assert store._dues.disk_check_ms >= now_ms + store.settings.disk_check_delay_ms
