"""Clients of a group that acknowledge message by message, and filters, as tables and as JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rockoon.cli.output import duration, print_table, print_wrapped

if TYPE_CHECKING:
    from rockoon.admin.group_clients import GroupClient
    from rockoon_proto.v1.offset_pb2 import ReceiverFilter


def show_clients(clients: "Sequence[GroupClient]") -> None:
    """Print a table of clients; nothing if there are none."""
    if not clients:
        return
    print_table(
        ("CLIENT", "LANGUAGE", "VERSION", "ADDRESS", "GATEWAY", "HOLDS", "HEARD AGO", "READS"),
        (
            (
                each.client_id,
                each.language or None,
                each.version or None,
                each.address or None,
                each.gateway or None,
                each.messages,
                duration(each.heard_ms_ago),
                reads_text(each) or None,
            )
            for each in clients
        ),
        numbers=("HOLDS", "HEARD AGO"),
        empty="",
    )


def reads_text(client: "GroupClient") -> str:
    topics = [f"{topic}: {expression}" for topic, expression in client.subscriptions.items()]
    if client.lite_topics:
        topics.append(f"{client.lite_topics} lite topics of {client.lite_parent}")
    return ", ".join(topics)


def show_conflicts(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print_wrapped("! ", sentence)


def clients_json(clients: "Sequence[GroupClient]") -> list[dict[str, Any]]:
    return [
        {
            "client_id": each.client_id,
            "key_id": each.key_id or None,
            "client_type": each.client_type or None,
            "language": each.language or None,
            "version": each.version or None,
            "address": each.address or None,
            "hostname": each.hostname or None,
            "gateway": each.gateway or None,
            "heard_ms_ago": each.heard_ms_ago,
            "subscriptions": dict(each.subscriptions),
            "lite_parent": each.lite_parent or None,
            "lite_topics": each.lite_topics,
            "messages": each.messages,
            "queues": each.queues,
            "attempt_max": each.attempt_max,
        }
        for each in clients
    ]


def receivers_json(receivers: "Sequence[ReceiverFilter]") -> list[dict[str, Any]]:
    return [
        {
            "receiver": each.receiver,
            "topic": each.filter.topic,
            "filter": each.filter.expression,
            "heard_at_ms": each.heard_at_ms,
        }
        for each in receivers
    ]
