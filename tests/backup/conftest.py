"""A backup that tests copy and damage."""

import asyncio
from pathlib import Path

import pytest
from backup.workload import SMALL_FILES, TOPIC, Work

import rockoon
from rockoon.backup.creation import create
from rockoon.backup.destination import DirectoryDestination as Directory
from rockoon.backup.manifest import BackupManifest
from rockoon.local import LocalCluster


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BackupManifest]:
    """Directory of the backup, and its manifest."""
    folder = tmp_path_factory.mktemp("made")

    async def make() -> BackupManifest:
        work = Work()
        async with (
            LocalCluster(folder / "cluster", settings=SMALL_FILES, single=True) as local,
            rockoon.connect(local.nameservers) as cluster,
        ):
            await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
            async with work.running(cluster):
                await work.sent(20)
            return await create(cluster, Directory(folder / "backups"))

    return folder / "backups", asyncio.run(make())


@pytest.fixture
def copied(made: tuple[Path, BackupManifest], tmp_path: Path) -> tuple[Directory, BackupManifest]:
    for path in made[0].rglob("*"):
        if path.is_file() and path.name != "lock":
            target = tmp_path / "backups" / path.relative_to(made[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return Directory(tmp_path / "backups"), made[1]
