"""A trial as a page of documentation: a table, and its picture as SVG."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from hosts.availability import BUCKET_SECONDS, KINDS, PROMPT_SECONDS, Share, Timeline
from hosts.verdict import Outcome, Result

# Light, middle, dark: to be told apart without colours, too.
COLOURS = {"all": "#cfe6d4", "some": "#efa63c", "none": "#9c1f2e"}

LABEL_PIXELS = 260
SECOND_PIXELS = 11
LINE_PIXELS = 9
GAP_PIXELS = 14
HEAD_PIXELS = 54
TICK_SECONDS = 10

WORDS = f"""\
# What is available when the network is cut

Made by `make hosts`: two nameservers, two brokers, the offset service, etcd and three clients,
every process in a network namespace with an address of its own. Between two sides packets vanish
without a word (nobody is refused or told) for {{seconds:.0f}} s, in both directions (✕) or in one
(→, ←), and come through again. Settings are the defaults. The command fails if an acknowledged
message is lost, if a queue of an orderly group has two owners or is out of order, if progress
goes back or passes a message that was not handled, if a process ends or grows by more than its
bounds, or if something does not heal.

The clients that are cut off are one that sends, commits and looks up routes, and one with a
member of each of two groups, one of them orderly; a third client, with the other members, stays
connected. An operation is *done* when it is answered within {PROMPT_SECONDS:.0f} s; *receive* is
done when the last group has handled a message so soon after its sender was told that it is
stored.

![Shares of operations done, in half seconds](availability.svg)

Seconds in which less than everything was done, and in brackets those in which nothing was; and how
long after the cut was healed everything was done again.

TABLE

TOTAL

Why it is so:

- Senders go round a broker that does not answer. What has an `ordering_key` waits for its queue's
  broker.
- Members share queues, whoever reaches which broker: what comes to a queue whose member does not
  reach its broker waits until the member does, or leaves.
- A member that does not reach the offset service loses its queues to others when its lease ends. In
  an ordinary group it goes on with them meanwhile and stores no progress, so messages come twice;
  in an orderly group it rests before others begin.
- When nameservers or etcd are away, everything goes on with the routes last known, and changes
  wait. A service that no nameserver hears leaves the routes when its lease ends. Clients then send
  to other brokers, and go on calling the offset service where it was, after five seconds.
- Nothing that is sent stays unacknowledged for more than five seconds before a connection is given
  up (`grpc.keepalive_timeout_ms`): so long hangs what is under way when a host vanishes.
"""


def write(result: Result, page: Path, cut_seconds: float) -> None:
    """Write a page, and its picture beside it.

    Args:
        result: of a trial.
        page: the Markdown file; the picture bears its name with `.svg`.
        cut_seconds: how long each cut lasted.
    """
    heading = ("cut", *KINDS, "healed after")
    rows = [heading, tuple("---" for _ in heading), *(cells(each) for each in result.outcomes)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    total = (
        f"{result.acknowledged:,} messages were acknowledged, none of them lost; of "
        f"{result.handler_calls:,} calls of handlers {result.duplicates:,} were for a message that "
        "had been handled before."
    )
    words = WORDS.format(seconds=cut_seconds)
    page.write_text(words.replace("TABLE", table).replace("TOTAL", textwrap.fill(total, 100)))
    page.with_suffix(".svg").write_text(picture(result.outcomes))


def cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.cut.name,
        *(short(line) for line in outcome.timelines),
        f"{outcome.heal_seconds():.1f} s",
    )


def short(line: Timeline) -> str:
    """For how long not everything was done, and nothing."""
    if not line.short_seconds():
        return "0"
    down = f" ({line.down_seconds():.1f})" if line.down_seconds() else ""
    return f"{line.short_seconds():.1f}{down} s"


def picture(outcomes: Sequence[Outcome]) -> str:
    """All timelines, one below the other; 0 is the moment of the cut."""
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
    """The lines of one cut, framed as long as it lasted."""
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
