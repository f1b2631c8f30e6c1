"""Hostile HTTP/2 peers: a service still answers its honest callers, and keeps no memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from faults import flood_table
from faults.cluster import FaultyCluster
from faults.flood_choice import BROKER, GATEWAY, NAMESERVER, FloodChoice
from faults.flood_polls import POLLS, make_polled
from faults.registrations import Registrations, complete, registrations
from faults.scenario import Outcome, Task

from rockoon.local.authority import Authority
from support.http2_attacks import Poll
from support.http2_floods import (
    HonestCaller,
    Served,
    attacked,
    cpu_seconds,
    forget_peak,
    honest_caller,
    memory_mib,
    process,
)

COPIES = 3
GRPCIO = "grpcio"
LOG = "broker-a"
OFFSET_LOG = "offset"
# Share of the honest calls before an attack that must succeed during an attack by one connection.
SHARE_MIN = 0.7
# Limit for successful calls, and for released memory, after an attack.
RECOVERY_SECONDS_MAX = 5.0
# Honest calls before an attack: the former attack does not count.
QUIET_PER_SECOND_MIN = 80
QUIET_TRIES = 20
# Multiple of grpcio's p99, if grpcio's server serves `SHARE_MIN` of its calls.
P99_TIMES_MAX = 2.0
# Accepted in any case, beyond the p99 at the idle server: processes share the cores.
P99_MS_MIN = 10.0
KEPT_MIB_MAX = 20
LOOK_SECONDS = 0.25
# A lease that an attack of a few seconds can cost.
LEASE_SECONDS = 2
# On a busy machine, a service may get too little CPU in one attempt.
TRIES = 3


@dataclass(frozen=True)
class Target:
    """A server that is attacked: its process, and an honest caller."""

    port: int
    pid: int
    caller: HonestCaller
    poll: Poll | None = None


class Flooded(NamedTuple):
    """One attack on one server.

    Attributes:
        before, during, after: calls of an honest caller.
        idle: calls of another caller during the attack, to a server that is not attacked.
        recovered: whether the caller got its replies again in time.
        cpu_share: share of one core that the server used during the attack.
        memory_before, memory_peak, memory_after: memory of the server, in MiB.
    """

    before: Served
    during: Served
    after: Served
    idle: Served
    recovered: bool
    cpu_share: float
    memory_before: int
    memory_peak: int
    memory_after: int

    @property
    def share(self) -> float:
        """Calls during the attack, relative to calls before it and to calls of the idle server: the
        machine may have become busy."""
        usual = min(self.before.per_second, self.idle.per_second)
        return self.during.per_second / max(usual, 1.0)

    def broken(self, connections: int, beside: "Flooded") -> list[str]:
        """Return the requirements that are not met, beside grpcio's server under the same
        attack."""
        found = []
        if not self.recovered:
            found.append(f"calls are not answered again {RECOVERY_SECONDS_MAX:.0f} s after it")
        if self.memory_after - self.memory_before > KEPT_MIB_MAX:
            found.append(f"memory stays at {self.memory_after} MiB, {self.memory_before} before")
        if connections > 1:
            return found
        if self.share < SHARE_MIN:
            failure = self.during.failure
            found.append(f"an honest caller gets {self.share:.0%} of its calls {failure}")
        if beside.share >= SHARE_MIN:
            p99_ms_max = max(P99_TIMES_MAX * beside.during.p99_ms, P99_MS_MIN + self.idle.p99_ms)
            if self.during.p99_ms > p99_ms_max:
                found.append(f"p99 is {self.during.p99_ms:.0f} ms, not {p99_ms_max:.0f} at most")
        return found

    def __str__(self) -> str:
        served = (self.before, self.during, self.after)
        calls = " ".join(f"{each.per_second:3.0f}/s {each.p99_ms:4.0f} ms" for each in served)
        memory = f"{self.memory_before:4} {self.memory_peak:4} {self.memory_after:4} MiB"
        idle = f"idle {self.idle.per_second:3.0f}/s {self.idle.p99_ms:3.0f} ms"
        return f"{calls} {self.cpu_share:4.0%} CPU {memory} ({idle})"


async def flooded(
    target: Target, idle: HonestCaller, attack: str, connections: int, seconds: float, *, tls: bool
) -> Flooded:
    """Attack one server.

    Args:
        target: the server.
        idle: a caller of a server that is not attacked.
        attack, connections, seconds, tls: of the attack.
    """
    around = seconds / 4
    for _ in range(QUIET_TRIES):
        before = await target.caller.measure(around)
        if before.per_second >= QUIET_PER_SECOND_MIN:
            break
    memory_before = memory_mib(target.pid)
    forget_peak(target.pid)
    clock = asyncio.get_running_loop().time
    async with attacked(target.port, attack, connections, tls=tls, poll=target.poll):
        began, cpu = clock(), cpu_seconds(target.pid)
        async with asyncio.TaskGroup() as tasks:
            during = tasks.create_task(target.caller.measure(seconds))
            beside = tasks.create_task(idle.measure(seconds))
        cpu_share = (cpu_seconds(target.pid) - cpu) / (clock() - began)
    until = clock() + RECOVERY_SECONDS_MAX
    latest = after = await target.caller.measure(around)
    while latest.per_second < SHARE_MIN * before.per_second and clock() < until:
        latest = await target.caller.measure(around)
    recovered = latest.per_second >= SHARE_MIN * before.per_second
    peak = memory_mib(target.pid, "VmHWM")
    while (memory := memory_mib(target.pid)) > memory_before + KEPT_MIB_MAX and clock() < until:
        await asyncio.sleep(LOOK_SECONDS)
    return Flooded(
        before,
        during.result(),
        after,
        beside.result(),
        recovered,
        cpu_share,
        memory_before,
        peak,
        memory,
    )


@asynccontextmanager
async def grpcio_target(directory: Path, *, tls: bool) -> AsyncIterator[Target]:
    """A server of grpcio. Each attack needs a new one, which does not work on the former attack."""
    issued = Authority(directory).issue(GRPCIO) if tls else None
    files = (issued.certificate, issued.key) if issued is not None else ()
    ca = directory / "ca.pem" if tls else None
    async with process("grpcio_server", *files) as server:
        port = int(await server.line())
        async with honest_caller(port, ca) as caller:
            yield Target(port, server.pid, caller)


class Floods:
    """Attacks on the services of one cluster, all with TLS or all without.

    Args:
        local: the cluster; it runs.
        idle: a caller of a server that is not attacked.
        directory: for certificates.
        choice: attacks, services and times.
        outcome: where violations are added.
    """

    def __init__(
        self,
        local: FaultyCluster,
        idle: HonestCaller,
        directory: Path,
        choice: FloodChoice,
        outcome: Outcome,
    ) -> None:
        self._local = local
        self._idle = idle
        self._directory = directory
        self._choice = choice
        self._outcome = outcome
        self._ca: Path | None = None
        if local.tls is not None:
            assert local.tls.ca is not None
            self._ca = Path(local.tls.ca)
        self._callers: dict[str, HonestCaller] = {}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> "Floods":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def attack(self, attack: str, connections: int) -> flood_table.Row:
        """Attack all chosen services, and grpcio's server beside them."""
        shown, broken = {}, set()
        beside = await self._beside(attack, connections)
        for service in self._choice.services:
            memory_before = None
            for _ in range(TRIES):
                faults, found = await self._one(service, attack, connections, beside, memory_before)
                shown[service], memory_before = found, found.memory_before
                if not faults:
                    break
                if connections == 1:
                    beside = await self._beside(attack, connections)
            if faults:
                broken.add(service)
            self._outcome.breaks(self._title(service, attack, connections), faults)
        return flood_table.Row(attack, {**shown, GRPCIO: beside}, frozenset(broken))

    async def _beside(self, attack: str, connections: int) -> Flooded:
        async with grpcio_target(self._directory, tls=self._ca is not None) as target:
            shown = await self._flooded(target, attack, connections)
        self._print(GRPCIO, attack, connections, shown)
        return shown

    async def _one(
        self,
        service: str,
        attack: str,
        connections: int,
        beside: Flooded,
        memory_before: int | None,
    ) -> tuple[list[str], Flooded]:
        """Attack one service once; return the requirements that are not met.

        Args:
            service, attack, connections: of the attack.
            beside: the same attack on grpcio's server.
            memory_before: of the service before the first try, in MiB; None: this is the first.
        """
        before = await self._complete()
        target = await self._target(service, before)
        shown = await self._flooded(target, attack, connections)
        if memory_before is not None:
            shown = shown._replace(memory_before=memory_before)
        self._outcome.injected += 1
        self._outcome.acknowledged += round(shown.during.per_second * self._choice.seconds)
        self._print(service, attack, connections, shown)
        faults = shown.broken(connections, beside)
        faults += (await registrations(self._local)).lost_since(before)
        faults += self._local.unexpected_ends()
        return faults, shown

    async def _flooded(self, target: Target, attack: str, connections: int) -> Flooded:
        tls = self._ca is not None
        seconds = self._choice.seconds
        return await flooded(target, self._idle, attack, connections, seconds, tls=tls)

    async def _complete(self) -> Registrations:
        return await complete(self._local, 2 * COPIES)

    async def _target(self, service: str, now: Registrations) -> Target:
        """The leader of a log, the nameserver or the gateway."""
        if service in (NAMESERVER, GATEWAY):
            name = {NAMESERVER: "nameserver-a", GATEWAY: "gateway"}[service]
        else:
            name = now.leaders[LOG if service == BROKER else OFFSET_LOG][1]
        node = self._local.node(name)
        assert node.pid is not None, f"{name} has ended"
        if name not in self._callers:
            made = honest_caller(node.port, self._ca)
            self._callers[name] = await self._exits.enter_async_context(made)
        return Target(node.port, node.pid, self._callers[name], POLLS[service])

    def _title(self, service: str, attack: str, connections: int) -> str:
        tls = "TLS" if self._ca is not None else "plain"
        return f"{service:10} {attack:24} {tls:5} {connections:2}"

    def _print(self, service: str, attack: str, connections: int, shown: Flooded) -> None:
        print(f"  {self._title(service, attack, connections)} {shown}", flush=True)


