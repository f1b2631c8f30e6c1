"""`rockoon broker`: details of one broker."""

from typing import TYPE_CHECKING, Annotated

import typer

from rockoon.cli.output import for_humans, print_json, print_wrapped
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_cluster
from rockoon.cli.status import broker_json, compaction_sentences, node_json

if TYPE_CHECKING:
    from rockoon.admin.descriptions import NodeStatus
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply

app = typer.Typer(no_args_is_help=True, help="Show details of one broker.")


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")],
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show a broker's log, its message counts, and the state of compaction."""

    async def work(cluster: "Cluster") -> "NodeStatus":
        return await cluster.admin.describe_broker(name)

    found = with_cluster(nameservers, work)
    answer = found.broker
    assert answer is not None
    if as_json:
        print_json(node_json(found) | broker_json(answer))
        return
    print(f"broker {found.name} at {found.address}")
    for heading, sentence in lines(answer):
        print_wrapped(f"  {heading:<12}", sentence)


def lines(answer: "DescribeBrokerReply") -> list[tuple[str, str]]:
    """Return heading and text of each line."""
    held = for_humans(answer.log_max_offset - answer.log_min_offset)
    rows = [
        ("topics", f"{answer.topics} with {answer.queues} queues"),
        ("log", f"{answer.log_min_offset} to {answer.log_max_offset} ({held})"),
        ("disk", f"{answer.disk_used_ratio:.0%} used"),
        (
            "state",
            "writable" if answer.writable else f"NOT WRITABLE: {answer.not_writable_reason}",
        ),
        ("served", f"{answer.messages_appended} in, {answer.messages_pulled} out since it started"),
    ]
    rows += [("compaction", sentence) for sentence in compaction_sentences(answer)]
    return rows
