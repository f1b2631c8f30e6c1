"""`rockoon apply`: makes topics, groups, access keys and live settings equal to files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rockoon.cli.failures import FAILED, CommandError, complain
from rockoon.cli.output import counted, picked, print_json
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster

if TYPE_CHECKING:
    from rockoon.cli.resources.plan import ResourceChange
    from rockoon.cluster import Cluster

DRIFT = 2

ResourceFiles = Annotated[
    list[Path],
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="YAML or JSON file, or a directory of such files. Repeatable.",
    ),
]
OnlyPlan = Annotated[
    bool, typer.Option("--plan", help="Only show the changes; exit status 2 if there are any.")
]
Prune = Annotated[
    bool,
    typer.Option("--prune", help="Delete objects of the files' owner that are not in the files."),
]
DeleteMessages = Annotated[
    bool, typer.Option("--delete-messages", help="Let --prune delete topics that have messages.")
]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Also change objects that belong to another owner.")
]


class ApplyCommand(TyperCommand):
    """A command whose usage errors have exit status 1, because 2 means drift."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as failure:
            # typer does not export the base of its usage errors. `--help` raises another exception.
            if hasattr(failure, "format_message") and hasattr(failure, "exit_code"):
                usage_error: Any = failure
                usage_error.exit_code = FAILED
            raise


def apply(
    files: ResourceFiles,
    only_plan: OnlyPlan = False,
    prune: Prune = False,
    delete_messages: DeleteMessages = False,
    adopt: Adopt = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Make topics, groups, access keys and live settings equal to files.

    Exit status: 0: the cluster equals the files. 1: an error; the text has the changes made.
    2: with --plan, there are changes to make.
    """
    import asyncio

    from rockoon.cli.resources import cluster_state
    from rockoon.cli.resources.fields import resources_of
    from rockoon.cli.resources.files import read_files
    from rockoon.cli.resources.plan import Options

    resources = resources_of(read_files(files))
    cluster_state.refuse(resources.faults)
    if prune and not resources.owner:
        raise CommandError("--prune needs `owner: NAME` at the top of a file")
    options = Options(prune=prune, delete_messages=delete_messages, adopt=adopt)

    def report(change: "ResourceChange") -> None:
        if not as_json:
            print(change, flush=True)

    async def work(cluster: "Cluster") -> "list[ResourceChange]":
        if not only_plan:
            try:
                return await cluster_state.apply(cluster, resources, options, report)
            except asyncio.CancelledError:
                complain("interrupted: the next run makes the changes that are left")
                raise
        changes = (await cluster_state.plan(cluster, resources, options)).changes
        for each in changes:
            report(each)
        return changes

    changes = with_cluster(nameservers, work)
    if as_json:
        shown = [picked(each, "action", "kind", "name", "details") for each in changes]
        print_json({"applied": not only_plan, "changes": shown})
    else:
        print(f"{counted(len(changes), 'change')}{' to make' if only_plan else ' made'}")
    raise typer.Exit(DRIFT if only_plan and changes else 0)
