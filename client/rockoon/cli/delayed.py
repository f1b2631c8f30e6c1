"""`rockoon delayed`: delayed messages that are not due yet."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.failures import complain
from rockoon.cli.output import local_time, print_json, print_table
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster

if TYPE_CHECKING:
    from rockoon.admin.delayed_messages import WaitingMessages
    from rockoon.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="List and cancel delayed messages.")


@app.command("list")
def list_delayed(
    max_messages: Annotated[
        int, typer.Option("--max", min=1, max=1024, metavar="N", help="Show the next N.")
    ] = 20,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """List the delayed messages that are due next, and count the pending ones."""

    async def work(cluster: "Cluster") -> "WaitingMessages":
        return await cluster.admin.delayed.list(max_messages)

    found = with_cluster(nameservers, work)
    if as_json:
        print_json(to_json(found))
    else:
        show(found)
    if found.errors:
        broker, error = next(iter(found.errors.items()))
        raise typer.Exit(complain(f"{broker} did not answer: {error}"))


@app.command()
def cancel(
    offset_id: Annotated[
        str, typer.Argument(metavar="ID", help="The offset id, as `rockoon delayed list` shows it.")
    ],
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Cancel a delayed message: it will never be delivered."""

    async def work(cluster: "Cluster") -> None:
        await cluster.admin.delayed.cancel(offset_id)

    with_cluster(nameservers, work)
    if as_json:
        print_json({"cancelled": offset_id})
    else:
        print(f"{offset_id} will not be delivered.")


def to_json(found: "WaitingMessages") -> dict[str, Any]:
    return {
        "pending": found.pending,
        "messages": [
            {
                "offset_id": one.offset_message_id,
                "id": one.message_id or None,
                "topic": one.queue.topic,
                "broker": one.queue.broker,
                "queue_id": one.queue.queue_id,
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
                "pending_timed": counts.pending_timed,
                "delivered": counts.delivered,
                "cancelled": counts.cancelled,
                "undeliverable": counts.undeliverable,
                "lost": counts.lost,
                "rolled": counts.rolled,
                "lag_ms": counts.lag_ms,
            }
            for broker, counts in found.counts.items()
        },
        "errors": {broker: str(error) for broker, error in found.errors.items()},
    }


def show(found: "WaitingMessages") -> None:
    rows = [
        (
            local_time(one.deliver_at_ms),
            str(one.queue),
            one.level or None,
            one.offset_message_id,
        )
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
