"""A service with a mechanism that is broken on purpose, so that a scenario has a fault to find.

python -m faults.broken_service MECHANISM MODULE [arguments of the service]
"""

import asyncio
import dataclasses
import os
import runpy
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple


def replace(path: str, made: Callable[[Any], Any]) -> None:
    """Replace "module:name" or "module:Class.name" by `made(former value)`."""
    module, _, name = path.partition(":")
    *owners, last = name.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    setattr(owner, last, made(getattr(owner, last)))


def nothing(*_: object, **__: object) -> None:
    return None


def syncs_nothing() -> None:
    replace("rockoon_core.disk:Disk.fdatasync", lambda _: nothing)


def syncs_no_names() -> None:
    replace("rockoon_core.disk:Disk.sync_directory", lambda _: nothing)


def goes_on() -> None:
    def swallowing(real: Any) -> Any:
        def fdatasync(disk: Any, fd: int) -> None:
            with suppress(OSError):
                real(disk, fd)

        return fdatasync

    replace("rockoon_core.disk:Disk.fdatasync", swallowing)


def broker_rewrites_nothing() -> None:
    replace("rockoon_core.disk:Disk.rewrite", lambda _: nothing)


def broker_believes_entries() -> None:
    replace("rockoon_broker.store.reading.reader:records_to_read", lambda _: nothing)
    replace(
        "rockoon_broker.store.reading.reader:plausible_count", lambda _: lambda rows, *_: len(rows)
    )
    replace(
        "rockoon_broker.store.reading.reader:matching_count",
        lambda _: lambda _, rows, *__: len(rows),
    )


def recovery_believes_bodies() -> None:
    def made(real: Any) -> Any:
        def __init__(scan: Any, *arguments: Any, **more: Any) -> None:
            real(scan, *arguments, **(more | {"checksums": False}))

        return __init__

    replace("rockoon_broker.store.log.scan:LogScan.__init__", made)


def broker_appends_repeats() -> None:
    replace("rockoon_broker.idempotence.ledger:SequenceLedger.stored", lambda _: lambda *_: ())


def anybody_locks() -> None:
    replace("fcntl:lockf", lambda _: nothing)


def everybody_may() -> None:
    replace("rockoon_runtime.access.keys:KnownKey.may", lambda _: lambda *_: True)


def a_call_fails() -> None:
    async def fails(*_: object) -> None:
        raise ValueError("nobody foresaw this")

    replace("rockoon_broker.rpc.service:BrokerService.SearchOffset", lambda _: fails)


def alone(_: object, ends: dict[str, int], epoch_start: int, before: int) -> int:
    """As `committed_end`: records that only the leader has are committed."""
    furthest = max(ends.values())
    return max(before, furthest) if furthest > epoch_start else before


def leader_counts_itself() -> None:
    replace("rockoon_replica.leadership:committed_end", lambda _: alone)


def leader_stays() -> None:
    replace("rockoon_replica.leadership:Leadership._leave_failing_disk", lambda _: nothing)


def producers_age_by_the_wall_clock() -> None:
    def made(real: Any) -> Any:
        def discard_unused(ledger: Any, newest_ms: int) -> None:
            ledger._age_ms += 2 * max(time.time_ns() // 10**6 - newest_ms - 3_600_000, 0)
            real(ledger, newest_ms)

        return discard_unused

    replace("rockoon_broker.idempotence.ledger:SequenceLedger.discard_unused", made)


def descriptors_are_closed_twice() -> None:
    def close(number: int) -> None:
        with suppress(OSError):
            os.close(number)

    def made(real: Any) -> Any:
        async def dialed(*where: Any) -> Any:
            transport, connection = await real(*where)
            number = transport.get_extra_info("socket").fileno()
            asyncio.get_running_loop().call_later(0.1, close, number)
            return transport, connection

        return dialed

    replace("rockoon_rpc.channel:dialed", made)


def unread_files_are_deleted() -> None:
    def made(real: Any) -> Any:
        def decide(facts: Any, rules: Any, **more: Any) -> Any:
            return real(facts, dataclasses.replace(rules, deletes_unread=True), **more)

        return decide

    replace("rockoon_broker.store.retention.cleaner:decide", made)


def copies_repair_nothing() -> None:
    async def refuses(*_: object, **__: object) -> bool:
        return False

    replace("rockoon_replica.copy_check:CopyCheck._repair", lambda _: refuses)


def older_snapshots_are_believed() -> None:
    def knows_run(member: Any, _: object) -> bool:
        member._run_is_known = True
        return bool(member.is_registered)

    replace("rockoon_replica.member:Member._knows_run", lambda _: knows_run)


class Mechanism(NamedTuple):
    """The broken mechanism, its change, and the scenarios that must notice it."""

    module: str
    break_it: Callable[[], None]
    noticed_by: tuple[str, ...]
    scale: float = 0.5
    """Scale of the scenario at which it notices the fault for certain."""


MECHANISMS = {
    "broker-sync": Mechanism("rockoon_broker", syncs_nothing, ("broker-power",)),
    "broker-names": Mechanism("rockoon_broker", syncs_no_names, ("broker-power",)),
    "offset-sync": Mechanism("rockoon_offset", syncs_nothing, ("offset-power",)),
    "offset-names": Mechanism("rockoon_offset", syncs_no_names, ("offset-power",)),
    "broker-end": Mechanism("rockoon_broker", goes_on, ("broker-syncs",)),
    "offset-end": Mechanism("rockoon_offset", goes_on, ("offset-syncs",)),
    "broker-rewriting": Mechanism("rockoon_broker", broker_rewrites_nothing, ("broker-syncs",)),
    "entries": Mechanism("rockoon_broker", broker_believes_entries, ("broker-flips",)),
    "bodies": Mechanism("rockoon_broker", recovery_believes_bodies, ("broker-tails",)),
    "sequences": Mechanism("rockoon_broker", broker_appends_repeats, ("kills",), 2.0),
    "lock": Mechanism("rockoon_broker", anybody_locks, ("doubles",)),
    "permissions": Mechanism("rockoon_broker", everybody_may, ("roles",)),
    "quorum": Mechanism("rockoon_broker", leader_counts_itself, ("copies",)),
    "hand-over": Mechanism("rockoon_broker", leader_stays, ("copies-disks",), 1.0),
    "ages": Mechanism("rockoon_broker", producers_age_by_the_wall_clock, ("copies-clocks",)),
    "descriptors": Mechanism("rockoon_broker", descriptors_are_closed_twice, ("copies-resets",)),
    "repair": Mechanism("rockoon_broker", copies_repair_nothing, ("copies-flips",)),
    "starts": Mechanism("rockoon_broker", older_snapshots_are_believed, ("copies-snapshots",)),
    "unread": Mechanism("rockoon_broker", unread_files_are_deleted, ("pressure",)),
    "errors": Mechanism("rockoon_broker", a_call_fails, ("fuzz",)),
}


def main() -> None:
    mechanism, module = sys.argv[1:3]
    broken = MECHANISMS[mechanism]
    if broken.module == module:
        broken.break_it()
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
