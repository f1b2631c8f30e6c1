"""Receivers of a group and their filters, as tables and as JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rockoon.cli.output import local_time, print_table, print_wrapped

if TYPE_CHECKING:
    from rockoon_proto.v1.offset_pb2 import ReceiverFilter


def show_receivers(receivers: "Sequence[ReceiverFilter]") -> None:
    """A table of the filters that receivers reported lately; nothing when there are none."""
    if not receivers:
        return
    print()
    print_table(
        ("RECEIVER", "TOPIC", "FILTER", "LAST REPORTED"),
        (
            (each.receiver, each.filter.topic, each.filter.expression, local_time(each.heard_at_ms))
            for each in receivers
        ),
        empty="",
    )


def show_conflicts(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print_wrapped("! ", sentence)


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
