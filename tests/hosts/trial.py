"""A cluster goes through cuts, one after another, while clients work; then the rules are checked.

The rules are in `verdict.py`.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.workload import read_topic, when_there
from hosts.availability import PROMPT_SECONDS, Timeline, timelines
from hosts.cluster import GROUPS, READERS, TOPIC, HostsCluster
from hosts.cuts import DELAY_MS, LOSS_PERCENT, Cut, Deed
from hosts.disks import Disks
from hosts.network import Network
from hosts.progress import Progress
from hosts.records import Records
from hosts.roles import roles_of
from hosts.shape import CLIENTS, LOG, Shape
from hosts.verdict import Outcome, Result, judged

import rockoon
from rockoon.errors import RockoonError
from rockoon_core.message_queue import queue_from_wire
from support.log_history import Read

QUEUES_PER_BROKER = 4
LOOK_SECONDS = 0.25
# Time limit for everything to work: at the start, and after a cut.
SETTLE_SECONDS_MAX = 90.0
# Time for which a killed process is away, and a stopped one.
KILLED_SECONDS = 3.0
STOPPED_SECONDS = 10.0
SMALL_FILES = {"commit_log_file_bytes": "16MiB", "index_slots": 5000, "index_units": 20_000}


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: before each cut, of each cut, and without a gap until it counts as over."""

    before_seconds: float = 1.0
    cut_seconds: float = 11.0
    calm_seconds: float = 2.0


