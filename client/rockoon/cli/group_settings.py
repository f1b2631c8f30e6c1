"""Options for a consumer group's settings, and the text of what is set, by the one table."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon_core.group_settings import GROUP_SETTINGS, GroupSetting, Value

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

Settings = Mapping[str, Value]
"""What was given, as values of GroupConfig's fields."""


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting, in the place of its parameter `settings`.

    Args:
        command: its parameters from `settings` on are by name only.
    """

    @functools.wraps(command)
    def called(**given: Any) -> None:
        said = [(row, given.pop(row.name)) for row in GROUP_SETTINGS]
        settings = {row.name: wire(row, value) for row, value in said if value is not None}
        command(**given, settings=settings)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command).parameters.values():
        parameters += map(parameter, GROUP_SETTINGS) if own.name == "settings" else [own]
    # Of both, one is what typer looks at first.
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


def wire(row: GroupSetting, given: Value) -> Value:
    """The field's value.

    Raises:
        typer.BadParameter: it is none of the setting's words.
    """
    if not row.words:
        return given
    if given not in row.words:
        raise typer.BadParameter(
            f"{given!r} is none of {', '.join(row.words)}", param_hint=row.option
        )
    return row.words[str(given)]


def settings_text(config: "GroupConfig") -> str:
    """What is set, with commas; empty when nothing is."""
    told = ((each, each.get(config)) for each in GROUP_SETTINGS)
    return ", ".join(f"{row.option[2:]} {value}" for row, value in told if value is not None)


def settings_json(config: "GroupConfig") -> dict[str, Value | None]:
    """What holds, by field; None where the cluster's settings say it."""
    told = [(row, row.get(config)) for row in GROUP_SETTINGS]
    return {row.name: row.default if value is None else value for row, value in told}
