"""What every command that talks to a cluster does first."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rockoon.cli.failures import CommandError

if TYPE_CHECKING:
    from rockoon.connection import Cluster

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
CONNECT_SECONDS_MAX = 2.0

Result = TypeVar("Result")

Nameservers = Annotated[
    str,
    typer.Option(
        "--nameservers",
        envvar="ROCKOON_NAMESERVERS",
        metavar="HOST:PORT,...",
        help="Where the cluster is.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def with_cluster(nameservers: str, work: Callable[["Cluster"], Awaitable[Result]]) -> Result:
    """Connect, do the work, disconnect."""
    import uvloop

    from rockoon.connection import connect

    async def session() -> Result:
        async with connect(nameservers, connect_seconds_max=CONNECT_SECONDS_MAX) as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(session())


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back.

    Raises:
        CommandError: the answer is no, or nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Say so with --yes: there is no terminal to ask at.")
    if not typer.confirm(question):
        raise CommandError("nothing was changed")
