"""A cluster under load with a Prometheus: the data of the dashboards' pictures.

Two brokers, the offset service and a nameserver; producers, a group that keeps up, one that is too
slow, one whose handler sometimes fails, delayed messages, transactions, an export on Spark. Needs
Debian's packages `prometheus` and `prometheus-node-exporter`.
"""

import asyncio
import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import rockoon
from rockoon.local import LocalCluster
from rockoon.local.ports import choose_port
from rockoon.transactions.transaction import Resolution

SCRAPE_SECONDS = 2
NODES = ("nameserver-a", "broker-a", "broker-b", "offset")
READY_SECONDS_MAX = 60.0


@contextlib.asynccontextmanager
async def sampled_cluster(folder: Path, seconds: float) -> AsyncIterator[str]:
    """Run the load, then yield the address of a Prometheus that has scraped it.

    Args:
        folder: for stores and samples.
        seconds: how long the cluster works.
    """
    ports: dict[str, int] = {}
    for each in (*NODES, "prometheus", "exporter"):
        ports[each] = choose_port(set(ports.values()))
    settings: dict[str, dict[str, object]] = {
        node: {"metrics_listen": f"127.0.0.1:{ports[node]}"} for node in NODES
    }
    jobs = folder / "jobs"
    jobs.mkdir()
    with prometheus(folder, ports), exporter(jobs, ports["exporter"]):
        async with LocalCluster(folder / "cluster", brokers=2, settings=settings) as local:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work(local, seconds), name="work")
                tasks.create_task(run_export(local, folder, jobs), name="export")
            # Prometheus also scrapes the final metrics of the export a few times.
            await asyncio.sleep(5 * SCRAPE_SECONDS)
            yield f"127.0.0.1:{ports['prometheus']}"


@contextlib.contextmanager
def prometheus(folder: Path, ports: dict[str, int]) -> Iterator[None]:
    services = ", ".join(f"'127.0.0.1:{ports[node]}'" for node in NODES)
    (folder / "prometheus.yml").write_text(
        f"""global: {{scrape_interval: {SCRAPE_SECONDS}s}}
scrape_configs:
  - {{job_name: rockoon, static_configs: [{{targets: [{services}]}}]}}
  - {{job_name: node, static_configs: [{{targets: ['127.0.0.1:{ports["exporter"]}']}}]}}
"""
    )
    with program(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'samples'}",
        f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
    ):
        yield


@contextlib.contextmanager
def exporter(jobs: Path, port: int) -> Iterator[None]:
    with program(
        "prometheus-node-exporter",
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={jobs}",
        f"--web.listen-address=127.0.0.1:{port}",
    ):
        yield


@contextlib.contextmanager
def program(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def wait_ready(address: str) -> None:
    """Wait until a Prometheus answers."""

    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    async with asyncio.timeout(READY_SECONDS_MAX):
        while not await asyncio.to_thread(ask):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


async def run_export(local: LocalCluster, folder: Path, jobs: Path) -> None:
    """Run an export of all messages after a few seconds, as a schedule would."""
    await asyncio.sleep(5)
    command = ("-m", "rockoon.cli", "spark", "export", "--endpoint", local.nameservers[0])
    target = ("--target", str(folder / "export"), "--metrics-file", str(jobs / "export.prom"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *target, stdout=subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError(f"the export ended with {process.returncode}: its page would be empty")


async def work(local: LocalCluster, seconds: float) -> None:
    """The load: all operations that the dashboards have a panel for, at a moderate rate."""

    async def bill(_: rockoon.Message) -> None: ...

    async def look_closely(_: rockoon.Message) -> None:
        await asyncio.sleep(0.05)

    async def deliver(message: rockoon.Message) -> None:
        if message.queue_offset % 50 == 0:
            raise ValueError("no such address")

    async with rockoon.connect(local.nameservers) as cluster:
        admin = cluster.admin
        for topic in ("orders", "payments"):
            await admin.create_topic(topic, queues_per_broker=4)
        async with (
            cluster.producer() as producer,
            cluster.transactional_producer("tills", check=lambda _: Resolution.COMMIT) as till,
            cluster.push_consumer("billing", {"orders": "*"}, bill, consume_from="first"),
            cluster.push_consumer("audit", {"orders": "*"}, look_closely, consume_from="first"),
            cluster.push_consumer("delivery", {"payments": "*"}, deliver, consume_from="first"),
        ):
            loop = asyncio.get_running_loop()
            end, turn = loop.time() + seconds, 0
            while loop.time() < end:
                turn += 1
                count = 150 + 100 * (turn // 100 % 2)
                await producer.send_many("orders", [b"o" * (200 + turn % 7 * 300)] * count)
                await producer.send_many("payments", [b"p" * 120] * 20)
                await producer.send("payments", b"later", delay_seconds=20)
                if turn % 5 == 0:
                    async with till.transaction("payments", b"paid"):
                        pass
                await asyncio.sleep(0.2)
