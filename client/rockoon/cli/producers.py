"""`rockoon producer connections`: programs that send, with address, language and version."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.failures import complain
from rockoon.cli.output import counted, duration, picked, print_json, print_rows
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, no_answer, with_cluster

if TYPE_CHECKING:
    from rockoon.admin.producers import ConnectedProducer, ConnectedProducers
    from rockoon.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Show programs that send messages.")

TOPICS_SHOWN_MAX = 3


@app.callback()
def producer_root() -> None:
    pass


@app.command()
def connections(
    topic: Annotated[
        str, typer.Argument(metavar="[TOPIC]", show_default=False, help="Only of this topic.")
    ] = "",
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show connected producers: programs of the SDK, gateways, and the gateways' clients.

    A program of the SDK has sent to the topic since it connected; a broker knows the first 64
    topics of a connection. A client of a gateway names its topics itself, at most 32. Exit status 1
    if a broker or the offset service does not answer.
    """

    async def work(cluster: "Cluster") -> "ConnectedProducers":
        if topic:
            await cluster.route(topic)
        return await cluster.admin.producers(topic)

    found = with_cluster(nameservers, work)
    if as_json:
        print_json(producers_json(found))
    else:
        show(found)
    if sentence := no_answer(found.errors):
        raise typer.Exit(complain(sentence))


def show(found: "ConnectedProducers") -> None:
    print_rows(
        found.producers,
        {
            "CLIENT": lambda each: each.client_id or None,
            "LANGUAGE": lambda each: each.language or None,
            "VERSION": lambda each: each.version or None,
            "ADDRESS": lambda each: each.address or None,
            "GATEWAY": lambda each: "itself" if each.is_gateway else each.gateway or None,
            "KEY": lambda each: each.key_id or None,
            "BROKERS": lambda each: ", ".join(each.brokers) or None,
            "TOPICS": topics_text,
            "SENT AGO": lambda each: duration(each.sent_ms_ago),
        },
        empty="No producer is connected.",
    )
    if found.left_out:
        print(f"{counted(found.left_out, 'more connection')} not shown: name a topic")


def topics_text(producer: "ConnectedProducer") -> str | None:
    shown = producer.topics[:TOPICS_SHOWN_MAX]
    if more := len(producer.topics) - len(shown):
        shown.append(f"{more} more")
    return ", ".join(shown) or None


def producers_json(found: "ConnectedProducers") -> dict[str, Any]:
    texts = ("client_id", "address", "language", "version", "key_id", "gateway")
    return {
        "producers": [
            {
                **{name: getattr(each, name) or None for name in texts},
                **picked(each, "is_gateway", "brokers", "topics", "sent_ms_ago", "opened_ms_ago"),
            }
            for each in found.producers
        ],
        "left_out": found.left_out,
        "errors": {name: str(error) for name, error in found.errors.items()},
    }
