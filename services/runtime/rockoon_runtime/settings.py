"""Settings: one frozen dataclass per service, read once, from four sources of rising priority.

The default in the class, a TOML file (`--config`), the environment (`ROCKOON_BROKER_LISTEN`), the
command line (`--listen`). The source of each value is kept for `--print-settings`. Unknown keys are
refused in every source: a typing error never silently means the default.
"""

import argparse
import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

Settings = TypeVar("Settings")

SIZE_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class SettingsError(ValueError):
    """A setting is unknown, of the wrong type or out of bounds; the text says which and why."""


# Yields the faults of a service's settings, each with the setting, its value and the expected one.
SettingsCheck = Callable[[Any], Iterable[str]]


def faults_of(settings: Any, checks: Iterable[SettingsCheck]) -> list[str]:
    """Return the faults that checks find; a fault that several checks find is there once."""
    return [*dict.fromkeys(fault for check in checks for fault in check(settings))]


def refused_by(function: Callable[[Any], object]) -> SettingsCheck:
    """Return a check that yields the SettingsError of a function that a start calls with the
    settings."""

    def check(settings: Any) -> Iterator[str]:
        try:
            function(settings)
        except SettingsError as fault:
            yield str(fault)

    return check


def setting(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
    shared: bool = False,
    live: bool = False,
) -> Any:
    """Return a field of a settings class.

    Args:
        default: value if no source sets it.
        doc: one line for `--help` and `--print-settings`, with the unit.
        minimum: smallest number allowed.
        maximum: largest number allowed.
        choices: the only texts allowed; empty means any.
        secret: read only from the environment, so that neither `ps` nor a file in a repository
            shows it; never printed, and not part of the object's repr.
        shared: should be equal on all nodes of a cluster; when a node joins, differences of loaded
            values are reported.
        live: may change while the service runs (`live_settings`).
    """
    bounds = {
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "secret": secret,
        "shared": shared,
        "live": live,
    }
    return dataclasses.field(default=default, metadata=bounds, repr=not secret)


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded(Generic[Settings]):
    """Settings with the source of each value (field name → "default", a path, ...)."""

    value: Settings
    sources: Mapping[str, str]


def load(
    settings_class: type[Settings],
    service: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    arguments: Mapping[str, str],
) -> Loaded[Settings]:
    """Read a service's settings; see `load_all` for the arguments. Raises SettingsError: unknown
    key, wrong type, out of bounds, unreadable file."""
    loaded, faults = load_all(
        settings_class, service, file=file, environment=environment, arguments=arguments
    )
    if faults:
        raise faults[0]
    return loaded


def load_all(
    settings_class: type[Settings],
    service: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    arguments: Mapping[str, str],
) -> tuple[Loaded[Settings], list[SettingsError]]:
    """Read a service's settings, and collect the faults instead of raising the first one.

    Args:
        settings_class: a frozen dataclass whose fields were made with `setting`. Its attribute
            `REMOVED`, if present, maps the name of a removed setting to a sentence with its
            replacement.
        service: its name, for example "broker"; also the prefix of its environment variables.
        file: a TOML file, or None.
        environment: usually `os.environ`.
        arguments: field name → text, from the command line.

    Returns:
        The settings, and their faults in the order of the sources. A value with a fault is ignored.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, settings_class))}
    kinds = typing.get_type_hints(settings_class)
    removed: Mapping[str, str] = getattr(settings_class, "REMOVED", {})
    values: dict[str, Any] = {}
    sources = dict.fromkeys(fields, "default")
    prefix = f"ROCKOON_{service.upper()}_"
    faults: list[SettingsError] = []

    def set_value(name: str, raw: object, source: str) -> None:
        if name in removed:
            raise SettingsError(f"{name} (from {source}) was removed: {removed[name]}")
        if name not in fields:
            raise SettingsError(unknown(name, fields, source))
        if fields[name].metadata["secret"] and not source.startswith("environment "):
            raise SettingsError(
                f"{name} is a secret (from {source}): set it in the environment variable "
                f"{prefix}{name.upper()}"
            )
        value = convert(name, raw, kinds[name], source)
        check(name, value, fields[name].metadata, source)
        values[name], sources[name] = value, source

    def given() -> Iterator[tuple[str, object, str]]:
        """Yield name, raw value and source of each value, in rising priority."""
        if file is not None:
            try:
                in_file = read_toml(file)
            except SettingsError as fault:
                faults.append(fault)
            else:
                yield from ((name, raw, str(file)) for name, raw in in_file.items())
        for variable, raw in environment.items():
            if variable.startswith(prefix):
                yield variable.removeprefix(prefix).lower(), raw, f"environment {variable}"
        for name, raw in arguments.items():
            yield name, raw, f"--{name.replace('_', '-')}"

    for each in given():
        try:
            set_value(*each)
        except SettingsError as fault:
            faults.append(fault)
    return Loaded(settings_class(**values), sources), faults


def read_toml(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as failure:
        raise SettingsError(f"cannot read {file}: {failure.strerror}") from failure
    except ValueError as failure:
        # TOMLDecodeError, UnicodeDecodeError, or a number with too many digits.
        raise SettingsError(f"{file} is not TOML: {failure}") from failure


def unknown(name: str, fields: Mapping[str, object], source: str) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown setting {name!r} (from {source}){hint}"


def convert(name: str, raw: object, kind: Any, source: str) -> object:
    """Convert text or a TOML value to the field's type."""
    optional = isinstance(kind, types.UnionType) and type(None) in typing.get_args(kind)
    if optional:
        if raw is None or raw == "":
            return None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    try:
        if kind is bool:
            return parse_bool(raw)
        if kind is int:
            return parse_int(raw)
        if kind is float and not isinstance(raw, bool):
            return parse_float(raw)
        if kind is str and isinstance(raw, str):
            return raw
        if kind is Path and isinstance(raw, str):
            return Path(raw).expanduser()
        if typing.get_origin(kind) is tuple:
            parts = raw.split(",") if isinstance(raw, str) else typing.cast(list[str], raw)
            return tuple(str(part).strip() for part in parts if str(part).strip())
    except (TypeError, ValueError, OverflowError, RuntimeError):
        # RuntimeError: a path begins with "~" and the name of an unknown user.
        pass
    expected = getattr(kind, "__name__", str(kind))
    raise SettingsError(f"{name} = {raw!r} (from {source}) is not a valid {expected}")