async def floods(task: Task) -> Outcome:
    """Each attack on each service beside grpcio's server, plain and encrypted, by one connection
    and by many."""
    outcome, choice = Outcome(), task.floods
    print("  before, during, after: honest calls and p99; CPU; memory before, peak, after")
    for tls in choice.tls:
        # One directory for each cluster.
        own = Task(task.directory / ("tls" if tls else "plain"), task.seed, broken=task.broken)
        own.directory.mkdir()
        local = FaultyCluster(
            own,
            settings={"nameserver": {"node_lease_seconds": LEASE_SECONDS}},
            replicas=COPIES,
            gateway=0,
            tls="on" if tls else "off",
        )
        async with (
            local,
            grpcio_target(own.directory / "idle", tls=tls) as idle,
            Floods(local, idle.caller, own.directory / "grpcio", choice, outcome) as attacks,
        ):
            await make_polled(local)
            for connections in choice.connections:
                names = choice.chosen()
                task.chance(f"{tls} {connections}").shuffle(names)
                rows = []
                for name in names:
                    rows.append(await attacks.attack(name, connections))
                    outcome.runs += 1
                if choice.out is not None:
                    flood_table.write(choice.out, tls=tls, connections=connections, rows=rows)
            outcome.breaks("at the end", local.unexpected_ends())
    return outcome
