"""Writes the generated parts of docs/measurements/capacity.md, between markers.

<!-- begin NAME -->
(generated)
<!-- end NAME -->
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from xml.sax.saxutils import escape

from bench.capacity import model
from bench.capacity.bench_cluster import LOAD
from bench.capacity.model import Costs, Demand, Foretold, Shape
from bench.capacity.point import NOBODY, Part, Point
from bench.tables import MISSING, fill, markdown

Parts = Mapping[str, Part]

BROKER, OFFSET, NAMESERVER, ETCD = "broker-a", "offset", "nameserver-a", "etcd"
PROCESSES = {LOAD: "load", BROKER: "broker", OFFSET: "offset", NAMESERVER: "names", ETCD: "etcd"}
MIB = 1 << 20

# The tables of each part, in a block with the part's name.
TABLES = (
    "producers",
    "sizes",
    "rates",
    "readers",
    "members",
    "queues",
    "topics",
    "watchers",
    "groups",
    "heartbeats",
)

# Service, operation, unit, part, measure, and the process whose CPU is counted.
SATURATION = (
    ("broker", "append, 100 bytes", "messages", "producers", "append, by producers", BROKER),
    ("broker", "append, one message a batch", "batches", "queues",
     "append to any queue, by queues", BROKER),
    ("broker", "pull, columns, 100 bytes", "messages", "readers", "pull, by readers", BROKER),
    ("broker", "pull that finds nothing", "calls", "readers",
     "pull of nothing, by pulls that wait", BROKER),
    ("offset", "heartbeat, one member", "calls", "groups", "heartbeat, by groups", OFFSET),
    ("offset", "commit, one queue", "calls", "groups", "commit 1 queue, by groups", OFFSET),
    ("offset", "commit, eight queues", "calls", "groups", "commit 8 queues, by groups", OFFSET),
    ("nameserver", "make a topic", "topics", "topics", "make a topic, by topics", NAMESERVER),
    ("nameserver", "notify one watcher of a change", "notifications", "watchers",
     "a change of one route, by watchers", NAMESERVER),
)  # fmt: skip

FORETOLD = (
    ("queues", "append to any queue, by queues", "broker_bytes"),
    ("queues", "append to any queue, by queues", "consume_queue_disk_bytes"),
    ("queues", "append to any queue, by queues", "restart_seconds"),
    ("topics", "make a topic, by topics", "nameserver_bytes"),
    ("topics", "make a topic, by topics", "snapshot_bytes"),
    ("topics", "make a topic, by topics", "etcd_bytes"),
    ("groups", "commit 1 queue, by groups", "offset_bytes"),
    ("groups", "commit 1 queue, by groups", "etcd_bytes"),
    ("watchers", "a change of one route, by watchers", "all_told_ms"),
)

DEMANDS = (
    Demand(queues=1_000, groups=20),
    Demand(queues=10_000, groups=100),
    Demand(queues=100_000, groups=1_000),
    Demand(queues=1_000_000, groups=10_000, batch_messages=10.0),
    Demand(queues=1_000_000, groups=10_000),
)
SHAPES = (Shape(1, 1, 1), Shape(3, 1, 3), Shape(10, 1, 3), Shape(30, 3, 5), Shape(100, 5, 5))
LARGEST = DEMANDS[-1]
# Shape of the cluster in the table of the computation.
SHOWN = Shape(30, 3, 5)
BREAKS = 3


def write(page: Path, parts: Parts) -> None:
    """Write every generated block of the page, and its charts."""
    made = blocks(parts)
    fill(page, lambda name: made.get(name, MISSING))
    folder = page.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, picture in pictures(parts).items():
        (folder / f"capacity-{name}.svg").write_text(picture)


def blocks(parts: Parts) -> dict[str, str]:
    """Return the content of each generated block by name."""
    made = {name: tables(parts[name]) for name in TABLES if name in parts}
    made["runs"] = runs(parts)
    made["saturation"] = saturation(parts)
    made["extrapolation"] = extrapolation(parts)
    try:
        costs = model.costs_from(parts)
    except (KeyError, IndexError, ValueError) as missing:
        told = f"*The model needs all parts; something of {missing} is missing.*"
        return made | dict.fromkeys(("costs", "model", "arithmetic"), told)
    made["costs"] = costs_table(costs)
    made["model"] = breaks_table(costs)
    made["arithmetic"] = arithmetic(costs)
    return made


def runs(parts: Parts) -> str:
    rows = [
        [
            part.name,
            part.commit,
            f"{part.seconds:.0f}",
            f"`{part.command}`",
            part.failure or "whole",
        ]
        for part in parts.values()
    ]
    machines = sorted({part.machine for part in parts.values()})
    head = ["part", "commit", "seconds", "command", "ended"]
    return "\n\n".join([f"Machine: {'; '.join(machines)}.", markdown(head, rows)])


def tables(part: Part) -> str:
    """Return two tables for each measure of a part: rates with process usage, and other figures."""
    made = []
    for measure in part.measures():
        points = part.of(measure)
        rated = [point for point in points if point.rate]
        if rated:
            made.append(rates_table(measure, rated))
        names = list(dict.fromkeys(name for point in points for name in point.figures))
        if names:
            head = [measure.rpartition(", by ")[2], *(name.replace("_", " ") for name in names)]
            rows = [
                [number(p.at), *(figure(name, p.figures[name]) for name in names)] for p in points
            ]
            made.append(markdown(head, rows))
    return "\n\n".join(made)


def rates_table(measure: str, points: Sequence[Point]) -> str:
    what, _, axis = measure.partition(", by ")
    head = [axis, f"{what}, /s", "p50 ms", "p99 ms", "p99.9 ms"]
    head += [f"{name}: cores, MiB" for name in PROCESSES.values()]
    head += ["disk busy", "others, cores", "saturated"]
    rows = []
    for point in points:
        use = point.use
        assert use is not None
        row = [number(point.at), number(point.rate)]
        row += [
            f"{point.latency_ms[name]:.1f}" if point.latency_ms else ""
            for name in ("p50", "p99", "p99.9")
        ]
        row += [
            f"{use.cores_of(name):.2f}, {use.processes[name].resident_bytes / MIB:.0f}"
            for name in PROCESSES
        ]
        row += [f"{use.disk_share:.0%}", f"{use.others_cores:.1f}", use.saturated]
        rows.append(row)
    return markdown(head, rows)


def saturation(parts: Parts) -> str:
    """Return a table with the CPU time of each operation, and the operations per second of one
    core."""
    rows = []
    for service, what, unit, part, measure, process in SATURATION:
        points = parts[part].of(measure) if part in parts else []
        if not points:
            continue
        point = model.best(points)
        assert point.use is not None
        cpu = point.cpu_per_operation(process)
        said = point.use.saturated
        rows.append(
            [
                service,
                what,
                f"{cpu * 1e6:,.2f}",
                f"{1 / cpu:,.0f} {unit}" if cpu else "",
                f"{point.rate:,.0f}",
                "callers wait" if said == NOBODY else said,
            ]
        )
    head = ["service", "operation", "CPU µs each", "a core carries, /s", "reached, /s", "bound"]
    return markdown(head, rows) if rows else MISSING


def extrapolation(parts: Parts) -> str:
    rows = []
    for part, measure, name in FORETOLD:
        points = parts[part].of(measure) if part in parts else []
        told = model.foretold(points, name)
        if told is not None:
            rows.append(foretold_row(told))
    head = ["figure", "fitted up to", "predicted for", "factor", "predicted", "measured", "error"]
    return markdown(head, rows) if rows else MISSING


def foretold_row(told: Foretold) -> list[str]:
    return [
        told.figure.replace("_", " "),
        number(told.fitted_up_to),
        f"{number(told.at)} {told.measure.rpartition(', by ')[2]}",
        f"{told.factor:.1f}",
        figure(told.figure, told.predicted),
        figure(told.figure, told.measured),
        # 0 is possible: etcd allocates its file in advance, so a few groups do not grow it.
        f"{told.error:+.0%}" if told.measured else "-",
    ]


def costs_table(costs: Costs) -> str:
    rows = []
    for field in fields(costs):
        value = getattr(costs, field.name)
        if "bytes" in field.name:
            shown = f"{value:,.0f} bytes"
        elif "seconds" in field.name:
            shown = f"{value * 1e6:,.1f} µs on the clock"
        else:
            shown = f"{value * 1e6:,.3f} µs of CPU"
        rows.append([field.name.replace("_", " "), shown])
    return markdown(["cost", "measured"], rows)


def breaks_table(costs: Costs) -> str:
    """Return a table with the three resources that saturate first, for each demand and shape."""
    rows = []
    for demand in DEMANDS:
        for shape in SHAPES:
            found = model.loads(costs, shape, demand)
            scale = 1 / found[0].share
            rows.append(
                [
                    f"{demand.queues:,} / {demand.groups:,} / {demand.batch_messages:g}",
                    str(shape),
                    "yes" if found[0].share <= 1 else "no",
                    f"{scale:,.2g}",
                    *(f"{f.service} {f.resource}: {f.share:.0%}" for f in found[:BREAKS]),
                ]
            )
    head = [
        "queues / groups / messages in a batch",
        "brokers / shards / nameservers",
        "carried",
        "times the demand",
    ]
    return markdown([*head, "first", "second", "third"], rows)


def arithmetic(costs: Costs) -> str:
    head = ["service", "resource", "needed by one", "limit", "share", "made of"]
    rows = [
        [
            load.service,
            load.resource,
            amount(load.needed, load.unit),
            amount(load.limit, load.unit),
            f"{load.share:.0%}",
            load.how,
        ]
        for load in model.loads(costs, SHOWN, LARGEST)
    ]
    demand = (
        f"{LARGEST.queues:,} queues in {LARGEST.topics:,.0f} topics, {LARGEST.groups:,} groups of "
        f"{LARGEST.members_per_group} members; {LARGEST.messages_per_second:,.0f} messages a "
        f"second of {LARGEST.body_bytes} bytes, {LARGEST.batch_messages:g} in a batch, each queue "
        f"read by {LARGEST.readers_per_queue} group; {LARGEST.route_changes_per_second:g} route "
        f"changes a second that concern all; {SHOWN} brokers, shards and nameservers."
    )
    return f"{demand}\n\n{markdown(head, rows)}"


def pictures(parts: Parts) -> dict[str, str]:
    """Return the charts by name; the chart of a part without results is empty."""

    def line(part: str, measure: str, y: Callable[[Point], float]) -> list[tuple[float, float]]:
        points = parts[part].of(measure) if part in parts else []
        return [(point.at, y(point)) for point in points]

    def latency(name: str) -> Callable[[Point], float]:
        return lambda point: point.latency_ms.get(name, 0.0)

    def noted(name: str, scale: float = 1.0) -> Callable[[Point], float]:
        return lambda point: point.figures[name] * scale

    rates = "send, by offered rate"
    queues = "append to any queue, by queues"
    return {
        "producers": chart(
            "Throughput, 100-byte messages, sync",
            "producers",
            "messages a second",
            {"append": line("producers", "append, by producers", lambda point: point.rate)},
        ),
        "latency": chart(
            "Latency from the moment a message was to be sent",
            "messages offered a second",
            "milliseconds",
            {name: line("rates", rates, latency(name)) for name in ("p50", "p99", "p99.9")},
        ),
        "queues": chart(
            "One broker with many queues",
            "queues",
            "seconds; MiB",
            {
                "start after a kill, s": line("queues", queues, noted("restart_seconds")),
                "memory, MiB": line("queues", queues, noted("broker_bytes", 1 / MIB)),
            },
        ),
        "watchers": chart(
            "One change of a route reaches every watcher",
            "watchers of one nameserver",
            "milliseconds until the last one was told",
            {"told": line("watchers", "a change of one route, by watchers", noted("all_told_ms"))},
        ),
    }


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def figure(name: str, value: float) -> str:
    """Format a value with the unit that ends its name."""
    if name.endswith("bytes") and value >= MIB:
        return f"{value / MIB:,.1f} MiB"
    if name.endswith("bytes") and value >= 1 << 10:
        return f"{value / (1 << 10):,.1f} KiB"
    return number(value)


def amount(value: float, unit: str) -> str:
    return figure("bytes", value) if unit == "bytes" else f"{number(value)} {unit}"


WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 34, 46
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
Line = Sequence[tuple[float, float]]


def chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Line]) -> str:
    """Draw a chart with logarithmic axes; values that are not positive are omitted.

    Args:
        title, x_name, y_name: labels of the chart and its axes, with units.
        lines: points by the line's name.
    """
    drawn = {name: [(x, y) for x, y in points if x > 0 and y > 0] for name, points in lines.items()}
    xs = [x for points in drawn.values() for x, _ in points] or [1.0]
    ys = [y for points in drawn.values() for _, y in points] or [1.0]
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = Axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 16, title, weight="bold"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, anchor="middle"),
        text(LEFT, 29, y_name),
    ]
    for tick in across.ticks():
        place = across.place(tick)
        parts.append(rule(place, TOP, place, HEIGHT - BOTTOM))
        parts.append(text(place, HEIGHT - BOTTOM + 14, short(tick), anchor="middle"))
    for tick in up.ticks():
        place = up.place(tick)
        parts.append(rule(LEFT, place, WIDTH - RIGHT, place))
        parts.append(text(LEFT - 6, place + 4, short(tick), anchor="end"))
    for number, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across.place(x):.1f}" cy="{up.place(y):.1f}" r="2.5" fill="{colour}"/>'
            for x, y in points
        ]
        if len(drawn) > 1:
            parts.append(text(WIDTH - RIGHT, 16 + 13 * number, name, anchor="end", fill=colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


class Axis:
    """Logarithmic mapping of values to coordinates."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self._low = math.log10(low) - 0.05
        self._high = math.log10(high) + 0.05
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return round values for tick marks: 1, 2 and 5 times powers of ten, or only the
        powers."""
        steps: tuple[int, ...] = (1, 2, 5) if self._high - self._low < 3 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        values = [step * 10.0**power for power in powers for step in steps]
        return [value for value in values if self._low <= math.log10(value) <= self._high]


def short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "", fill: str = "black"
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{bold}>'
        f"{escape(words)}</text>"
    )