def parse_bool(raw: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    word = str(raw).lower()
    if word not in words:
        raise ValueError(raw)
    return words[word]


def parse_int(raw: object) -> int:
    """Parse an integer of 64 bits, or a size such as "64MiB"."""
    match = re.fullmatch(r"\s*(-?\d+)\s*([A-Za-z]*)\s*", str(raw))
    if match is None or match[2].upper() not in SIZE_UNITS:
        raise ValueError(raw)
    number = int(match[1]) * SIZE_UNITS[match[2].upper()]
    if not INT_MIN <= number <= INT_MAX:
        raise ValueError(raw)
    return number


def parse_float(raw: object) -> float:
    number = float(typing.cast(Any, raw))
    # NaN is neither below a minimum nor above a maximum.
    if not math.isfinite(number):
        raise ValueError(raw)
    return number


def check(name: str, value: object, bounds: Mapping[str, Any], source: str) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = bounds.get("minimum"), bounds.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            between = f"between {low} and {high}" if high is not None else f"at least {low}"
            raise SettingsError(f"{name} = {value} (from {source}) must be {between}")
    choices = bounds.get("choices") or ()
    if choices and value not in choices:
        raise SettingsError(
            f"{name} = {value!r} (from {source}) must be one of {', '.join(choices)}"
        )


def command_line(
    settings_class: type[Any],
    service: str,
    description: str,
    arguments: Sequence[str] | None = None,
) -> argparse.Namespace:
    """Parse a service's command line: `--config`, `--print-settings`, `--check-settings` and a flag
    per field.
    """
    parser = argparse.ArgumentParser(
        # `--cluster-secret` would be accepted as `--cluster-secret-file`.
        allow_abbrev=False,
        prog=f"rockoon-{service}",
        description=description,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", type=Path, default=None, help="a TOML file with settings")
    parser.add_argument(
        "--print-settings", action="store_true", default=False, help="show every setting and exit"
    )
    parser.add_argument(
        "--check-settings",
        action="store_true",
        default=False,
        help="report every fault of the settings and of the files that they name, and exit with "
        "status 1 if there is one; opens no port and no store",
    )
    parser.add_argument(
        "--stop-with-parent",
        action="store_true",
        default=False,
        help="stop when standard input is closed, which happens when the parent process ends",
    )
    own = parser.add_argument_group("settings")
    for field in dataclasses.fields(settings_class):
        if field.metadata["secret"]:
            continue
        own.add_argument(
            f"--{field.name.replace('_', '-')}",
            metavar="VALUE",
            help=f"{field.metadata['doc']} (default: {field.default})".replace("%", "%%"),
        )
    return parser.parse_args(arguments)


def render(loaded: Loaded[Any]) -> str:
    """Return all settings as a TOML file, with the source of each value in a comment."""
    lines = []
    for field in dataclasses.fields(loaded.value):
        value = getattr(loaded.value, field.name)
        if field.metadata["secret"]:
            lines.append(f"# {field.name} is a secret ({loaded.sources[field.name]})")
            continue
        lines.append(f"# {field.metadata['doc']} ({loaded.sources[field.name]})")
        lines.append(
            f"{field.name} = {toml_text(value)}" if value is not None else f"# {field.name} ="
        )
    return "\n".join(lines)


def shared_settings(settings: Any) -> dict[str, str]:
    """Return the settings that should be equal on all nodes: name to value, in TOML."""
    return {
        field.name: toml_text(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.metadata["shared"]
    }


def toml_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_text(part) for part in value) + "]"
    if isinstance(value, str | Path):
        text = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'
    return str(value)
