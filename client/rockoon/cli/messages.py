"""`rockoon message`: finds stored messages by key, id or queue, and the groups that consumed them.

orders@broker-a:0  offset 42
  id        7F00000100002A139A5500000000 (offset id 7F00...)
  stored    2026-01-31 12:00:00 at 127.0.0.1:10911, position 4711, 232 bytes
  ...
  read by   billing: consumed, committed offset 66 of this queue

`rockoon delayed` and `rockoon transactions`: messages that are not due yet, and open transactions.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.arguments import OFFSET_MAX, parse_moment, parse_topic_queue
from rockoon.cli.failures import FAILED, CommandError, complain
from rockoon.cli.output import (
    duration,
    for_humans,
    local_time,
    picked,
    print_json,
    print_table,
    print_wrapped,
    queue_fields,
)
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Work,
    no_answer,
    shown,
    with_admin,
    with_cluster,
)

if TYPE_CHECKING:
    from rockoon.admin.stored_messages import FoundMessages, GroupAtMessage
    from rockoon.cluster import Cluster
    from rockoon.message import Message
    from rockoon_core.message_queue import MessageQueue

    Readers = list[GroupAtMessage] | Exception
    from rockoon.admin.delayed_messages import WaitingMessages
    from rockoon.transactions.listing import BrokerTransactions


app = typer.Typer(
    no_args_is_help=True, help="Find stored messages by key or id, or by queue and offset."
)

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
    show(
        nameservers,
        lambda cluster: cluster.admin.messages.get(message_id, topic=topic),
        as_json=as_json,
    )


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

    hint = "Messages are found by keys=, set by their producer; key= only selects the queue."
    show(
        nameservers,
        lambda cluster: cluster.admin.messages.query(
            topic,
            wanted,
            unique=key is None,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
        ),
        as_json=as_json,
        hint=hint if unique_id is None else "",
    )


@app.command()
def at(
    queue: Annotated[
        str,
        typer.Argument(metavar="TOPIC@BROKER:QUEUE", help="Queue, as other commands show it."),
    ],
    offset: Annotated[int, typer.Argument(min=0, max=OFFSET_MAX, help="Offset in the queue.")],
    max_messages: Annotated[
        int, typer.Option("--max", min=1, max=1024, metavar="N", help="Show N from there on.")
    ] = 1,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show the message at an offset of a queue, and the groups that have consumed it."""
    wanted = parse_topic_queue(queue)

    async def work(cluster: "Cluster") -> "FoundMessages":
        from rockoon.errors import MessageNotFound

        try:
            return await cluster.admin.messages.at(wanted, offset, max_messages=max_messages)
        except MessageNotFound:
            raise CommandError(await no_message_text(cluster, wanted, offset)) from None

    show(nameservers, work, as_json=as_json)


async def no_message_text(cluster: "Cluster", queue: "MessageQueue", offset: int) -> str:
    described = await cluster.admin.describe_topic(queue.topic)
    state = next((each.state for each in described.queues if each.queue == queue), None)
    text = f"{queue} has no message at offset {offset}"
    return text if state is None else f"{text}; it holds {state.min_offset}..{state.max_offset}"


def show(
    nameservers: str,
    work: "Callable[[Cluster], Awaitable[FoundMessages]]",
    *,
    as_json: bool,
    hint: str = "",
) -> None:
    """Find and print messages; exit with status 1 if some may be missing. `hint`: printed if no
    message is found."""
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
    for broker, reason in sorted(found.unsearched.items()):
        yield f"{broker} may have more: {reason}"
    for broker, error in sorted(found.errors.items()):
        yield f"{broker} may have more: it did not answer: {error}"


def show_message(message: "Message", readers: "Readers") -> None:
    typer.secho(f"{message.queue}  offset {message.queue_offset}", bold=True)
    for heading, sentence in message_lines(message, readers):
        print_wrapped(f"  {heading:<10}", sentence)


def message_lines(message: "Message", readers: "Readers") -> Iterator[tuple[str, str]]:
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


delayed_app = typer.Typer(no_args_is_help=True, help="List and cancel delayed messages.")


