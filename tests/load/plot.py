"""The picture of a run: throughput, latency and lag over time, as SVG."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

COLOURS = {"send": "tab:blue", "receive": "tab:orange"}


def draw(profile: dict[str, Any], path: Path) -> None:
    """Draw a profile.

    Args:
        profile: see `load.profile`.
        path: path of the SVG file.
    """
    figure, (rates, latencies, lag) = pyplot.subplots(3, 1, figsize=(9, 9), sharex=True)
    plan = profile["plan"]
    for name, colour in COLOURS.items():
        rows = [row for row in profile["timeline"] if name in row]
        if not rows:
            continue
        seconds = [row["second"] for row in rows]
        values = [row[name]["count"] / profile["interval_seconds"] for row in rows]
        rates.plot(seconds, values, color=colour, label=name)
        for percentile, style in (("p50", "-"), ("p99", ":")):
            values = [row[name][percentile] for row in rows]
            label = f"{name} {percentile}"
            latencies.plot(seconds, values, style, color=colour, label=label)
    rates.set_ylabel("messages/s")
    rates.set_ylim(bottom=0)
    latencies.set_ylabel("latency, ms")
    latencies.set_yscale("log")
    lag.plot(
        [row["second"] for row in profile["lag"]],
        [row["messages"] for row in profile["lag"]],
        color="tab:red",
        label="lag",
    )
    lag.set_ylabel("lag, messages")
    lag.set_ylim(bottom=0)
    lag.set_xlabel("seconds")
    for axes in (rates, latencies, lag):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize="small")
    title = f"{plan['scenario']}, {plan['users']} users, {plan['body_bytes']} B, {plan['shape']}"
    figure.suptitle(f"{title}, {profile['commit'] or 'no commit'}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
