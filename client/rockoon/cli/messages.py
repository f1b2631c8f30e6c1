"""`rockoon message`: finds stored messages by key or id, and shows which groups consumed them.

orders@broker-a:0  offset 42
  id        7F00000100002A139A5500000000 (offset id 7F00...)
  stored    2026-01-31 12:00:00 at 127.0.0.1:10911, position 4711, 232 bytes
  ...
  read by   billing: consumed, committed offset 66 of this queue
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_moment
from rockoon.cli.failures import FAILED, complain
from rockoon.cli.output import for_humans, local_time, print_json, print_wrapped
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster

if TYPE_CHECKING:
    from rockoon.admin.stored_messages import FoundMessages, GroupAtMessage
    from rockoon.cluster import Cluster
    from rockoon.message import Message

    # Readers of a message, or the error that kept them from being read.
    Readers = list[GroupAtMessage] | Exception

app = typer.Typer(no_args_is_help=True, help="Find stored messages by key or id.")

BODY_BYTES_SHOWN = 400


@app.command()
def get(
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Offset id, or the id from the producer's SDK."),
    ],
    topic: Annotated[
        str, typer.Option(metavar="NAME", help="Topic to search for an SDK's id (default: all).")
    ] = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show a message and the groups that have consumed it."""

    async def work(cluster: "Cluster") -> "FoundMessages":
        return await cluster.admin.messages.get(message_id, topic=topic)

    show(nameservers, work, as_json=as_json)


@app.command()
def query(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="One of the message's keys=.")
    ] = None,
    unique_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id from the producer's SDK.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME|DURATION", help="Stored at or after (2h: ago)."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME|DURATION", help="Stored at or before.")
    ] = None,
    max_messages: Annotated[
        int, typer.Option("--max", min=1, max=1024, metavar="N", help="Show the newest N.")
    ] = 32,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Find a topic's messages by key or id, newest first; exit status 1 if some may be missing."""
    wanted = unique_id if key is None else key
    if wanted is None or (key is not None and unique_id is not None):
        raise typer.BadParameter("use either --key or --id")
    begin_ms = 0 if begin is None else parse_moment(begin, "--from")
    end_ms = 0 if end is None else parse_moment(end, "--to")

    async def work(cluster: "Cluster") -> "FoundMessages":
        return await cluster.admin.messages.query(
            topic,
            wanted,
            unique=key is None,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
        )

    hint = "Messages are found by keys=, set by their producer; key= only selects the queue."
    show(nameservers, work, as_json=as_json, hint=hint if unique_id is None else "")


def show(
    nameservers: str,
    work: "Callable[[Cluster], Awaitable[FoundMessages]]",
    *,
    as_json: bool,
    hint: str = "",
) -> None:
    """Find and print messages; exit with status 1 if some may be missing.

    Args:
        nameservers: addresses of the cluster.
        work: the search.
        as_json: print JSON.
        hint: printed if no message is found.
    """
    from rockoon.errors import RockoonError

    async def session(cluster: "Cluster") -> "tuple[FoundMessages, list[Readers]]":
        found = await work(cluster)
        try:
            return found, list(await cluster.admin.messages.readers(found.messages))
        except RockoonError as error:
            # Readers are additional information: the message is shown without them.
            return found, [error] * len(found.messages)

    found, all_readers = with_cluster(nameservers, session)
    if as_json:
        print_json(found_json(found, all_readers))
    else:
        if not found.messages:
            print("No message was found.")
            if hint:
                print(hint)
        for number, (message, readers) in enumerate(zip(found.messages, all_readers, strict=True)):
            if number:
                print()
            show_message(message, readers)
    for sentence in missing_reasons(found):
        complain(sentence)
    raise typer.Exit(0 if found.whole else FAILED)


