"""Hostile HTTP/2 peers: a service still answers its honest callers, and keeps no memory."""

from typing import NamedTuple

from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.scenario import Outcome, Task

from support.http2_attacks import ATTACKS
from support.http2_floods import Served, attacked, forget_peak, honest, memory_mib

SERVICES = ("nameserver-a", BROKER, OFFSET)
SECONDS, SECONDS_AROUND = 3.0, 1.0
# Of the honest calls before an attack, those answered during an attack by one connection.
SHARE_MIN = 0.7
P99_MS_MAX = 1_000.0
MEMORY_MIB_MAX, KEPT_MIB_MAX = 96, 48
# On a busy machine, the caller may get too little CPU in one try.
TRIES = 2


class Flooded(NamedTuple):
    """One attack on one service: calls of an honest caller, and the service's memory in MiB."""

    before: Served
    during: Served
    after: Served
    memory_before: int
    memory_peak: int
    memory_after: int

    def broken(self, connections: int) -> list[str]:
        """What does not hold."""
        found = []
        share = self.during.per_second / max(self.before.per_second, 1.0)
        if connections == 1 and share < SHARE_MIN:
            found.append(f"an honest caller gets {share:.0%} of its calls")
        if connections == 1 and self.during.p99_ms > P99_MS_MAX:
            found.append(f"p99 is {self.during.p99_ms:.0f} ms")
        if self.memory_peak - self.memory_before > MEMORY_MIB_MAX * connections:
            found.append(f"memory grows from {self.memory_before} to {self.memory_peak} MiB")
        if self.memory_after - self.memory_before > KEPT_MIB_MAX * connections:
            found.append(f"memory stays at {self.memory_after} MiB, {self.memory_before} before")
        return found

    def __str__(self) -> str:
        calls = " ".join(
            f"{each.per_second:4.0f}/s {each.p99_ms:5.0f} ms"
            for each in (self.before, self.during, self.after)
        )
        return f"{calls} {self.memory_before:4} {self.memory_peak:4} {self.memory_after:4} MiB"


async def flooded(port: int, pid: int, attack: str, connections: int) -> Flooded:
    """Attack one service for `SECONDS`."""
    before = await honest(port, SECONDS_AROUND)
    memory_before = memory_mib(pid)
    forget_peak(pid)
    async with attacked(port, attack, connections):
        during = await honest(port, SECONDS)
    after = await honest(port, SECONDS_AROUND)
    peak = memory_mib(pid, "VmHWM")
    return Flooded(before, during, after, memory_before, peak, memory_mib(pid))


async def floods(task: Task) -> Outcome:
    """Each attack on each service; with SCALE=20 by 20 connections."""
    outcome, connections = Outcome(), task.count(1)
    local = FaultyCluster(task)
    print("  before, during, after: honest calls and p99; memory before, peak, after")
    async with local:
        for name in SERVICES:
            node = local.node(name)
            assert node.pid is not None
            for attack in ATTACKS:
                for _ in range(TRIES):
                    shown = await flooded(node.port, node.pid, attack, connections)
                    outcome.injected += 1
                    outcome.acknowledged += round(shown.during.per_second * SECONDS)
                    print(f"  {name:12} {attack:22} {shown}", flush=True)
                    broken = shown.broken(connections)
                    if not broken:
                        break
                outcome.breaks(f"{name}, {attack}", broken)
            outcome.runs += 1
        outcome.breaks("at the end", local.unexpected_ends())
    return outcome