class Trial:
    """One run.

    Args:
        servers: running.
        cluster: a connection that is never cut.
        network: their network.
        shape: numbers of the processes.
    """

    def __init__(
        self, servers: HostsCluster, cluster: rockoon.Cluster, network: Network, shape: Shape
    ) -> None:
        self._servers = servers
        self._cluster = cluster
        self._network = network
        self._shape = shape
        caller, *members = CLIENTS
        self._records = Records(
            [servers.log(name) for name in (caller, *READERS)],
            [servers.log(host) for host in members],
        )
        self._outcomes: list[Outcome] = []
        self._stopping = False
        self._pace = Pace()
        self._progress = Progress()

    async def run(self, cuts: Sequence[Cut], pace: Pace) -> Result:
        """Go through cuts, in their order."""
        self._pace = pace
        faults: list[str] = []
        self._servers.start_clients()
        await self._settled(time.monotonic_ns(), "the clients to start")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_progress(), name="progress")
            for cut in cuts:
                try:
                    roles = await roles_of(self._cluster, self._shape, self._servers.etcds)
                except TimeoutError:
                    faults.append(f"not all have a leader and their copies before: {cut.name}")
                    break
                self._outcomes.append(await self._go_through(cut, roles))
                print(f"been through: {cut.name}", file=sys.stderr, flush=True)
            self._stopping = True
        await asyncio.to_thread(self._servers.stop_caller)
        await self._all_stored()
        await asyncio.to_thread(self._servers.stop_members)
        last = await self._read_all()
        ended = [*faults, *self._servers.faults()]
        return judged(
            self._outcomes,
            self._records,
            self._progress,
            ended,
            last,
            sends_may_fail=self._shape.copies == 1,
        )

    async def _go_through(self, cut: Cut, roles: Mapping[str, str]) -> Outcome:
        epoch = await self._epoch()
        before_ns = time.monotonic_ns()
        before_bytes = self._servers.resident_bytes()
        most_bytes = dict(before_bytes)
        await asyncio.sleep(self._pace.before_seconds)
        cut_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as tasks:
            done = tasks.create_task(self._do(cut, roles), name=cut.name)
            while not done.done():
                await asyncio.sleep(LOOK_SECONDS)
                for host, size in self._servers.resident_bytes().items():
                    most_bytes[host] = max(most_bytes.get(host, 0), size)
        healed_ns = done.result()
        settled_ns = await self._settled(healed_ns, f"everything to work after: {cut.name}")
        growth = {host: most_bytes[host] - size for host, size in before_bytes.items()}
        epochs = epoch, await self._epoch()
        return Outcome(cut, before_ns, cut_ns, healed_ns, settled_ns, growth, epochs)

    async def _epoch(self) -> int:
        """Return the epoch of the log; 0 if no other replica can lead it."""
        if self._shape.copies == 1:
            return 0
        described = await when_there(lambda: self._cluster.admin.logs.describe(LOG))
        return described.epoch

    async def _do(self, cut: Cut, roles: Mapping[str, str]) -> int:
        """Execute the act on network or processes, and undo it; return its times."""
        servers, victims = self._servers, cut.victims_now(roles)
        match cut.deed:
            case Deed.KILL:
                await asyncio.to_thread(servers.kill, victims)
                await asyncio.sleep(KILLED_SECONDS)
                await asyncio.to_thread(servers.start, victims)
            case Deed.STOP:
                servers.pause(victims)
                await asyncio.sleep(STOPPED_SECONDS)
                servers.go_on(victims)
            case Deed.WIPE:
                await asyncio.to_thread(servers.kill, victims)
                await asyncio.to_thread(servers.wipe, victims[0])
                await asyncio.to_thread(servers.start, victims)
            case Deed.POWER:
                await asyncio.to_thread(servers.cut_power, victims)
                await asyncio.to_thread(servers.start, victims)
            case None:
                directions = cut.directions_now(roles)
                self._network.cut(directions)
                self._network.slow_down(cut.slow, DELAY_MS, LOSS_PERCENT)
                await asyncio.sleep(cut.seconds or self._pace.cut_seconds)
                # Before: replies from now on may arrive over a good wire.
                healed_ns = time.monotonic_ns()
                self._network.heal(directions)
                self._network.slow_down(cut.slow, 0, 0)
                return healed_ns
        return time.monotonic_ns()

    async def _settled(self, from_ns: int, what: str) -> int:
        """Wait until everything is done promptly for some time; return the start of the checks.

        The wait is limited; a cluster that does not recover in time counts as not healed.
        """
        calm_ns = int(self._pace.calm_seconds * 1e9)
        prompt_ns = int(PROMPT_SECONDS * 1e9)
        deadline_ns = time.monotonic_ns() + int(SETTLE_SECONDS_MAX * 1e9)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._records.look()
            # It is not known yet whether the last ones are prompt; receiving begins with a reply.
            to_ns = time.monotonic_ns() - 2 * prompt_ns
            lines = self._timelines(to_ns - calm_ns, to_ns)
            shares = [share for line in lines for share in line.shares]
            if to_ns - calm_ns >= from_ns and all(share == 1 for share in shares):
                return to_ns
            if time.monotonic_ns() > deadline_ns or self._servers.faults():
                said = {line.kind: line.shares for line in lines}
                print(f"gave up waiting for {what}: {said}", file=sys.stderr, flush=True)
                return to_ns

    def _timelines(self, from_ns: int, to_ns: int) -> list[Timeline]:
        records = self._records
        return timelines(records.operations, records.handled_ns, GROUPS, from_ns, to_ns)

    async def _watch_progress(self) -> None:
        while not self._stopping:
            try:
                for group in GROUPS:
                    progress = await self._cluster.admin.progress(group, TOPIC)
                    at_ns = time.monotonic_ns()
                    for each in progress:
                        queue = str(queue_from_wire(each.queue))
                        self._progress.note(group, queue, each.epoch, each.offset, at_ns)
            except RockoonError as error:
                assert error.retriable, error
            await asyncio.sleep(4 * LOOK_SECONDS)

    async def _all_stored(self) -> None:
        """Wait until every group's progress is at the end of every queue."""
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                topic = await self._cluster.admin.describe_topic(TOPIC)
                ends = {
                    (each.queue.broker, each.queue.queue_id): each.state.max_offset
                    for each in topic.queues
                    if each.state is not None
                }
                stored = [
                    {
                        (each.queue.broker, each.queue.queue_id): each.offset
                        for each in await self._cluster.admin.progress(group, TOPIC)
                    }
                    for group in GROUPS
                ]
                if all(each == ends for each in stored):
                    return
                await asyncio.sleep(LOOK_SECONDS)

    async def _read_all(self) -> list[Read]:
        """Read every queue completely, after the last send."""
        began_ns = time.monotonic_ns()
        stored = await read_topic(self._cluster, TOPIC)
        assert not stored.troubles, stored.troubles
        found = []
        for queue, messages in stored.messages.items():
            at = {each.queue_offset: each.body.decode() for each in messages}
            end = max(at, default=-1) + 1
            its = [at.get(offset) for offset in range(end)]
            found.append(Read(str(queue), began_ns, time.monotonic_ns(), 0, its, end))
        return found


async def go_through(
    directory: Path,
    shape: Shape,
    cuts: Sequence[Cut],
    pace: Pace,
    settings: dict[str, dict[str, object]],
) -> Result:
    """Create network and cluster, go through cuts, and check; called by `apart`'s process."""
    network = Network(shape.hosts, on_wires={host for cut in cuts for host in cut.slow})
    network.make()
    disks = None
    if any(cut.deed is Deed.POWER for cut in cuts):
        disks = Disks(directory, directory / "aside", shape.broker_logs[LOG])
        # The content of a disk is kept in memory.
        settings = {**settings, "broker": {**SMALL_FILES, **settings.get("broker", {})}}
    with HostsCluster(network, shape, directory, settings, disks) as servers:
        async with rockoon.connect(servers.nameservers) as cluster:
            await when_there(
                lambda: cluster.admin.create_topic(
                    TOPIC, queues_per_broker=QUEUES_PER_BROKER, if_absent=True
                )
            )
            return await Trial(servers, cluster, network, shape).run(cuts, pace)
