"""Backups of a cluster with three copies of each log, and restores after a disaster."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from backup.workload import GROUP, TOPIC, Work, check_restored, destroy

import rockoon
from rockoon.backup.destination import BackupError, DirectoryDestination
from rockoon.backup.manifest import BackupManifest, Backups
from rockoon.backup.restoring import Restore, RestoreSources, faults
from rockoon.local import LocalCluster
from support.etcd import restore_snapshot
from support.waiting import DEADLINE_SECONDS

COPIES = 3
SETTINGS: dict[str, dict[str, object]] = {"broker": {"commit_log_file_bytes": "1MiB"}}
SENT = 5_000
LOOK_SECONDS = 0.2

Say = Callable[[str], None]


class Place:
    """Destination of the backups, used through the command line.

    Args:
        root: the directory.
        nameservers: of the cluster.
    """

    def __init__(self, root: Path, nameservers: list[str]) -> None:
        self.root = root
        self.destination = DirectoryDestination(root)
        self._nameservers = ",".join(nameservers)

    async def command(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rockoon.cli", "backup", *arguments,
            env={**os.environ, "ROCKOON_NAMESERVERS": self._nameservers},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip

    async def run(self, *arguments: str, status: int = 0) -> str:
        """Run a command, and return its output."""
        process = await self.command(*arguments)
        output = (await process.communicate())[0].decode()
        assert process.returncode == status, output
        return output

    async def create(self) -> BackupManifest:
        await self.run("create", str(self.root))
        return self.backups().manifest()

    def backups(self) -> Backups:
        return Backups(self.destination, self.destination.names())

    async def interrupt(self) -> str:
        """Kill a backup while it copies logs; return its name."""
        known = set(self.backups().complete)
        process = await self.command("create", str(self.root), "--rate", "0.3")
        async with asyncio.timeout(DEADLINE_SECONDS):
            # A part of a log is listed, or is being written.
            while not any(path.stat().st_size for path in self.root.rglob("logs/**/*.partial")):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(LOOK_SECONDS)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert set(self.backups().complete) == known
        (name,) = self.backups().interrupted
        return name


@asynccontextmanager
async def restored(folder: Path) -> AsyncIterator[rockoon.Cluster]:
    """A cluster with three copies of each log, one of each restored and two empty."""
    settings: dict[str, dict[str, object]] = {
        **SETTINGS,
        "broker-a-0": {"store_path": folder / "broker-a"},
        "offset-0": {"store_path": folder / "offset"},
    }
    # As `rockoon up` names the member and its peers.
    data = folder / "new" / "etcd"
    await asyncio.to_thread(
        restore_snapshot, folder / "etcd.snapshot", data, "local", "http://127.0.0.1:0"
    )
    async with (
        LocalCluster(folder / "new", replicas=COPIES, settings=settings) as local,
        rockoon.connect(local.nameservers, retry_seconds=60) as cluster,
    ):
        await copies_in_sync(cluster)
        yield cluster


async def copies_in_sync(cluster: rockoon.Cluster) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while any(
            len(log.in_sync) < COPIES or not log.confirmed
            for log in await cluster.admin.logs.list()
        ):
            await asyncio.sleep(LOOK_SECONDS)


async def run(folder: Path, say: Say) -> None:
    work, root = Work(), folder / "backups"
    old = folder / "old"
    async with (
        LocalCluster(old, replicas=COPIES, settings=SETTINGS) as local,
        rockoon.connect(local.nameservers, retry_seconds=60) as cluster,
    ):
        place = Place(root, local.nameservers)
        await cluster.admin.create_topic(TOPIC, queues_per_broker=4)
        async with work.running(cluster, senders=16):
            await work.sent(SENT)
            early = await place.create()
            await cluster.admin.create_topic("later", queues_per_broker=1)
            await work.sent(SENT)
            interrupted = await place.interrupt()
            assert f"{interrupted}  INTERRUPTED" in await place.run("list", str(root))
            say("a backup that was killed is listed as interrupted")
            before = len(work.acknowledged)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(lose_leader(local, cluster))
                made = tasks.create_task(place.create())
            manifest = made.result()
            assert not place.backups().interrupted
            reused = {part.file.name for log in early.logs for part in log.parts}
            assert reused & {part.file.name for log in manifest.logs for part in log.parts}
            await work.sent(SENT)
            await committed_beyond(cluster, manifest)
            late = await place.create()
        kept = work.before_cut(manifest)
        assert len(kept) >= before
        say(f"{len(work.acknowledged)} messages acknowledged, {len(kept)} before the cut")
        destroy(local, old)
    assert "is intact" in await place.run("verify", str(root))
    say("all processes are killed, and their disks deleted")
    await damaged(folder, place, manifest, say)
    cases = {
        "backup": RestoreSources(manifest, manifest, manifest),
        "older routes and progress": RestoreSources(manifest, early, early),
        "newer routes and progress": RestoreSources(manifest, late, late),
    }
    for name, sources in cases.items():
        await restore(folder / name.replace(" ", "-"), place, sources, work, name, say)


async def committed_beyond(cluster: rockoon.Cluster, manifest: BackupManifest) -> None:
    """Wait until the group has committed messages after the cut of a backup."""
    (log,) = manifest.logs
    end = sum(end for _, end in log.queues[TOPIC])
    async with asyncio.timeout(DEADLINE_SECONDS):
        while sum(each.offset for each in await cluster.admin.progress(GROUP, TOPIC)) <= end:
            await asyncio.sleep(LOOK_SECONDS)


async def lose_leader(local: LocalCluster, cluster: rockoon.Cluster) -> None:
    """Kill the leader of the broker's log, and start it again."""
    leader = (await cluster.admin.logs.describe("broker-a")).leader
    assert leader is not None
    await asyncio.to_thread(local.kill, leader.name)
    await asyncio.to_thread(local.start, leader.name, wait=False)
    await local.wait_ready(leader.name)


