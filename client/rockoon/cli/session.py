"""Command sessions: connects to the cluster and runs the work of one command."""

import functools
import inspect
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from rockoon.cli.failures import FAILED, CommandError, complain
from rockoon.cli.output import print_json

if TYPE_CHECKING:
    from rockoon.admin.admin import Admin
    from rockoon.cluster import Cluster
    from rockoon.errors import RockoonError

DEFAULT_NAMESERVERS = "127.0.0.1:9876"
CONNECT_SECONDS_MAX = 5.0
# Short, because a person waits for the result.
RETRY_SECONDS = 10.0
LISTEN_SECONDS_MAX = 2.0

Result = TypeVar("Result")
Work: TypeAlias = "Callable[[Admin], Awaitable[Result]]"
"""The call of a command."""

Nameservers = Annotated[
    str,
    typer.Option(
        "--nameservers",
        envvar="ROCKOON_NAMESERVERS",
        metavar="HOST:PORT,...",
        help="Nameservers of the cluster.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def with_cluster(nameservers: str, work: Callable[["Cluster"], Awaitable[Result]]) -> Result:
    """Connect, run `work`, and disconnect."""
    import asyncio

    import uvloop

    from rockoon.cluster import connect
    from rockoon.errors import GroupNotFound, TopicNotFound
    from rockoon.net.addresses import parse_addresses

    addresses = parse_addresses(nameservers)
    # The SDK would retry for seconds; at a terminal the error must appear immediately.
    check_reachable(addresses)

    async def session() -> Result:
        async with connect(
            addresses, connect_seconds_max=CONNECT_SECONDS_MAX, retry_seconds=RETRY_SECONDS
        ) as cluster:
            try:
                return await work(cluster)
            except (TopicNotFound, GroupNotFound) as absent:
                raise CommandError(str(absent) + await suggestion(cluster, absent)) from None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(session())
        except asyncio.CancelledError:
            # Only Ctrl-C cancels a command; the signal may arrive while its handler is replaced.
            raise KeyboardInterrupt from None


def with_admin(nameservers: str, work: Callable[["Admin"], Awaitable[Result]]) -> Result:
    """Connect, run `work` with the administration of the cluster, and disconnect."""
    return with_cluster(nameservers, lambda cluster: work(cluster.admin))


def with_parameters(
    command: Callable[..., Result], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Result]:
    """Replace the parameters of a command from which typer makes its options."""
    # Both are replaced, because typer may read the parameters from either.
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def shown(
    show: Callable[[Result], None],
    to_json: Callable[[Result], object],
    failure: Callable[[Result], bool | str] = lambda _: False,
) -> Callable[[Callable[..., "Work[Result]"]], Callable[..., None]]:
    """Return a decorator for a command that shows the result of one call.

    The command checks its arguments and returns the call. The decorator adds `--json` and
    `--nameservers`, makes the call, and prints the result. `failure`: whether the command exits
    with status 1 after it has printed the result, or a sentence for standard error.
    """

    def decorate(command: "Callable[..., Work[Result]]") -> Callable[..., None]:
        @functools.wraps(command)
        def called(*, as_json: bool, nameservers: str, **options: Any) -> None:
            found = with_admin(nameservers, command(**options))
            if as_json:
                print_json(to_json(found))
            else:
                show(found)
            if sentence := failure(found):
                raise typer.Exit(complain(sentence) if isinstance(sentence, str) else FAILED)

        own = inspect.signature(command).parameters.values()
        return with_parameters(called, [*own, *SHOWN_PARAMETERS])

    return decorate


SHOWN_PARAMETERS = (
    inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
    inspect.Parameter(
        "nameservers",
        inspect.Parameter.KEYWORD_ONLY,
        default=DEFAULT_NAMESERVERS,
        annotation=Nameservers,
    ),
)


def no_answer(errors: Mapping[str, object]) -> str:
    """Return a sentence about the first of the nodes that did not answer; empty without one."""
    return next((f"{name} did not answer: {error}" for name, error in errors.items()), "")


async def find_topic(cluster: "Cluster", topic: str) -> None:
    """Check that a topic exists.

    Raises:
        CommandError: the topic does not exist; the text has the command that creates it.
        InvalidTopicName: the name is invalid, so the topic cannot be created.
    """
    from rockoon.errors import InvalidTopicName, TopicNotFound
    from rockoon_format.names import topic_fault

    if fault := topic_fault(topic):
        raise InvalidTopicName(topic=topic, reason=fault)
    try:
        await cluster.route(topic)
    except TopicNotFound as absent:
        command = f"rockoon topic create {shlex.quote(topic)}"
        similar = await suggestion(cluster, absent)
        raise CommandError(f"{absent}{similar}: create it with `{command}`") from None


async def suggestion(cluster: "Cluster", absent: "RockoonError") -> str:
    """Return " (did you mean ...?)" with similar topics or groups; empty if there are none."""
    from difflib import get_close_matches

    from rockoon.errors import RockoonError

    try:
        if "topic" in absent.details:
            wanted = absent.details["topic"]
            names = [each.name for each in await cluster.admin.list_topics()]
        else:
            wanted = absent.details.get("group", "")
            names = [each.group.config.name for each in await cluster.admin.list_groups()]
    except RockoonError:  # such as NotPermitted: then there is no suggestion
        return ""
    similar = get_close_matches(wanted, names, cutoff=0.7)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ""


def check_reachable(addresses: Sequence[str]) -> None:
    """Check that a process listens at one of the addresses. Raises CommandError: no host name can
    be resolved; NameserverUnavailable: no process listens at any address."""
    from rockoon.errors import NameserverUnavailable

    unknown = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), LISTEN_SECONDS_MAX).close()
        except socket.gaierror:
            unknown.append(host)
        except (OSError, OverflowError):
            continue
        else:
            return
    if len(unknown) == len(addresses):
        raise CommandError(
            f"host {' or '.join(unknown)} is unknown: check the spelling in --nameservers or "
            "ROCKOON_NAMESERVERS, and this machine's name resolution"
        )
    raise NameserverUnavailable(address=", ".join(addresses))


def confirm(question: str, *, yes: bool) -> None:
    """Ask before an irreversible action. Raises CommandError: the answer is no, or there is no
    terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask at: confirm with --yes.")
    if not typer.confirm(question):
        raise CommandError("nothing was changed")
