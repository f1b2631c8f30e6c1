"""The commands of docs/operate/backup.md, as written."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup.workload import TOPIC, Work
from deploy.page_runs import REPOSITORY, blocks, run_block

import rockoon
from rockoon.testing.disposable import DisposableCluster
from support.etcd import etcd_binary

PAGE = REPOSITORY / "docs" / "operate" / "backup.md"
SECONDS_MAX = 60.0


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A directory; programs that still run in it are killed."""
    yield tmp_path
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == tmp_path:
                os.kill(int(process.name), signal.SIGKILL)


async def test_the_commands_of_the_page_restore_a_cluster(workspace: Path) -> None:
    programs = workspace / "programs"
    programs.mkdir()
    for program in ("etcd", "etcdutl"):
        (programs / program).symlink_to(etcd_binary(program))
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = []
    with DisposableCluster() as local:
        async with rockoon.connect(local.nameservers) as cluster:
            await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
            work = Work()
            async with work.running(cluster, senders=1):
                await work.sent(20)
                await work.caught_up()
        environment = {**os.environ, "PATH": path, "ROCKOON_NAMESERVERS": local.nameservers[0]}
        for block in (each for each in blocks(PAGE) if each.mark != "example"):
            ran.append(
                await asyncio.to_thread(run_block, block, workspace, environment, SECONDS_MAX)
            )
            if "rockoon backup restore" in block.text:
                local.stop()
                shutil.rmtree(workspace / "backups")
    output = "".join(each.output for each in ran)
    assert "is intact" in output
    assert "group billing: no gap" in output
    assert "(RESTORED)" in output
    assert len(ran) == 5