async def restore(
    target: Path, place: Place, sources: RestoreSources, work: Work, name: str, say: Say
) -> None:
    manifest = sources.logs
    output = await place.run(
        "restore", str(place.root), str(target), "--backup", manifest.backup,
        "--progress-of", sources.progress.backup, "--routes-of", sources.routes.backup,
    )  # fmt: skip
    assert f"group {GROUP}: " in output
    async with restored(target) as cluster:
        offsets = await check_restored(cluster, work, manifest)
        stories = await cluster.admin.why(GROUP, TOPIC)
        told = [
            each
            for each in stories
            if each.progress and "are lost" in each.progress.start_explanation
        ]
        if sources.progress.backup > manifest.backup:
            assert told
            assert f"{len(told)} queues have a gap" in output
        else:
            assert not told
            assert "no gap" in output
        after = Work()
        async with after.running(cluster, first=100):
            await after.sent(100)
            await after.caught_up()
        unread = work.before_cut(manifest).keys() - work.handled - after.handled
        assert not unread, f"{len(unread)} messages were skipped"
    kept = len(work.before_cut(manifest))
    say(f"{name}: {kept} messages restored, 0 lost; {len(offsets)} offsets, {len(told)} with gap")


async def damaged(folder: Path, place: Place, manifest: BackupManifest, say: Say) -> None:
    """Flip a bit in each kind of file; `verify` and `restore` must name it."""
    log = manifest.logs[0]
    files = (manifest.progress, manifest.routes, log.parts[0].file, log.parts[-1].file)
    for number, file in enumerate(files):
        path = place.root / file.name
        intact = path.read_bytes()
        broken = bytearray(intact)
        broken[len(broken) // 2] ^= 4
        path.write_bytes(broken)
        output = await place.run("verify", str(place.root), manifest.backup, status=1)
        assert file.name in output
        assert list(faults(place.destination, manifest))
        try:
            target = folder / f"damaged-{number}"
            sources = RestoreSources(manifest, manifest, manifest)
            await asyncio.to_thread(Restore(place.destination, sources, target).run)
        except BackupError as failure:
            assert file.name in str(failure)
        else:
            raise AssertionError(f"{file.name} is damaged and was restored")
        path.write_bytes(intact)
    say(f"{len(files)} damaged files were found by verify, and refused by restore")
