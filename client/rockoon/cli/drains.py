"""`rockoon broker drain` and `undrain`: stop new messages on a broker before it is removed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_duration
from rockoon.cli.failures import FAILED, CommandError
from rockoon.cli.output import counted, picked, print_json
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, Work, shown, with_admin

if TYPE_CHECKING:
    from rockoon.admin.drains import DrainReport
    from rockoon_proto.v1.nameserver_pb2 import RemoveBrokerReply

Name = Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")]


def sentences(report: "DrainReport") -> Iterator[str]:
    """Yield the remaining messages of a drained broker."""
    if not report.closed:
        yield "producers are being moved to other brokers"
    if report.unknown_because:
        yield f"unread messages are unknown: {report.unknown_because}"
    if report.unread_messages:
        named = [f"{group} {messages} of {queue}" for group, queue, messages in report.unread]
        if hidden := report.unread_messages - sum(each[2] for each in report.unread):
            named.append(f"{hidden} more")
        yield f"unread by groups: {', '.join(named)}"
    if report.delayed:
        yield f"{counted(report.delayed, 'delayed message')}: delivered when due"
    if report.transactions:
        yield f"{counted(report.transactions, 'open transaction')}: `rockoon transactions`"
    for group, count in report.dead_letters.items():
        yield (
            f"{counted(count, 'dead letter')} of group {group}: "
            f"`rockoon dlq replay {group}`, or `rockoon dlq list {group}`"
        )
    for topic, count in report.without_readers.items():
        yield f"{counted(count, 'message')} of topic {topic}, which no group reads"
    for topic, count in report.compacted.items():
        yield f"{counted(count, 'message')} of the compacted topic {topic}"


def verdict(report: "DrainReport") -> str:
    if not report.drained:
        return "not drained: it accepts messages"
    if report.is_removable:
        return "drained and empty: it can be removed, no message is lost"
    if report.is_finished:
        return "drained: groups have read everything; removing it now loses the messages below"
    return "drained: it cannot be removed yet"


def show_report(report: "DrainReport") -> None:
    print(f"broker {report.broker}: {verdict(report)}")
    if report.drained:
        for sentence in sentences(report):
            print(f"  {sentence}")


def report_json(report: "DrainReport") -> dict[str, Any]:
    return {
        **picked(report, "broker", "drained", "closed", "unread_messages"),
        "unread": [
            {"group": group, "queue": queue, "messages": messages}
            for group, queue, messages in report.unread
        ],
        "unknown_because": report.unknown_because or None,
        **picked(report, "delayed", "transactions"),
        "dead_letters": dict(report.dead_letters),
        "without_readers": dict(report.without_readers),
        "compacted": dict(report.compacted),
        "finished": report.is_finished,
        "removable": report.is_removable,
    }


def drain(
    name: Name,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until groups have read everything; exit 1 if not empty."),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="With --wait: wait at most so long (30m).")
    ] = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="Although sends to topics without another broker will fail."),
    ] = False,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Stop new messages on a broker, and show its remaining messages.

    Producers choose other brokers, readers continue. The drain survives restarts, until `undrain`.
    If the broker is drained already, only the report is shown.
    """
    seconds = parse_duration(timeout) / 1000 if timeout else None

    async def work(admin: Any) -> "DrainReport":
        report: DrainReport = await admin.drains.drain(name, force=force)
        return await admin.drains.wait(name, seconds) if wait else report

    try:
        report = with_admin(nameservers, work)
    except TimeoutError:
        raise CommandError(
            f"broker {name} is not empty after {timeout}: `rockoon broker drain {name}` shows what "
            "is left"
        ) from None
    if as_json:
        print_json(report_json(report))
    else:
        show_report(report)
    if wait and not report.is_removable:
        raise typer.Exit(FAILED)


@shown(show_report, report_json)
def undrain(name: Name) -> "Work[DrainReport]":
    """Let a drained broker accept messages again."""
    return lambda admin: admin.drains.undrain(name)


def show_removal(reply: "RemoveBrokerReply") -> None:
    print(f"removed its queues from {counted(reply.topics, 'topic')}")
    if reply.live:
        print("it is still live: stop its processes, and run the command again")


@shown(show_removal, lambda reply: picked(reply, "topics", "live"))
def remove(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Although its messages may be lost.")
    ] = False,
) -> "Work[RemoveBrokerReply]":
    """Remove a drained and empty broker: its queues, and once it is stopped its log."""
    return lambda admin: admin.drains.remove(name, force=force)
