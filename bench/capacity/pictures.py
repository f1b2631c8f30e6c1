"""Draws line charts as SVG without a library; equal figures give equal bytes."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

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
