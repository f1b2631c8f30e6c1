"""Live settings: values that replace loaded settings while the service runs.

Only fields that were made with `setting(..., live=True)` can change. Parts of a service register
with `LiveSettings.follow` and are called with the new settings after each change.
"""

import asyncio
import contextlib
import dataclasses
import logging
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rockoon_proto.v1.settings_pb2 import LiveSetting, SettingState
from rockoon_runtime.settings import SettingsError, check, convert, toml_text, unknown

Settings = TypeVar("Settings")

log = logging.getLogger(__name__)

VALUE_CHARACTERS_MAX = 4096
# Unit by the end of a setting's name, the longest ending first.
UNITS = (
    ("_bytes_per_second", "bytes/s"),
    ("_per_second", "per second"),
    ("_bytes", "bytes"),
    ("_seconds", "s"),
    ("_ms", "ms"),
    ("_hours", "h"),
    ("_days", "days"),
    ("_percent", "%"),
)


def unit_of(name: str) -> str:
    """Return the unit of a setting, from its name; empty if it has none."""
    plain = name.removesuffix("_max")
    return next((unit for ending, unit in UNITS if plain.endswith(ending)), "")


class LiveSettings(Generic[Settings]):
    """Settings of a running service: the loaded ones, and the live settings in their place.

    Args:
        loaded: settings from the file, the environment and the options.

    Attributes:
        current: the settings in use.
        stored: the live settings, also those that cannot be used.
        revision: etcd's revision of them; 0 before the first.
    """

    def __init__(self, loaded: Settings) -> None:
        self.loaded = loaded
        self.current = loaded
        self.stored: list[LiveSetting] = []
        self.revision = 0
        # Set, and replaced by a new event, when `revision` changes.
        self._replaced = asyncio.Event()
        self._followers: list[Callable[[Settings], None]] = []
        self._in_use: dict[str, LiveSetting] = {}
        self._refused: dict[str, tuple[LiveSetting, str]] = {}

    def follow(self, use: Callable[[Settings], None], known: Settings) -> Callable[[], None]:
        """Call a function with the settings in use after each change; now too, if they are not the
        settings that the caller knows.

        Returns:
            A function that ends this.
        """
        self._followers.append(use)
        if self.current is not known:
            use(self.current)
        return lambda: self._followers.remove(use)

    def check(self, name: str, value: str, source: str = "a live setting") -> None:
        """Check that a live setting can be used with the present settings.

        Raises:
            SettingsError: the setting is unknown, cannot change in a running service, or has a
                wrong type or a value out of bounds.
        """
        changed(self.current, {name: value}, source)

    def check_removal(self, name: str) -> None:
        """Check that a live setting can be removed, also one of another version that is stored.
        Raises SettingsError: the setting is unknown, or cannot change in a running service."""
        if all(each.name != name for each in self.stored):
            live_field(self.loaded, name, "a live setting")

    def replace(self, stored: Iterable[LiveSetting], revision: int) -> None:
        """Use these live settings instead of the former ones. A setting that cannot be used is
        logged, and the loaded value stays in use.

        Args:
            stored: live settings of the node, and of all nodes (without `node`). If both have a
                name, the value of the node is used.
            revision: etcd's revision of these settings.
        """
        self.stored = sorted(stored, key=lambda each: (bool(each.node), each.name))
        before, self._refused = self.current, {}
        self.current, self._in_use = self._with({each.name: each for each in self.stored})
        self.revision = revision
        self._replaced.set()
        self._replaced = asyncio.Event()
        if self.current != before:
            for name, (old, new) in differences(before, self.current).items():
                log.info("setting %s is %s now; it was %s", name, new, old)
            for use in tuple(self._followers):
                use(self.current)

    async def wait_revision(self, revision: int, seconds: float) -> None:
        """Wait until live settings of a revision are applied, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    await self._replaced.wait()

    def _with(self, stored: Mapping[str, LiveSetting]) -> tuple[Settings, dict[str, LiveSetting]]:
        """Return the settings with these live settings, and the live settings in use."""
        used: dict[str, LiveSetting] = {}
        settings, left = self.loaded, dict(stored)
        # One value may only be valid together with another: repeat while values are accepted.
        while left:
            refused: dict[str, tuple[LiveSetting, str]] = {}
            for name, each in left.items():
                try:
                    settings = changed(settings, {name: each.value}, source_of(each))
                    used[name] = each
                except SettingsError as failure:
                    refused[name] = each, str(failure)
            if len(refused) == len(left):
                self._refused = refused
                for name, (_, reason) in refused.items():
                    log.error("%s; the loaded value of %s stays in use", reason, name)
                break
            left = {name: each for name, (each, _) in refused.items()}
        return settings, used

    def states(self) -> Iterator[SettingState]:
        """Yield the state of each setting, without secrets."""
        sources: Mapping[str, str] = getattr(self.loaded, "sources", {})
        for field in dataclasses.fields(typing.cast(Any, self.loaded)):
            if field.metadata["secret"]:
                continue
            name, value = field.name, getattr(self.current, field.name)
            is_default = getattr(self.loaded, name) == field.default
            refused, reason = self._refused.get(name, (None, ""))
            yield SettingState(
                name=name,
                value="" if value is None else toml_text(value),
                unit=unit_of(name),
                source=sources.get(name, "default" if is_default else "program"),
                doc=field.metadata["doc"],
                is_live=field.metadata["live"],
                live=self._in_use.get(name),
                refusal="" if refused is None else reason,
            )


def source_of(setting: LiveSetting) -> str:
    """Return the source of a live setting for error texts."""
    scope = setting.node or f"all nodes of service {setting.service!r}"
    return f"the live setting of {scope}"


def live_field(settings: object, name: str, source: str) -> "dataclasses.Field[Any]":
    """Return the field of a live setting. Raises SettingsError."""
    fields = {each.name: each for each in dataclasses.fields(typing.cast(Any, settings))}
    if name not in fields:
        live = {each: field for each, field in fields.items() if field.metadata["live"]}
        raise SettingsError(unknown(name, live, source))
    if not fields[name].metadata["live"]:
        raise SettingsError(
            f"{name} cannot change while the service runs: set it in the service's file, "
            "environment or options, and restart the service"
        )
    return fields[name]


def changed(settings: Settings, values: Mapping[str, str], source: str) -> Settings:
    """Return settings with other values. Raises SettingsError."""
    kinds = typing.get_type_hints(type(settings))
    converted = {}
    for name, text in values.items():
        field = live_field(settings, name, source)
        if len(text) > VALUE_CHARACTERS_MAX:
            raise SettingsError(f"{name} (from {source}) is longer than {VALUE_CHARACTERS_MAX}")
        converted[name] = convert(name, text, kinds[name], source)
        check(name, converted[name], field.metadata, source)
    result: Settings = dataclasses.replace(typing.cast(Any, settings), **converted)
    check_together(result)
    return result


def check_together(settings: object) -> None:
    """Run the check of a settings class over several fields, if it has one. Raises
    SettingsError."""
    own_check = getattr(settings, "check", None)
    if own_check is not None:
        own_check()


def differences(before: object, after: object) -> dict[str, tuple[str, str]]:
    """Return the fields that differ: name → values in TOML."""
    return {
        field.name: (toml_text(getattr(before, field.name)), toml_text(getattr(after, field.name)))
        for field in dataclasses.fields(typing.cast(Any, before))
        if getattr(before, field.name) != getattr(after, field.name)
    }


def live_names(settings_class: type[Any]) -> Sequence[str]:
    """Return the names of the settings that can change while the service runs."""
    return [each.name for each in dataclasses.fields(settings_class) if each.metadata["live"]]
