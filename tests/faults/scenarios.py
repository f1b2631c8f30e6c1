"""All scenarios, in the order in which they run."""

from fnmatch import fnmatch

from faults import (
    copies,
    flips,
    floods,
    fuzz,
    gateway_fuzz,
    kills,
    machines,
    power,
    pressure,
    refusals,
    syncs,
)
from faults.scenario import Scenario

SCENARIOS = (
    Scenario(
        "kills",
        "kill -9 of broker, offset service and nameserver: no acknowledged message or progress is "
        "lost, messages of idempotent producers are stored once, transactions complete and once",
        kills.kills,
    ),
    Scenario(
        "copies",
        "three copies of a log: one, two or all killed, paused for seconds, stopped as planned, "
        "topics created and deleted: each queue is one log for all senders and readers, and the "
        "copies are equal at the end",
        copies.copies,
    ),
    Scenario(
        "copies-disks",
        "three copies: writes to the CommitLog or ConsumeQueues of the leader fail (ENOSPC, EIO, "
        "EBADF), or its disk is full: another copy leads, and nothing acknowledged is lost",
        refusals.refused_writes,
        needs_library=True,
    ),
    Scenario(
        "copies-flips",
        "three copies: one flipped bit in any copy, the leader or a follower restarted: the log "
        "stays available, the bit is repaired, no intact copy is reported as damaged",
        machines.flipped_bits,
    ),
    Scenario(
        "copies-snapshots",
        "three copies: a follower's disk is put back to an older snapshot, and its vote is "
        "needed: no election loses an acknowledged message",
        machines.older_snapshots,
    ),
    Scenario(
        "copies-clocks",
        "three copies: the clock of one machine jumps by a day, both ways, and it leads or is "
        "elected: idempotent producers continue",
        machines.jumping_clocks,
        needs_library=True,
    ),
    Scenario(
        "copies-resets",
        "three copies: connections to the address of an absent copy are accepted and reset: no "
        "process exits or writes to another file's descriptor",
        machines.reset_connections,
    ),
    Scenario(
        "pressure",
        "a partition of 48 MB fills while a group is far behind: its unread messages are kept, "
        "new messages are refused, and accepted again when the group has read",
        pressure.unread_messages,
    ),
    Scenario(
        "broker-power",
        "power cuts of a broker's disk: acknowledged messages keep their positions",
        power.broker_power_cuts,
        needs_library=True,
    ),
    Scenario(
        "offset-power",
        "power cuts of the offset service's disk: no acknowledged progress goes back",
        power.offset_power_cuts,
        needs_library=True,
    ),
    Scenario(
        "broker-syncs",
        "a sync of a broker's file fails, and its pages are lost although they can be read: the "
        "broker exits, and after a power cut no message that was acknowledged before or after is "
        "missing",
        syncs.broker_failed_syncs,
        needs_library=True,
    ),
    Scenario(
        "offset-syncs",
        "the same for the offset service's files",
        syncs.offset_failed_syncs,
        needs_library=True,
    ),
    Scenario(
        "full-disk",
        "no new blocks for a while: no acknowledged message is lost, and all services continue "
        "after it",
        syncs.full_disks,
        needs_library=True,
    ),
    Scenario(
        "descriptors",
        "no file descriptors for a while: the same",
        syncs.no_descriptors,
        needs_library=True,
    ),
    Scenario(
        "broker-flips",
        "a flipped bit in any file of a broker: readers of all messages, of a tag, and of a key "
        "get an error for each message that cannot be read intact",
        flips.broker_flips,
    ),
    Scenario(
        "offset-flips",
        "a flipped bit in any file of the offset service: progress is unchanged, or the start is "
        "refused",
        flips.offset_flips,
    ),
    Scenario(
        "broker-tails",
        "the newest record torn at any byte: all earlier records stay, and the broker appends "
        "after them",
        flips.broker_tails,
    ),
    Scenario(
        "broker-sizes",
        "files derived from the log empty, cut in half, too long or missing: rebuilt, or reported",
        flips.broker_sizes,
    ),
    Scenario(
        "fuzz",
        "arbitrary requests to any call: an answer of the error table, and no effect on other "
        "callers",
        fuzz.fuzz,
    ),
    Scenario(
        "gateway-fuzz",
        "20,000 calls of the gateway, some valid with unusual fields: no code of 5xxxx, no "
        "traceback, bounded memory, and an ordinary client continues",
        gateway_fuzz.gateway_fuzz,
    ),
    Scenario(
        "roles", "each call by each kind of caller: only permitted callers succeed", fuzz.roles
    ),
    Scenario(
        "stops",
        "processes stopped for longer than their lease: a process that resumes reverts nothing",
        kills.stops,
    ),
    Scenario(
        "clocks",
        "the wall clock jumps by an hour and a day, both ways: nothing is lost, all services "
        "continue",
        kills.clocks,
        needs_library=True,
    ),
    Scenario(
        "doubles",
        "a second process on a store, or on a copy of a store: it is refused, and the first "
        "continues",
        kills.doubles,
    ),
    Scenario(
        "connections",
        "a thousand idle connections to each service: other clients can connect, and no idle "
        "connection remains",
        fuzz.connections,
    ),
    Scenario(
        "http2",
        "hostile HTTP/2 connections at full speed, each kind of attack on each service, plain and "
        "with TLS: honest callers keep 70 % of their calls and get p99 as from grpcio's server, "
        "memory is free again, no lease is lost and no leader deposed",
        floods.floods,
        seconds_max=6 * 3600.0,
    ),
)


def named(name: str) -> Scenario:
    """Raises KeyError: there is none of this name."""
    return {each.name: each for each in SCENARIOS}[name]


def chosen(pattern: str) -> list[Scenario]:
    """Scenarios by a name that may have wildcards. Raises KeyError: there is none."""
    found = [each for each in SCENARIOS if fnmatch(each.name, pattern)]
    if not found:
        raise KeyError(pattern)
    return found