def delayed_json(found: "WaitingMessages") -> dict[str, Any]:
    return {
        "pending": found.pending,
        "messages": [
            {
                "offset_id": one.offset_message_id,
                "id": one.message_id or None,
                **queue_fields(one.queue),
                "deliver_at_ms": one.deliver_at_ms,
                "level": one.level or None,
                "stored_ms": one.store_timestamp_ms,
            }
            for one in found.messages
        ],
        "brokers": {
            broker: {
                "pending_by_level": {
                    str(level): counts.pending_by_level[level]
                    for level in sorted(counts.pending_by_level)
                },
                **picked(counts, "pending_timed", "delivered", "cancelled", "undeliverable"),
                **picked(counts, "lost", "rolled", "lag_ms"),
            }
            for broker, counts in found.counts.items()
        },
        "errors": {broker: str(error) for broker, error in found.errors.items()},
    }


def show_delayed(found: "WaitingMessages") -> None:
    rows = [
        (local_time(one.deliver_at_ms), str(one.queue), one.level or None, one.offset_message_id)
        for one in found.messages
    ]
    print_table(
        ("DUE", "QUEUE", "LEVEL", "OFFSET ID"),
        rows,
        empty="There are no delayed messages.",
        numbers=("LEVEL",),
    )
    if found.pending > len(rows):
        print(f"{found.pending} are pending in total.")


@delayed_app.command("list")
@shown(show_delayed, delayed_json, lambda found: no_answer(found.errors))
def list_delayed(
    max_messages: Annotated[
        int, typer.Option("--max", min=1, max=1024, metavar="N", help="Show the next N.")
    ] = 20,
) -> "Work[WaitingMessages]":
    """List the delayed messages that are due next, and count the pending ones."""
    return lambda admin: admin.delayed.list(max_messages)


@delayed_app.command()
def cancel(
    offset_id: Annotated[
        str, typer.Argument(metavar="ID", help="The offset id, as `rockoon delayed list` shows it.")
    ],
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Cancel a delayed message: it will never be delivered."""
    with_admin(nameservers, lambda admin: admin.delayed.cancel(offset_id))
    if as_json:
        print_json({"cancelled": offset_id})
    else:
        print(f"{offset_id} will not be delivered.")


transactions_app = typer.Typer(no_args_is_help=True, help="Show open transactions.")


@transactions_app.callback()
def transactions_root() -> None:
    pass


def show_transactions(found: "Sequence[BrokerTransactions]") -> None:
    rows = [
        (
            pending.transaction_id,
            f"{pending.topic}@{each.broker}:{pending.queue_id}",
            pending.producer_group,
            duration(each.reply.as_of_ms - pending.store_timestamp_ms),
            pending.checks,
        )
        for each in found
        if each.reply is not None
        for pending in each.reply.transactions
    ]
    print_table(
        ("ID", "QUEUE", "PRODUCER GROUP", "AGE", "CHECKS"),
        rows,
        empty="There are no open transactions.",
        numbers=("AGE", "CHECKS"),
    )
    for each in found:
        if each.reply is None:
            print(f"{each.broker} did not answer: {each.error}")
        elif each.reply.pending > len(each.reply.transactions):
            more = each.reply.pending - len(each.reply.transactions)
            print(f"{each.broker} has {more} more.")


def transactions_json(found: "BrokerTransactions") -> dict[str, Any]:
    if found.reply is None:
        return {"broker": found.broker, "error": str(found.error)}
    return {
        "broker": found.broker,
        "error": None,
        "pending": found.reply.pending,
        "transactions": [
            {
                "id": pending.transaction_id,
                **picked(pending, "topic", "queue_id", "producer_group", "physical_offset"),
                "stored_at_ms": pending.store_timestamp_ms,
                "stored_at": local_time(pending.store_timestamp_ms),
                "checks": pending.checks,
            }
            for pending in found.reply.transactions
        ],
    }


@transactions_app.command("list")
@shown(
    show_transactions,
    lambda found: [transactions_json(each) for each in found],
    lambda found: any(each.error is not None for each in found),
)
def list_transactions(
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1024, help="Per broker, oldest first.")
    ] = 100,
) -> "Work[Sequence[BrokerTransactions]]":
    """List transactions without commit or rollback, and how often their producers were checked."""
    return lambda admin: admin.transactions(limit)
