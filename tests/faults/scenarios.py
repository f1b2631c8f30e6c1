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
        "kill -9 of broker, offset service and nameserver: nothing acknowledged is lost or goes "
        "back, idempotent producers' messages are there once, transactions whole and once",
        kills.kills,
    ),
    Scenario(
        "copies",
        "three copies of a log: one, two or all killed, paused for seconds, ended in order, topics "
        "created and deleted: each queue is one log to all who send and read, and the copies are "
        "equal in the end",
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
        "goes on, the bit is repaired, no sound copy is called damaged",
        machines.flipped_bits,
    ),
    Scenario(
        "copies-snapshots",
        "three copies: a follower's disk is put back to an older snapshot, and its vote is needed: "
        "nothing acknowledged is voted away",
        machines.older_snapshots,
    ),
    Scenario(
        "copies-clocks",
        "three copies: the clock of one machine jumps by a day, both ways, and it leads or is "
        "elected: idempotent producers go on",
        machines.jumping_clocks,
        needs_library=True,
    ),
    Scenario(
        "copies-resets",
        "three copies: at the address of one that is away, connections are accepted and reset: no "
        "process ends or writes to a descriptor that is not its own",
        machines.reset_connections,
    ),
    Scenario(
        "pressure",
        "a partition of 48 MB fills while a group is far behind: what it has not read is kept, new "
        "messages are refused, and taken again when it has read",
        pressure.unread_messages,
    ),
    Scenario(
        "broker-power",
        "power cuts of a broker's disk: what was acknowledged is where it was",
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
        "a sync of a broker's file fails, and its pages are lost though they can be read: it ends, "
        "and nothing acknowledged before or after is missing behind a power cut",
        syncs.broker_failed_syncs,
        needs_library=True,
    ),
    Scenario(
        "offset-syncs",
        "likewise of the offset service's files",
        syncs.offset_failed_syncs,
        needs_library=True,
    ),
    Scenario(
        "full-disk",
        "no new blocks for a while: nothing acknowledged is lost, and all goes on afterwards",
        syncs.full_disks,
        needs_library=True,
    ),
    Scenario(
        "descriptors",
        "no file descriptors for a while: likewise",
        syncs.no_descriptors,
        needs_library=True,
    ),
    Scenario(
        "broker-flips",
        "a flipped bit in any file of a broker: what cannot be read as it was is told, to readers "
        "of all, of a tag, and of a key",
        flips.broker_flips,
    ),
    Scenario(
        "offset-flips",
        "a flipped bit in any file of the offset service: progress is as it was, or a start is "
        "refused",
        flips.offset_flips,
    ),
    Scenario(
        "broker-tails",
        "the newest record torn at any byte: all before it stays, and the broker goes on behind it",
        flips.broker_tails,
    ),
    Scenario(
        "broker-sizes",
        "files derived from the log empty, cut in half, too long or missing: made again, or told",
        flips.broker_sizes,
    ),
    Scenario(
        "fuzz",
        "anything sent to any call: an answer of the error table, and others notice nothing",
        fuzz.fuzz,
    ),
    Scenario(
        "gateway-fuzz",
        "20,000 calls of the gateway, valid ones with odd fields among them: no code of 5xxxx, no "
        "traceback, bounded memory, and a usual client goes on",
        gateway_fuzz.gateway_fuzz,
    ),
    Scenario(
        "roles", "each call by each kind of caller: those that may, and no others", fuzz.roles
    ),
    Scenario(
        "stops",
        "processes stopped for longer than their lease: who comes back takes nothing back",
        kills.stops,
    ),
    Scenario(
        "clocks",
        "the wall clock jumps by an hour and a day, both ways: nothing is lost, all goes on",
        kills.clocks,
        needs_library=True,
    ),
    Scenario(
        "doubles",
        "a second process on a store, or on a copy of it: it is refused, and the first goes on",
        kills.doubles,
    ),
    Scenario(
        "connections",
        "a thousand idle connections to each service: others get on, none stays behind",
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