def missing_reasons(found: "FoundMessages") -> Iterator[str]:
    """Yield the reasons why messages may be missing from the result."""
    for broker, reason in sorted(found.unsearched.items()):
        yield f"{broker} may have more: {reason}"
    for broker, error in sorted(found.errors.items()):
        yield f"{broker} may have more: it did not answer: {error}"


def show_message(message: "Message", readers: "Readers") -> None:
    typer.secho(f"{message.queue}  offset {message.queue_offset}", bold=True)
    for heading, sentence in message_lines(message, readers):
        print_wrapped(f"  {heading:<10}", sentence)


def message_lines(message: "Message", readers: "Readers") -> Iterator[tuple[str, str]]:
    """Yield headings and sentences about a message."""
    yield "id", f"{message.message_id} (offset id {message.offset_message_id})"
    born_at, stored_at = (":".join(map(str, at)) for at in (message.born_host, message.store_host))
    yield "sent", f"{local_time(message.born_timestamp_ms)} from {born_at}"
    yield (
        "stored",
        f"{local_time(message.store_timestamp_ms)} at {stored_at}, position "
        f"{message.physical_offset}, {message.stored_bytes} bytes",
    )
    if message.keys:
        yield "keys", " ".join(message.keys)
    if message.tags:
        yield "tags", message.tags
    if message.reconsume_times:
        yield "failed", f"{message.reconsume_times} times before"
    for name, value in own_properties(message).items():
        yield "property", f"{name} = {value}"
    yield "body", body_text(message)
    if isinstance(readers, Exception):
        yield "read by", f"unknown: {readers}"
    elif not readers:
        yield "read by", "no group reads its queue yet"
    else:
        for number, reader in enumerate(readers):
            yield "" if number else "read by", reader_text(reader)


def reader_text(reader: "GroupAtMessage") -> str:
    progress = reader.progress
    whose = f"{reader.group} ({progress.member})" if progress.member else reader.group
    if not reader.consumed:
        return f"{whose}: not yet, committed offset {progress.offset}"
    if reader.began_behind:
        return f"{whose}: skipped, it started at offset {progress.start_offset}"
    return f"{whose}: consumed, committed offset {progress.offset}"


def own_properties(message: "Message") -> dict[str, str]:
    shown = {"KEYS", "TAGS", "UNIQ_KEY"}
    return {name: value for name, value in message.properties.items() if name not in shown}


def body_text(message: "Message") -> str:
    from rockoon.errors import RockoonError

    try:
        body = message.body
    except RockoonError as error:
        return f"cannot be decoded: {error}"
    size = for_humans(len(body))
    part = body[:BODY_BYTES_SHOWN]
    more = " ..." if len(body) > len(part) else ""
    # The cut may split a character; any other invalid text is shown in hex.
    text = part.decode(errors="ignore" if more else "replace")
    if "\ufffd" in text or not text.replace("\n", " ").replace("\t", " ").isprintable():
        return f"{size}, hex {part.hex()}{more}"
    return f"{size}: {text}{more}" if body else "empty"


def found_json(found: "FoundMessages", all_readers: "Sequence[Readers]") -> dict[str, Any]:
    return {
        "messages": [
            message_json(message, readers)
            for message, readers in zip(found.messages, all_readers, strict=True)
        ],
        "whole": found.whole,
        "unsearched": dict(found.unsearched),
        "errors": {broker: str(error) for broker, error in found.errors.items()},
        "indexed_until_ms": dict(found.indexed_until_ms),
    }


def message_json(message: "Message", readers: "Readers") -> dict[str, Any]:
    from rockoon.cli.consume import fields_of

    fields = fields_of(message)
    if isinstance(readers, Exception):
        return fields | {"readers": None, "readers_unknown_because": str(readers)}
    return fields | {
        "readers": [
            {
                "group": reader.group,
                "member": reader.progress.member or None,
                "consumed": reader.consumed,
                "began_behind": reader.began_behind,
                "committed_offset": reader.progress.offset,
                "committed_at_ms": reader.progress.stored_at_ms,
            }
            for reader in readers
        ]
    }
