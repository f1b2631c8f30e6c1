"""`rockoon broker config` and the same of other services: settings of running services."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import unknown
from rockoon.cli.failures import CommandError
from rockoon.cli.output import local_time, picked, print_table
from rockoon.cli.session import Work, shown

if TYPE_CHECKING:
    from rockoon.admin.live_settings import ProcessSettings, SettingValue

Node = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Only this node, with all its replicas (default: every node of the service).",
    ),
]
Name = Annotated[str, typer.Argument(metavar="SETTING", help="Name as in the service's file.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SETTING]...", show_default=False, help="Only these (default: all)."),
]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", help="For sizes also 64MiB; lists with commas.")
]


def settings_app(service: str) -> typer.Typer:
    """Return the commands for the settings of a service."""
    app = typer.Typer(
        no_args_is_help=True, help=f"Show and change the settings of every running {service}."
    )

    @app.command("get")
    @shown(show_settings, settings_json, is_incomplete)
    def get(
        names: Names = None,
        node: Node = "",
        live: Annotated[
            bool, typer.Option("--live", help="Only settings with a live value.")
        ] = False,
    ) -> "Work[Sequence[ProcessSettings]]":
        """Show values with their units and origins."""

        async def work(admin: Any) -> "Sequence[ProcessSettings]":
            found = await admin.settings.describe(service, node)
            return [selected(each, names or [], live=live) for each in found]

        return work

    @app.command("set")
    @shown(show_settings, settings_json, is_incomplete)
    def set_value(name: Name, value: Value, node: Node = "") -> "Work[Sequence[ProcessSettings]]":
        """Change a setting of running processes, without a restart; survives restarts."""

        async def work(admin: Any) -> "Sequence[ProcessSettings]":
            found = await admin.settings.set(service, name, value, node)
            return [selected(each, [name]) for each in found]

        return work

    @app.command("unset")
    @shown(show_settings, settings_json, is_incomplete)
    def unset(name: Name, node: Node = "") -> "Work[Sequence[ProcessSettings]]":
        """Remove a live value: the value of file, environment or option is in use again."""

        async def work(admin: Any) -> "Sequence[ProcessSettings]":
            found = await admin.settings.unset(service, name, node)
            return [selected(each, [name]) for each in found]

        return work

    return app


def selected(
    process: "ProcessSettings", names: Sequence[str], *, live: bool = False
) -> "ProcessSettings":
    """Return a process with some of its settings. Raises CommandError: the process has no setting
    of a name."""
    import dataclasses

    known = [each.name for each in process.settings]
    for name in names if known else ():
        if name not in known:
            raise CommandError(unknown("setting", name, known))
    chosen = [
        each
        for each in process.settings
        if (not names or each.name in names) and (not live or each.live is not None)
    ]
    return dataclasses.replace(process, settings=chosen)


def show_settings(found: "Sequence[ProcessSettings]") -> None:
    print_table(
        ("SETTING", "VALUE", "ORIGIN", "PROCESS"), setting_rows(found), empty="no such settings"
    )
    for process in found:
        if process.error is not None:
            print(f"{process.process} does not answer: {process.error}")
        for each in process.settings:
            if each.refusal:
                print(f"{process.process} does not use a live setting: {each.refusal}")


def is_incomplete(found: "Sequence[ProcessSettings]") -> bool:
    return any(each.error is not None for each in found)


def setting_rows(found: "Sequence[ProcessSettings]") -> Iterator[tuple[Any, ...]]:
    """Yield a row for each setting, or several if its values or origins differ by process."""
    answered = [each for each in found if each.error is None]
    # By setting: the processes with the same value and origin.
    processes: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for process in answered:
        for each in process.settings:
            shown_value = f"{each.value} {each.unit}".rstrip() if each.value else "-"
            processes[each.name][shown_value, origin(each)].append(process.process)
    for name, by_value in processes.items():
        for (value, where), names in by_value.items():
            same = len(names) == len(answered) > 1
            yield name, value, where, "all" if same else ", ".join(names)


def origin(setting: "SettingValue") -> str:
    live = setting.live
    if live is None:
        return setting.origin
    key = f" by access key {live.access_key}" if live.access_key else ""
    scope = f"for {live.node}" if live.node else f"for every {live.service}"
    return f"live setting {scope}, {local_time(live.changed_ms)}{key}"


def settings_json(found: "Sequence[ProcessSettings]") -> list[dict[str, Any]]:
    return [
        {
            **picked(process, "process", "node", "address", "revision"),
            "error": None if process.error is None else str(process.error),
            "settings": [
                {
                    **picked(each, "name", "value", "unit", "origin", "is_live", "doc"),
                    "refusal": each.refusal or None,
                    "live": None
                    if each.live is None
                    else picked(each.live, "node", "value", "access_key", "changed_ms"),
                }
                for each in process.settings
            ],
        }
        for process in found
    ]
