"""`rockoon upgrade`: ends an upgrade of the cluster."""

from typing import TYPE_CHECKING

import typer

from rockoon.cli.session import Yes, confirm, shown

if TYPE_CHECKING:
    from rockoon.cli.session import Work

app = typer.Typer(no_args_is_help=True, help="End an upgrade of the cluster.")


@app.callback()
def group() -> None:
    """End an upgrade of the cluster."""


def show_level(level: int) -> None:
    print(f"feature level {level}: services of former versions are refused from now on")


@app.command()
@shown(show_level, lambda level: {"level": level})
def finish(yes: Yes = False) -> "Work[int]":
    """Switch on what former versions cannot read, after the last service was upgraded."""
    confirm("Finish the upgrade? Former versions of the services cannot start after that.", yes=yes)
    return lambda admin: admin.finish_upgrade()
