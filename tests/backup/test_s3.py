"""Backups in S3, by the commands: made, listed, verified, removed and restored."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from backup.test_page import PAGE
from backup.workload import TOPIC, Work
from deploy.page_runs import blocks, run_block
from moto.server import ThreadedMotoServer

import rockoon
from rockoon.backup.destination import BackupError, open_destination
from rockoon.local import LocalCluster
from support.waiting import DEADLINE_SECONDS

KEY, SECRET = "maker", "SEC/RET+key"
SMALL_FILES = {"broker": {"commit_log_file_bytes": "16KiB"}}


@dataclass
class Server:
    """An S3 server with a bucket.

    Attributes:
        address: "host:port".
        environment: of the commands.
    """

    address: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=self.address,
            scheme="http",
            region="eu-west-1",
            allow_bucket_creation=True,
        )

    def place(self, path: str) -> str:
        endpoint = self.address.replace(":", "%3A")
        return f"s3://{path}?region=eu-west-1&scheme=http&endpoint_override={endpoint}"

    async def run(self, *arguments: str, status: int = 0) -> str:
        """Run `rockoon backup`, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rockoon.cli", "backup", *arguments),
            env=os.environ | self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == status, output
        assert SECRET not in output
        assert "Traceback" not in output, output
        return output


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    found = Server(f"{host}:{port}")
    found.environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    found.files.create_dir("bucket")
    yield found
    running.stop()


async def test_backups_in_s3_are_made_verified_removed_and_restored(
    server: Server, tmp_path: Path
) -> None:
    place, work = server.place("bucket/backups/rockoon"), Work()
    async with (
        LocalCluster(single=True, settings=SMALL_FILES) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        server.environment["ROCKOON_NAMESERVERS"] = ",".join(local.nameservers)
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        made = []
        for _ in range(2):
            async with work.running(cluster):
                await work.sent(100)
                await work.caught_up()
            made.append(json.loads(await server.run("create", place, "--json"))["backup"])
    listed = json.loads(await server.run("list", place, "--json"))
    assert [each["backup"] for each in listed["backups"]] == made
    assert "is intact" in await server.run("verify", place)
    # The last backup uses files that the first one has copied.
    output = await server.run("prune", place, "--keep", "1", "--yes")
    assert [f"removed: {each}" for each in made[:1]] == output.splitlines()[:1]
    assert "is intact" in await server.run("verify", place)
    files = server.files
    for each in files.get_file_info(pafs.FileSelector("bucket/backups", recursive=True)):
        assert not (each.is_file and any(old in each.path for old in made[:1]))
    restored = tmp_path / "restored"
    output = await server.run("restore", place, str(restored))
    assert "group billing: no gap" in output
    assert {"broker-a", "offset", "routes", "etcd.snapshot"} <= {
        each.name for each in restored.iterdir()
    }
    # A changed byte.
    name = f"bucket/backups/rockoon/{made[1]}/progress"
    with files.open_input_stream(name) as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    with files.open_output_stream(name) as file:
        file.write(bytes(content))
    output = await server.run("verify", place, status=1)
    assert f"s3://bucket/backups/rockoon/{made[1]}/progress is damaged" in output


async def test_the_commands_of_the_page_run_in_s3(server: Server, tmp_path: Path) -> None:
    (block,) = (each for each in blocks(PAGE) if each.mark == "example")
    text = block.text.replace("s3.example.com%3A9000", server.address.replace(":", "%3A"))
    text = text.replace("scheme=https", "scheme=http")
    text = text.replace("=KEY ", f"={KEY} ").replace("=SECRET\n", f"={SECRET}\n")
    async with (
        LocalCluster(single=True, settings=SMALL_FILES) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        work = Work()
        async with work.running(cluster):
            await work.sent(20)
            await work.caught_up()
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ROCKOON_NAMESERVERS": ",".join(local.nameservers),
        }
        ran = await asyncio.to_thread(
            run_block, replace(block, text=text), tmp_path, environment, DEADLINE_SECONDS
        )
    assert "is intact" in ran.output
    assert "1 backups are kept" in ran.output
    assert "group billing: no gap" in ran.output
    assert (tmp_path / "restored-from-store" / "etcd.snapshot").exists()


async def test_what_is_wrong_with_an_address_is_one_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    missing = open_destination(server.place("elsewhere/backups"))
    with pytest.raises(BackupError, match=r"^s3://elsewhere/backups/file cannot be written: "):
        missing.write("file", b"content")
    with pytest.raises(BackupError, match=r"^s3://bucket/backups cannot be used: .*'regoin'"):
        open_destination(f"{server.place('bucket/backups')}&regoin=eu-west-1").names()
    with pytest.raises(BackupError, match=r"^s3://bucket/bakcups is no directory with backups"):
        open_destination(server.place("bucket/bakcups"), existing=True)
    away = open_destination("s3://bucket/backups?scheme=http&endpoint_override=127.0.0.1%3A1")
    with pytest.raises(BackupError, match=r"^s3://bucket/backups cannot be read: "):
        away.names()
