"""A trial as a page of documentation: a table, and its picture as SVG."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from hosts.availability import BUCKET_SECONDS, KINDS, Share, Timeline
from hosts.shape import Shape
from hosts.verdict import Outcome, Result

# Light, middle, dark: distinguishable without colours, too.
COLOURS = {"all": "#cfe6d4", "some": "#efa63c", "none": "#9c1f2e"}

LABEL_PIXELS = 260
SECOND_PIXELS = 11
LINE_PIXELS = 9
GAP_PIXELS = 14
HEAD_PIXELS = 54
TICK_SECONDS = 10

BEGIN = "<!-- make hosts writes from here: {} -->"
END = "<!-- to here: {} -->"


def write(result: Result, shape: Shape, page: Path, cut_seconds: float) -> None:
    """Write table and picture of a kind of cluster into a page, between its marks.

    Args:
        result: result of a trial.
        shape: the tested cluster.
        page: the Markdown file; the picture is beside it.
        cut_seconds: duration of each cut.
    """
    name = "one copy" if shape.copies == 1 else "three copies"
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    picture_page = page.with_name(f"{page.stem}-{name.replace(' ', '-')}.svg")
    picture_page.write_text(picture(result.outcomes))
    heading = ("cut", *KINDS, "healed after")
    rows = [heading, tuple("---" for _ in heading), *(cells(each) for each in result.outcomes)]
    words = (
        f"{shape.words().capitalize()}; each cut for {cut_seconds:.0f} s. "
        f"{result.acknowledged:,} messages were acknowledged, none was lost; "
        f"{result.duplicates:,} of {result.handler_calls:,} calls of handlers were for a message "
        "that had been handled before."
    )
    lines = [
        begin,
        *("", f"![Shares of operations done, in half seconds]({picture_page.name})", ""),
        textwrap.fill(words, 118),
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        *("", end),
    ]
    page.write_text(before + "\n".join(lines) + after)


def cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.cut.name,
        *(short(line) for line in outcome.timelines),
        f"{outcome.heal_seconds():.1f} s",
    )


def short(line: Timeline) -> str:
    """Return for how long not everything was done, and nothing."""
    if not line.short_seconds():
        return "0"
    down = f" ({line.down_seconds():.1f})" if line.down_seconds() else ""
    return f"{line.short_seconds():.1f}{down} s"


def picture(outcomes: Sequence[Outcome]) -> str:
    """Return all timelines, one below another; 0 is the moment of the cut."""
    calm_seconds = max((each.cut_ns - each.before_ns) / 1e9 for each in outcomes)
    seconds = max((each.settled_ns - each.cut_ns) / 1e9 for each in outcomes)
    block_pixels = len(KINDS) * LINE_PIXELS + GAP_PIXELS
    height = HEAD_PIXELS + len(outcomes) * block_pixels + 10
    width = LABEL_PIXELS + (calm_seconds + seconds) * SECOND_PIXELS + 20

    def x(from_cut_seconds: float) -> float:
        return LABEL_PIXELS + (calm_seconds + from_cut_seconds) * SECOND_PIXELS

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
        *legend(),
    ]
    for tick in range(0, int(seconds) + 1, TICK_SECONDS):
        parts.append(text(x(tick), HEAD_PIXELS - 10, f"{tick} s", "middle"))
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{HEAD_PIXELS - 6}" y2="{height - 8}" '
            'stroke="#dddddd"/>'
        )
    for index, outcome in enumerate(outcomes):
        parts += block(outcome, HEAD_PIXELS + index * block_pixels, x)
    return "\n".join([*parts, "</svg>", ""])


def block(outcome: Outcome, top: float, x: Callable[[float], float]) -> list[str]:
    """Return the lines of one cut, framed for its duration."""
    parts = [text(8, top + 2 * LINE_PIXELS, outcome.cut.name, "start", "bold")]
    for number, line in enumerate(outcome.timelines):
        y = top + number * LINE_PIXELS
        parts.append(text(LABEL_PIXELS - 6, y + LINE_PIXELS - 1, line.kind, "end", size=9))
        begin = (line.from_ns - outcome.cut_ns) / 1e9
        for colour, its in groupby(enumerate(line.shares), lambda each: colour_of(each[1])):
            indices = [index for index, _ in its]
            if colour is None:
                continue
            left = x(begin + indices[0] * BUCKET_SECONDS)
            wide = len(indices) * BUCKET_SECONDS * SECOND_PIXELS
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{LINE_PIXELS - 1}" '
                f'fill="{colour}"/>'
            )
    healed = (outcome.healed_ns - outcome.cut_ns) / 1e9
    parts.append(
        f'<rect x="{x(0):.1f}" y="{top - 2}" width="{x(healed) - x(0):.1f}" '
        f'height="{len(KINDS) * LINE_PIXELS + 3}" fill="none" stroke="#222222"/>'
    )
    return parts


def legend() -> list[str]:
    parts = [text(8, 16, "Operations done, in half seconds. The frame is the cut.", "start")]
    left = LABEL_PIXELS + 80
    for word, meaning in (("all", "all"), ("some", "some"), ("none", "none")):
        parts.append(
            f'<rect x="{left}" y="7" width="14" height="10" fill="{COLOURS[word]}"/>'
            + text(left + 18, 16, meaning, "start")
        )
        left += 70
    return parts


def text(x: float, y: float, said: str, anchor: str, weight: str = "normal", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(said)}</text>'
    )


def colour_of(share: Share) -> str | None:
    if share is None:
        return None
    return COLOURS["all" if share == 1 else "some" if share else "none"]
