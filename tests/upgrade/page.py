"""docs/operate/upgrade.md: its commands run as written, and its steps are done between them.

A cluster of a former commit's programs, with three copies of each log, is upgraded under load. The
upgrade is finished. Then the cluster goes back to the former programs, with imported offsets.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from backup.workload import TOPIC, Work
from deploy.page_runs import REPOSITORY, Block, PageError, blocks, run_block
from upgrade.former import programs
from upgrade.mixed import KINDS, SETTINGS, THIS, Mixed
from upgrade.visit import set_progress_aside

import rockoon
from bench.compare.programs import NotHere
from bench.layers.checkout import COMMIT
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster, LocalClusterError
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import PutKey, only

PAGE = REPOSITORY / "docs" / "operate" / "upgrade.md"
IDENTITY = "/rockoon/rockoon/identity"
COPIES = 3
SENT = 100
BLOCK_SECONDS_MAX = 120.0
# A lease of a killed process ends, a copy is elected, and all services get ready.
START_SECONDS_MAX = 300.0

Say = Callable[[str], None]


class Operator:
    """Runs blocks of the page.

    Args:
        folder: directory of the commands.
        local: the cluster.
    """

    def __init__(self, folder: Path, local: LocalCluster) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ROCKOON_NAMESERVERS": ",".join(local.nameservers),
        }

    async def run(self, block: Block) -> str:
        """Run a block, and return its output. Raises PageError."""
        done = await asyncio.to_thread(
            run_block, block, self.folder, self._environment, BLOCK_SECONDS_MAX
        )
        return done.output

    def offsets(self) -> dict[str, int]:
        """Offsets in the file that the page exports, by reader and queue."""
        lines = (self.folder / "offsets.jsonl").read_text().splitlines()
        found = {}
        for line in map(json.loads, lines):
            if "offset" in line:
                key = {name: line.get(name) for name in ("group", "member", "queue")}
                found[json.dumps(key, sort_keys=True)] = int(line["offset"])
        return found


def section(name: str) -> list[Block]:
    return [each for each in blocks(PAGE) if each.section == name]


async def run_step(folder: Path, say: Say) -> None:
    """The step of `make day2`.

    Raises:
        PageError: a command of the page failed.
        AssertionError: a promise of the page does not hold.
    """
    try:
        former = programs(COMMIT)
    except NotHere as reason:
        say(f"not run: {reason}")
        return
    local = LocalCluster(
        folder / "cluster",
        nameservers=2,
        brokers=1,
        replicas=COPIES,
        gateway=0,
        settings=SETTINGS,
        environment=dict.fromkeys(KINDS, former),
        durable=False,
    )
    async with local, rockoon.connect(local.nameservers, retry_seconds=60) as cluster:
        operator = Operator(folder, local)
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        work = Work()
        async with work.running(cluster):
            await work.sent(SENT)
            await upgrade(operator, local, cluster, former)
            await work.sent(SENT)
            await work.caught_up()
        say(f"{len(local.nodes) - 1} services were upgraded by the page, and the upgrade finished")
        await go_back(operator, local, former)
        say("the former programs run again, with the exported offsets")


async def upgrade(
    operator: Operator, local: LocalCluster, cluster: rockoon.Cluster, former: Mapping[str, str]
) -> None:
    before, after_each, finish = section("Upgrade")
    await operator.run(before)
    assert operator.offsets()
    mixed = Mixed(local, former, [])
    for kind in ("nameserver", "offset", "broker", "gateway"):
        for name in await followers_first(mixed.processes([kind]), cluster):
            await mixed.go([name], THIS)
            output = await operator.run(after_each)
    assert "rockoon upgrade finish" in output
    assert "feature level 1" in await operator.run(finish)


async def followers_first(names: list[str], cluster: rockoon.Cluster) -> list[str]:
    leaders = {log.leader.name for log in await cluster.admin.logs.list() if log.leader}
    return sorted(names, key=lambda name: name in leaders)


async def go_back(operator: Operator, local: LocalCluster, former: Mapping[str, str]) -> None:
    """Do the steps of "Downgrade" after a finished upgrade."""
    export, elect, bring_back = section("Downgrade")
    await operator.run(export)
    exported = operator.offsets()
    nodes = [node for node in local.nodes if str(node.kind) in KINDS]
    for node in reversed(nodes):
        await asyncio.to_thread(local.stop, node.name)
    set_progress_aside(local.directory)
    async with Etcd([local.node("etcd").address]) as etcd:
        (found,) = (await etcd.read(only(IDENTITY))).items
        value = json.loads(found.value)
        del value["level"]
        await etcd.transaction([], [PutKey(IDENTITY, json.dumps(value).encode())])
    for node in nodes:
        node.environment["PYTHONPATH"] = former["PYTHONPATH"]
        await asyncio.to_thread(local.start, node.name, wait=False)
    await started(operator, local, elect)
    await operator.run(bring_back)
    await operator.run(export)
    assert operator.offsets() == exported
    # A new connection: the offset service has other epochs.
    async with rockoon.connect(local.nameservers, retry_seconds=60) as cluster:
        work = Work()
        async with work.running(cluster, first=10):
            await work.sent(SENT)
            await work.caught_up()


async def started(operator: Operator, local: LocalCluster, elect: Block) -> None:
    """Wait until all services are ready. Meanwhile, elect a copy of the offset service, and start
    copies again whose names belonged to killed processes.
    """
    async with asyncio.timeout(START_SECONDS_MAX):
        async with rockoon.connect(
            local.nameservers, connect_seconds_max=START_SECONDS_MAX, retry_seconds=1.0
        ) as cluster:
            while True:
                try:
                    await cluster.admin.progress()
                    break
                except RockoonError:
                    pass
                try:
                    await operator.run(elect)
                except PageError as failure:
                    print(failure, file=sys.stderr)
        while True:
            try:
                return await local.wait_ready()
            except LocalClusterError as refusal:
                if "another store" not in str(refusal):
                    raise
                for name in local.replicas_of("offset"):
                    if name in str(refusal):
                        await asyncio.to_thread(local.start, name, wait=False)
