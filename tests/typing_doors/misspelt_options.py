"""Misspelt options; mypy and pyright must report each of them: `make check` runs both.

An unnecessary ignore is an error too, so a function that accepts any option fails the check.
"""

import rockoon
import rockoon.sync


async def handle(message: rockoon.Message) -> None:
    """Do nothing."""


def text(body: str) -> None:
    """A handler of texts, where messages come."""


def batch(messages: list[rockoon.Message]) -> bool:
    """A handler of batches."""
    return bool(messages)


def correct(cluster: rockoon.Cluster, scripts: rockoon.sync.Cluster) -> None:
    """Without an error."""
    topics = {"orders": "*"}
    for each in (cluster, scripts):
        each.push_consumer("g", topics, handle, consume_from="first")
        each.push_consumer("g", topics, handle, batch_max=1, consume_from=rockoon.ConsumeFrom.LAST)
        each.push_consumer("g", topics, batch, batch_max=16)
        each.push_consumer("g", topics, lambda message: len(message.body) > 1)


def misspelt(cluster: rockoon.Cluster, scripts: rockoon.sync.Cluster) -> None:
    """Never called."""
    topics = {"orders": "*"}
    cluster.push_consumer("g", topics, handle, consume_form="first")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    cluster.push_consumer("g", topics, handle, mode="broadcast")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    cluster.push_consumer("g", topics, handle, concurrency="8")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    cluster.push_consumer("g", topics, text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cluster.push_consumer("g", topics, batch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cluster.push_consumer("g", topics, handle, batch_max=16)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    cluster.push_consumer("g", topics, handle, consume_from="frist")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    scripts.push_consumer("g", topics, text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scripts.push_consumer("g", topics, handle, consume_from="frist")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    cluster.simple_consumer("g", topics, consume_from="frist")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cluster.pull_consumer("g", on_out_of_range="first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cluster.producer(lingerms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cluster.transactional_producer("g", check=handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scripts.send("orders", b"", ordring_key="k")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scripts.send_many("orders", [b""], tag="t")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scripts.consume("orders", consume_form="last")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    scripts.transactional_producer("g", chek=handle)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    rockoon.sync.connect("127.0.0.1:9876", retryseconds=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
