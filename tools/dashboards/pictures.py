"""Pictures of the dashboards, drawn by our own page and not by Grafana.

Reads the same JSON, sends the same expressions to a Prometheus, draws each panel, and makes a PNG
of the page with a headless browser (Debian's package chromium). Not supported: colours by threshold
in lines, tables, links.

    python -m tools.dashboards.pictures docs/operate/pictures

The data is that of a cluster under load: two brokers, the offset service and a nameserver;
producers, a group that keeps up, one that is too slow, one whose handler sometimes fails, delayed
messages, transactions, an export on Spark. Needs Debian's packages `prometheus` and
`prometheus-node-exporter`.
"""

import asyncio
import contextlib
import html
import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import rockoon
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
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


FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
WORK_SECONDS = 150.0
RATE_SECONDS = 12
COLUMN, ROW, GAP = 54, 26, 6
LINES_MAX = 8
COLORS = ("#3274d9", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#b7950b", "#0a8f9c", "#7d5a4f")
STYLE = """
body { margin: 10px; background: #f4f5f5; font: 12px "DejaVu Sans", sans-serif; color: #24292e; }
h1 { font-size: 17px; margin: 2px 0 8px; }
.place { position: absolute; box-sizing: border-box; }
.panel { background: white; border: 1px solid #dde; border-radius: 3px; padding: 5px 7px; }
.title { font-weight: bold; font-size: 12px; }
.legend { font-size: 10px; line-height: 13px; }
.value { font-size: 24px; text-align: center; }
.row { font-weight: bold; font-size: 13px; padding-top: 6px; }
"""


class Series(NamedTuple):
    """A series of a panel."""

    name: str
    points: list[tuple[float, float]]
    """Epoch seconds and value."""


class PrometheusRange(NamedTuple):
    """A Prometheus and a time range."""

    address: str
    start: float
    end: float

    def lines(self, panel: dict[str, Any]) -> list[Series]:
        """The series of a panel's expressions."""
        found = []
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", f"{RATE_SECONDS}s")
            for name in ("cluster", "node_id", "consumer_group"):
                expression = expression.replace(f"${name}", ".*")
            for series in self._ask(expression):
                legend = target["legendFormat"]
                for label, value in series["metric"].items():
                    legend = legend.replace(f"{{{{{label}}}}}", value)
                points = [(float(at), float(value)) for at, value in series["values"]]
                found.append(Series(legend, [p for p in points if math.isfinite(p[1])]))
        return [line for line in found if line.points]

    def _ask(self, expression: str) -> list[dict[str, Any]]:
        asked = {
            "query": expression,
            "start": self.start,
            "end": self.end,
            "step": SCRAPE_SECONDS,
        }
        url = f"http://{self.address}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def shown(value: float, unit: str) -> str:
    """A short text of a value with its unit."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("s", "ms"):
        seconds = value / 1000 if unit == "ms" else value
        for size, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
            if abs(seconds) >= size:
                return f"{seconds / size:.3g} {name}"
        return f"{seconds * 1000:.3g} ms"
    end = {"cps": "/s", "Bps": "B/s", "bytes": "B"}.get(unit, "")
    base = 1024 if unit in ("bytes", "Bps") else 1000
    scale = 0
    while abs(value) >= base and scale < 4:
        value, scale = value / base, scale + 1
    prefix = ("", "k", "M", "G", "T")[scale]
    return f"{value:.3g} {prefix}{end}".rstrip()


def page(dashboard: dict[str, Any], source: PrometheusRange) -> tuple[str, int]:
    """A dashboard as HTML, and its height in pixels."""
    parts = []
    bottom = 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        box = (
            place["x"] * COLUMN + 10,
            place["y"] * ROW + 42,
            place["w"] * COLUMN - GAP,
            place["h"] * ROW - GAP,
        )
        bottom = max(bottom, box[1] + box[3])
        style = "left:{}px;top:{}px;width:{}px;height:{}px".format(*box)
        if panel["type"] == "row":
            text = html.escape(panel["title"])
            parts.append(f'<div class="place row" style="{style}">{text}</div>')
            continue
        lines = source.lines(panel)
        unit = panel["fieldConfig"]["defaults"]["unit"]
        draw = chart if panel["type"] == "timeseries" else values
        inner = draw(lines, unit, box[2] - 16, box[3] - 24, panel)
        title = f'<div class="title">{html.escape(panel["title"])}</div>'
        parts.append(f'<div class="place panel" style="{style}">{title}{inner}</div>')
    head = f"<title>{dashboard['title']}</title><style>{STYLE}</style><h1>{dashboard['title']}</h1>"
    return f'<!doctype html><meta charset="utf-8">{head}{"".join(parts)}', bottom + 10


def values(lines: list[Series], unit: str, width: int, height: int, _: dict[str, Any]) -> str:
    """The last value of each line."""
    if not lines:
        return empty(width, height)
    cells = [
        f"<td><div class=value>{shown(line.points[-1][1], unit)}</div>"
        f"<div class=legend align=center>{html.escape(line.name)}</div></td>"
        for line in lines[:LINES_MAX]
    ]
    return f'<table width="100%"><tr>{"".join(cells)}</tr></table>'


def empty(width: int, height: int) -> str:
    return f'<div style="width:{width}px;padding-top:{height // 3}px" align=center>no data</div>'


def chart(lines: list[Series], unit: str, width: int, height: int, panel: dict[str, Any]) -> str:
    """Lines over time, stacked if the panel says so."""
    if not lines:
        return empty(width, height)
    lines = sorted(lines, key=lambda line: -line.points[-1][1])[:LINES_MAX]
    if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal":
        lines = stacked(lines)
    left, below = 62, 13 * ((len(lines) + 2) // 3) + 18
    plot_width, plot_height = width - left - 4, height - below
    start = min(line.points[0][0] for line in lines)
    end = max(line.points[-1][0] for line in lines)
    top = max(value for line in lines for _, value in line.points) * 1.08 or 1.0
    drawn = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = plot_height * (1 - share) + 4
        drawn.append(
            f'<line x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e6ea"/>'
            f'<text x="{left - 4}" y="{y + 3:.1f}" text-anchor="end" font-size="9">'
            f"{shown(top * share, unit)}</text>"
        )
    for color, line in zip(COLORS, lines, strict=False):
        path = " ".join(
            f"{left + plot_width * (at - start) / max(end - start, 1):.1f},"
            f"{4 + plot_height * (1 - max(value, 0) / top):.1f}"
            for at, value in line.points
        )
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4"/>')
    clock = [time.strftime("%H:%M:%S", time.gmtime(at)) for at in (start, end)]
    y = plot_height + 15
    drawn.append(f'<text x="{left}" y="{y}" font-size="9">{clock[0]}</text>')
    drawn.append(f'<text x="{width}" y="{y}" text-anchor="end" font-size="9">{clock[1]}</text>')
    legend = " &nbsp; ".join(
        f'<span style="color:{color}">&#9644;</span> {html.escape(line.name)}'
        for color, line in zip(COLORS, lines, strict=False)
    )
    picture = f'<svg width="{width}" height="{plot_height + 18}">{"".join(drawn)}</svg>'
    return f'{picture}<div class="legend">{legend}</div>'


def stacked(lines: list[Series]) -> list[Series]:
    """Lines with the sums of the lines after them in the list."""
    below: dict[float, float] = {}
    found = []
    for line in reversed(lines):
        points = []
        for at, value in line.points:
            below[at] = below.get(at, 0.0) + value
            points.append((at, below[at]))
        found.append(Series(line.name, points))
    return found[::-1]


def photograph(content: str, height: int, into: Path) -> None:
    """Draw a page into a PNG with a browser.

    Raises:
        CalledProcessError: the browser failed.
    """
    width = 24 * COLUMN + 20
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(content)
        subprocess.run(
            (
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={into}",
                file.as_uri(),
            ),
            check=True,
            capture_output=True,
            timeout=180,
        )
    # Lines and text need few colours; this keeps the files in the repository small.
    with Image.open(into) as picture:
        small = picture.convert("RGB").quantize(64)
    small.save(into, optimize=True)


async def make(into: Path) -> None:
    """Run a cluster under load, and make a picture of each dashboard."""
    began = time.time_ns() / 1e9
    with tempfile.TemporaryDirectory(prefix="rockoon-pictures-") as folder:
        async with sampled_cluster(Path(folder), WORK_SECONDS) as address:
            await wait_ready(address)
            source = PrometheusRange(address, began, time.time_ns() / 1e9)
            for path in sorted(FOLDER.glob("*.json")):
                content, height = await asyncio.to_thread(
                    page, json.loads(path.read_text()), source
                )
                picture = into / f"{path.stem}.png"
                await asyncio.to_thread(photograph, content, height, picture)
                sys.stdout.write(f"{picture}: {picture.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(make(Path(sys.argv[1])))
