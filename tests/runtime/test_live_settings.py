"""Live settings of one process: accepted and refused values, and notified listeners."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rockoon_proto.v1.settings_pb2 import LiveSetting
from rockoon_runtime.live_settings import LiveSettings, unit_of
from rockoon_runtime.settings import SettingsError, setting


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Settings with two marks, the first at most the second."""

    forced_percent: int = setting(50, "a mark, %", minimum=1, maximum=100, live=True)
    full_percent: int = setting(60, "another mark, %", minimum=1, maximum=100, live=True)
    groups: tuple[str, ...] = setting((), "names", live=True)
    policy: str = setting("refuse", "a choice", choices=("refuse", "delete"), live=True)
    listen: str = setting("127.0.0.1:1", "an address")
    password: str = setting("", "a secret", secret=True)

    def check(self) -> None:
        if self.forced_percent > self.full_percent:
            raise SettingsError("forced_percent must not be above full_percent")


def live(name: str, value: str, node: str = "") -> LiveSetting:
    return LiveSetting(service="broker", node=node, name=name, value=value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("full_procent", "70", "did you mean 'full_percent'"),
        ("full_percent", "seventy", "'seventy' .* is not a valid int"),
        ("full_percent", "101", "must be between 1 and 100"),
        ("full_percent", "40", "forced_percent must not be above full_percent"),
        ("policy", "delet", "must be one of refuse, delete"),
        ("listen", "127.0.0.1:2", "listen cannot change while the service runs"),
        ("password", "x", "password cannot change while the service runs"),
        ("groups", "x" * 5000, "longer than 4096"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, expected: str) -> None:
    settings = LiveSettings(Marks())
    with pytest.raises(SettingsError, match=expected):
        settings.check(name, value)


def test_a_nodes_own_value_is_stronger_and_a_removed_one_restores_the_loaded_value() -> None:
    settings, seen = LiveSettings(Marks(full_percent=65)), []
    settings.follow(lambda now: seen.append(now.full_percent), settings.loaded)
    settings.replace([live("full_percent", "80", "broker-a"), live("full_percent", "70")], 3)
    settings.replace([live("full_percent", "70")], 4)
    settings.replace([live("full_percent", "70")], 5)
    settings.replace([], 6)
    assert seen == [80, 70, 65]
    assert settings.revision == 6
    assert settings.current == settings.loaded


@pytest.mark.parametrize("order", [list, reversed])
def test_values_that_are_only_valid_together_are_used(order: Callable[..., list[str]]) -> None:
    """Whatever their order: both are above the loaded mark of 60 %."""
    names = order(["forced_percent", "full_percent"])
    settings = LiveSettings(Marks())
    settings.replace([live(name, "90") for name in names], 1)
    assert (settings.current.forced_percent, settings.current.full_percent) == (90, 90)


def test_a_stored_value_that_cannot_be_used_is_reported_and_the_others_are_used() -> None:
    settings = LiveSettings(Marks())
    settings.replace([live("forced_percent", "99"), live("gone", "1"), live("groups", "a,b")], 7)
    assert settings.current == Marks(groups=("a", "b"))
    states = {state.name: state for state in settings.states()}
    assert "above full_percent" in states["forced_percent"].refusal
    assert not states["forced_percent"].HasField("live")
    assert states["groups"].live.value == "a,b"
    assert "password" not in states


def test_a_stored_setting_of_another_version_can_be_removed() -> None:
    settings = LiveSettings(Marks())
    settings.replace([live("gone", "1")], 7)
    settings.check_removal("gone")
    settings.replace([], 8)
    with pytest.raises(SettingsError, match="unknown setting 'gone'"):
        settings.check_removal("gone")


def test_a_part_that_registers_late_gets_a_change_that_it_does_not_know() -> None:
    settings, seen = LiveSettings(Marks()), []
    known = settings.current
    settings.replace([live("full_percent", "70")], 1)
    end = settings.follow(lambda now: seen.append(now.full_percent), known)
    end()
    settings.replace([], 2)
    assert seen == [70]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("body_bytes_max", "bytes"),
        ("calm_seconds", "s"),
        ("reserved_hours", "h"),
        ("disk_full_percent", "%"),
        ("resets_per_second", "per second"),
        ("scrub_bytes_per_second", "bytes/s"),
        ("flush_interval_ms", "ms"),
        ("delete_when", ""),
    ],
)
def test_a_settings_name_states_its_unit(name: str, unit: str) -> None:
    assert unit_of(name) == unit
