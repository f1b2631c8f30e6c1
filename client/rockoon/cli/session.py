"""Command sessions: the connection that every command opens first."""

import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rockoon.cli.failures import CommandError

if TYPE_CHECKING:
    from rockoon.cluster import Cluster

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
CONNECT_SECONDS_MAX = 5.0
# Somebody waits for an answer.
RETRY_SECONDS = 10.0
LISTEN_SECONDS_MAX = 2.0

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
    import asyncio

    import uvloop

    from rockoon.cluster import connect
    from rockoon.errors import NameserverUnavailable
    from rockoon.net.addresses import parse_addresses

    addresses = parse_addresses(nameservers)
    if not any(map(somebody_listens, addresses)):
        # The SDK would go on trying; a person at a terminal had better be told at once.
        raise NameserverUnavailable(address=", ".join(addresses))

    async def session() -> Result:
        async with connect(
            addresses, connect_seconds_max=CONNECT_SECONDS_MAX, retry_seconds=RETRY_SECONDS
        ) as cluster:
            return await work(cluster)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(session())
        except asyncio.CancelledError:
            # Only Ctrl-C cancels a command, and it may arrive while a handler of it changes.
            raise KeyboardInterrupt from None


async def find_topic(cluster: "Cluster", topic: str) -> None:
    """Look for a topic that somebody wants to send to or read, and may have to make first.

    Raises:
        CommandError: there is none; with the command that makes it.
        InvalidTopicName: there can be none.
    """
    from rockoon.errors import InvalidTopicName, TopicNotFound
    from rockoon_format.names import topic_fault

    if fault := topic_fault(topic):
        raise InvalidTopicName(topic=topic, reason=fault)
    try:
        await cluster.route(topic)
    except TopicNotFound as absent:
        command = f"rockoon topic create {shlex.quote(topic)}"
        raise CommandError(f"{absent}: create it with `{command}`") from None


def somebody_listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LISTEN_SECONDS_MAX).close()
    except (OSError, OverflowError):
        return False
    return True


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
