"""`rockoon group members`, `locks` and `in-flight`: readers of a group, queues, messages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rockoon.cli.groups import (
    MEMBER_COLUMNS,
    SDK_TEXTS,
    Name,
    clients_json,
    mode_text,
    receivers_json,
    show_clients,
    show_conflicts,
)
from rockoon.cli.output import (
    duration,
    local_time,
    picked,
    print_json,
    print_rows,
    queue_fields,
    queue_text,
)
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, Work, shown, with_cluster

if TYPE_CHECKING:
    from rockoon.admin.admin import Admin
    from rockoon.admin.descriptions import GroupClient
    from rockoon.cluster import Cluster
    from rockoon_proto.v1.in_flight_pb2 import ListInFlightReply, QueueInFlight
    from rockoon_proto.v1.offset_pb2 import GroupMembers, ListLocksReply, Member, QueueLock


def members(
    name: Name, as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS
) -> None:
    """Show a group's members with their queues and its clients with their in-flight messages, each
    with language, version and address; and contradictions between their settings."""
    from rockoon.consumer.membership import contradictions

    async def work(
        cluster: "Cluster",
    ) -> "tuple[GroupMembers, list[GroupClient], ListLocksReply]":
        admin = cluster.admin
        return (
            await admin.readers(name),
            await admin.list_clients(name),
            await admin.locks(name),
        )

    readers, clients, held = with_cluster(nameservers, work)
    alive = readers.members
    queues: dict[str, list[str]] = defaultdict(list)
    for lock in held.locks:
        queues[lock.owner].append(queue_text(lock.queue))
    conflicts = [*contradictions(alive), *readers.filter_conflicts]
    if as_json:
        print_json(
            {
                "members": [member_json(each, queues[each.member_id]) for each in alive],
                "clients": clients_json(clients),
                "receivers": receivers_json(readers.receivers),
                "contradictions": conflicts,
            }
        )
        return
    if alive or not clients:
        show_members(alive, queues)
    if alive and clients:
        print()
    show_clients(clients)
    show_conflicts(conflicts)


def show_members(members: "Iterable[Member]", queues: Mapping[str, list[str]]) -> None:
    print_rows(
        members,
        {
            **MEMBER_COLUMNS,
            "ALLOCATION": lambda each: each.allocation or None,
            "READS": lambda each: ", ".join(
                f"{s.topic}: {s.expression}" for s in each.subscriptions
            ),
            "LAST HEARD": lambda each: local_time(each.heard_at_ms),
            "QUEUES": lambda each: held_text(each, queues[each.member_id]),
        },
        empty="It has no members.",
    )


def show_locks(reply: "ListLocksReply") -> None:
    def held_for(lock: "QueueLock") -> str | None:
        return duration(reply.as_of_ms - lock.since_ms) if lock.since_ms else None

    print_rows(
        reply.locks,
        {
            "QUEUE": lambda each: queue_text(each.queue),
            "OWNER": lambda each: each.owner,
            "EPOCH": lambda each: each.epoch,
            "HELD FOR": held_for,
            "LEASE LEFT": lambda each: duration(each.lease_left_ms or None) or "ended",
            "WAITING": lambda each: ", ".join(each.waiting) or None,
        },
        empty="No member holds one of its queues.",
        numbers=("EPOCH", "HELD FOR", "LEASE LEFT"),
    )


@shown(show_locks, lambda reply: [lock_json(each) for each in reply.locks])
def locks(name: Name) -> "Work[ListLocksReply]":
    """Show which member holds each queue, since when, and which members wait for it."""

    async def work(admin: "Admin") -> "ListLocksReply":
        held = await admin.locks(name)
        if not held.locks:
            # No locks: fail if the group does not exist.
            await admin.get_group(name)
        return held

    return work


def show_in_flight(reply: "ListInFlightReply") -> None:
    def visible_in(queue: "QueueInFlight") -> str | None:
        at_ms = queue.next_visible_at_ms
        return duration(max(0, at_ms - reply.as_of_ms)) if at_ms else None

    print_rows(
        reply.queues,
        {
            "QUEUE": lambda each: queue_text(each.queue),
            "SETTLED TO": lambda each: each.settled_to,
            "ACQUIRED TO": lambda each: each.acquired_to,
            "SETTLED ABOVE": lambda each: each.settled_above,
            "IN FLIGHT": lambda each: each.in_flight,
            "VISIBLE AGAIN": lambda each: each.visible_again,
            "ATTEMPTS": lambda each: each.attempt_max or None,
            "NEXT VISIBLE IN": visible_in,
        },
        empty="No client has received messages of this group one by one.",
        numbers=("SETTLED TO", "ACQUIRED TO", "SETTLED ABOVE", "IN FLIGHT", "VISIBLE AGAIN"),
    )


@shown(show_in_flight, lambda reply: [in_flight_json(each) for each in reply.queues])
def in_flight(name: Name) -> "Work[ListInFlightReply]":
    """Show the in-flight messages of clients that acknowledge message by message, by queue."""
    return lambda admin: admin.in_flight(name)


def in_flight_json(of: "QueueInFlight") -> dict[str, Any]:
    return {
        **queue_fields(of.queue),
        **picked(of, "settled_to", "acquired_to", "settled_above", "in_flight", "visible_again"),
        "attempt_max": of.attempt_max,
        "next_visible_at_ms": of.next_visible_at_ms or None,
    }


def held_text(member: "Member", queues: list[str]) -> str:
    from rockoon_proto.v1.offset_pb2 import BROADCASTING

    if member.mode == BROADCASTING:
        return "all"
    return f"{len(queues)}: {', '.join(queues)}" if queues else "none: it is idle"


def member_json(member: "Member", queues: list[str]) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "mode": mode_text(member),
        "allocation": member.allocation or None,
        **{name: getattr(member, name) or None for name in SDK_TEXTS},
        **picked(member, "peer", "joined_at_ms", "heard_at_ms"),
        "subscriptions": {s.topic: s.expression for s in member.subscriptions},
        "queues": queues,
    }


def lock_json(lock: "QueueLock") -> dict[str, Any]:
    return {
        **queue_fields(lock.queue),
        **picked(lock, "owner", "epoch"),
        "since_ms": lock.since_ms or None,
        "lease_left_ms": lock.lease_left_ms,
        "waiting": list(lock.waiting),
    }
