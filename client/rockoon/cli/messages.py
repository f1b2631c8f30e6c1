"""`rockoon message`: stored messages by key or id, and who has consumed them.

orders@broker-a:0  offset 42
  id        7F00000100002A139A5500000000 (offset id 7F00...)
  stored    2026-01-31 12:00:00 at 127.0.0.1:10911, position 4711, 232 bytes
  ...
  read by   billing: consumed, committed offset 66 of this queue
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import parse_duration, parse_time
from rockoon.cli.failures import FAILED, complain
from rockoon.cli.output import for_humans, local_time, print_json, print_wrapped
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster
from rockoon_core.clock import wall_clock_ms

if TYPE_CHECKING:
    from rockoon.admin.stored_messages import FoundMessages, Reader
    from rockoon.cluster import Cluster
    from rockoon.message import Message

    # Who has read a message, or why nobody can say.
    Readers = list[Reader] | Exception

app = typer.Typer(no_args_is_help=True, help="Look stored messages up, by key or id.")

BODY_BYTES_SHOWN = 400


@app.command()
def get(
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="An offset id, or the id that its producer's SDK made."),
    ],
    topic: Annotated[
        str, typer.Option(metavar="NAME", help="Where to look for a producer's id (default: all).")
    ] = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show a message, and which groups have consumed it."""

    async def work(cluster: "Cluster") -> "FoundMessages":
        return await cluster.admin.messages.get(message_id, topic=topic)

    show(nameservers, work, as_json=as_json)


@app.command()
def query(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="One of the keys= its producer gave it.")
    ] = None,
    unique_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id its producer's SDK made.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME|DURATION", help="Not stored before (2h: ago)."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME|DURATION", help="Not stored after.")
    ] = None,
    max_messages: Annotated[
        int, typer.Option("--max", min=1, max=1024, metavar="N", help="The newest N.")
    ] = 32,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Find a topic's messages by key or id, the newest first; exit status 1 when unsure of more."""
    wanted = unique_id if key is None else key
    if wanted is None or (key is not None and unique_id is not None):
        raise typer.BadParameter("say either --key or --id")
    begin_ms = 0 if begin is None else moment_ms(begin, "--from")
    end_ms = 0 if end is None else moment_ms(end, "--to")

    async def work(cluster: "Cluster") -> "FoundMessages":
        return await cluster.admin.messages.query(
            topic,
            wanted,
            unique=key is None,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
        )

    hint = "Messages are found by what their producer gave as keys=; its key= only orders them."
    show(nameservers, work, as_json=as_json, hint=hint if unique_id is None else "")


def moment_ms(text: str, option: str) -> int:
    """Epoch milliseconds of a time, or of a duration before now.

    Raises:
        typer.BadParameter: it is neither.
    """
    try:
        return wall_clock_ms() - parse_duration(text)
    except typer.BadParameter:
        pass
    try:
        return parse_time(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time (2026-01-31T12:00) nor a duration before now (2h)",
            param_hint=option,
        ) from None


def show(
    nameservers: str,
    work: "Callable[[Cluster], Awaitable[FoundMessages]]",
    *,
    as_json: bool,
    hint: str = "",
) -> None:
    """Look up, print, and end with status 1 when there may be more.

    Args:
        nameservers: where the cluster is.
        work: the look-up.
        as_json: for programs.
        hint: what to say when nothing is found.
    """
    from rockoon.errors import RockoonError

    async def session(cluster: "Cluster") -> "tuple[FoundMessages, list[Readers]]":
        found = await work(cluster)
        try:
            return found, list(await cluster.admin.messages.readers(found.messages))
        except RockoonError as error:
            # Who has read it is good to know, but not what was asked.
            return found, [error] * len(found.messages)

    found, stories = with_cluster(nameservers, session)
    if as_json:
        print_json(found_json(found, stories))
    else:
        if not found.messages:
            print("No such message was found.")
            if hint:
                print(hint)
        for number, (message, readers) in enumerate(zip(found.messages, stories, strict=True)):
            if number:
                print()
            show_message(message, readers)
    for sentence in doubts(found):
        complain(sentence)
    raise typer.Exit(0 if found.whole else FAILED)


def doubts(found: "FoundMessages") -> Iterator[str]:
    """Why there may be more."""
    for broker, reason in sorted(found.unsearched.items()):
        yield f"{broker} may have more: {reason}"
    for broker, error in sorted(found.errors.items()):
        yield f"{broker} may have more, it did not answer: {error}"


def show_message(message: "Message", readers: "Readers") -> None:
    typer.secho(f"{message.queue}  offset {message.queue_offset}", bold=True)
    for heading, sentence in told(message, readers):
        print_wrapped(f"  {heading:<10}", sentence)


def told(message: "Message", readers: "Readers") -> Iterator[tuple[str, str]]:
    """Headings and sentences about one message."""
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
        yield "read by", "no group has begun to read its queue"
    else:
        for number, reader in enumerate(readers):
            yield "" if number else "read by", what_became(reader)


def what_became(reader: "Reader") -> str:
    progress = reader.progress
    whose = f"{reader.group} ({progress.member})" if progress.member else reader.group
    if not reader.consumed:
        return f"{whose}: not yet, committed offset {progress.offset}"
    if reader.began_behind:
        return f"{whose}: passed over, it began at offset {progress.start_offset}"
    return f"{whose}: consumed, committed offset {progress.offset}"


def own_properties(message: "Message") -> dict[str, str]:
    shown = {"KEYS", "TAGS", "UNIQ_KEY"}
    return {name: value for name, value in message.properties.items() if name not in shown}


def body_text(message: "Message") -> str:
    from rockoon.errors import RockoonError

    try:
        body = message.body
    except RockoonError as error:
        return f"cannot be shown: {error}"
    size = for_humans(len(body))
    part = body[:BODY_BYTES_SHOWN]
    more = " ..." if len(body) > len(part) else ""
    # A cut may go through a character; anything else that is no text shows in hex.
    text = part.decode(errors="ignore" if more else "replace")
    if "\ufffd" in text or not text.replace("\n", " ").replace("\t", " ").isprintable():
        return f"{size}, hex {part.hex()}{more}"
    return f"{size}: {text}{more}" if body else "empty"


def found_json(found: "FoundMessages", stories: "Sequence[Readers]") -> dict[str, Any]:
    return {
        "messages": [
            message_json(message, readers)
            for message, readers in zip(found.messages, stories, strict=True)
        ],
        "whole": found.whole,
        "unsearched": dict(found.unsearched),
        "errors": {broker: str(error) for broker, error in found.errors.items()},
        "indexed_until_ms": dict(found.indexed_until_ms),
    }


def message_json(message: "Message", readers: "Readers") -> dict[str, Any]:
    from rockoon.cli.consume import fields_of

    said = fields_of(message)
    if isinstance(readers, Exception):
        return said | {"readers": None, "readers_unknown_because": str(readers)}
    return said | {
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
