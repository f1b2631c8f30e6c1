"""Command line options and output of the settings in `GROUP_SETTINGS`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_duration
from rockoon.cli.output import duration
from rockoon_core.group_settings import GROUP_SETTINGS, GroupSetting, Value

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

RETRY_DELAYS = "retry_delays_ms"

Settings = Mapping[str, Value | list[int]]
"""Values of GroupConfig fields that the command line sets, by field name."""


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `settings` of a command by one option for each setting.

    Args:
        command: its parameters from `settings` on are keyword-only.
    """

    @functools.wraps(command)
    def called(**options: Any) -> None:
        chosen = [(row, options.pop(row.name)) for row in GROUP_SETTINGS]
        settings: dict[str, Value | list[int]] = {
            row.name: wire(row, value) for row, value in chosen if value is not None
        }
        if (delays := options.pop(RETRY_DELAYS)) is not None:
            settings[RETRY_DELAYS] = parse_delays(delays)
        command(**options, settings=settings)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command).parameters.values():
        parameters += SETTINGS if own.name == "settings" else [own]
    # Both are replaced, because typer may read the parameters from either.
    called.__dict__["__signature__"] = inspect.Signature(parameters)
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def parameter(row: GroupSetting) -> inspect.Parameter:
    if row.words:
        option = typer.Option(row.option, metavar="|".join(row.words), help=row.help)
        annotation: Any = Annotated[str | None, option]
    else:
        option = typer.Option(row.option, metavar="N", help=row.help, min=0, max=row.maximum)
        annotation = Annotated[int | None, option]
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def retry_delays_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--retry-delays",
        metavar="10s,30s,...|default",
        help="Delays before redeliveries to receivers; the last one repeats.",
    )
    return inspect.Parameter(
        RETRY_DELAYS,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


SETTINGS = (*map(parameter, GROUP_SETTINGS), retry_delays_parameter())


def parse_delays(text: str) -> list[int]:
    """Return the milliseconds of "10s,30s,1m"; empty for "default".

    Raises:
        typer.BadParameter: a part is not a duration.
    """
    return [] if text == "default" else [parse_duration(each) for each in text.split(",")]


def delays_text(config: "GroupConfig") -> str | None:
    """Return the delays before redeliveries as text; None for RocketMQ's default delays."""
    return " ".join(str(duration(each)) for each in config.retry_delays_ms) or None


def wire(row: GroupSetting, value: Value) -> Value:
    """Return the value of the GroupConfig field for an option's value.

    Raises:
        typer.BadParameter: the value is not one of the setting's words.
    """
    if not row.words:
        return value
    if value not in row.words:
        raise typer.BadParameter(
            f"{value!r} is not one of {', '.join(row.words)}", param_hint=row.option
        )
    return row.words[str(value)]


def settings_text(config: "GroupConfig") -> str:
    """Return the settings that the group sets, separated by commas; empty if there are none."""
    values = [(each.option[2:], each.get(config)) for each in GROUP_SETTINGS]
    values.append(("retry-delays", delays_text(config)))
    return ", ".join(f"{name} {value}" for name, value in values if value is not None)


def settings_json(config: "GroupConfig") -> dict[str, Value | None]:
    """Return effective settings by field; None if the cluster's settings decide."""
    values = [(row, row.get(config)) for row in GROUP_SETTINGS]
    return {row.name: row.default if value is None else value for row, value in values}
