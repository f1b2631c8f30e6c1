"""`rockoon transactions`: lists open transactions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.failures import FAILED
from rockoon.cli.output import duration, local_time, print_json, print_table
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster

if TYPE_CHECKING:
    from rockoon.cluster import Cluster
    from rockoon.transactions.listing import BrokerTransactions

app = typer.Typer(no_args_is_help=True, help="Show open transactions.")


@app.callback()
def root() -> None:
    pass


@app.command("list")
def list_transactions(
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1024, help="Per broker, oldest first.")
    ] = 100,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """List transactions without commit or rollback, and how often their producers were checked."""

    async def ask(cluster: "Cluster") -> "Sequence[BrokerTransactions]":
        return await cluster.admin.transactions(limit)

    found = with_cluster(nameservers, ask)
    if as_json:
        print_json([transactions_json(each) for each in found])
    else:
        show_transactions(found)
    if any(each.error is not None for each in found):
        raise typer.Exit(FAILED)


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
                "topic": pending.topic,
                "queue_id": pending.queue_id,
                "producer_group": pending.producer_group,
                "physical_offset": pending.physical_offset,
                "stored_at_ms": pending.store_timestamp_ms,
                "stored_at": local_time(pending.store_timestamp_ms),
                "checks": pending.checks,
            }
            for pending in found.reply.transactions
        ],
    }
