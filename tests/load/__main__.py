"""`python -m load`: distributed load tests. The Makefile has the usual ways to call it."""

import faulthandler
import json
import logging
import os
import sys
from argparse import Namespace
from pathlib import Path

# The SDK runs in its own thread, unpatched; Locust and its workers need no patched sockets.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from rich.console import Console
from rich.table import Table

from load.options import parser
from load.plan import Plan
from load.profile import Profile

console = Console()

# As shells report SIGINT.
INTERRUPTED = 130


def main() -> int:
    options = parser().parse_args()
    return {
        "run": do_run,
        "worker": do_worker,
        "master": do_master,
        "audit": do_audit,
        "compare": do_compare,
        "overhead": do_overhead,
        "alone": do_alone,
    }[options.command](options)


def do_run(options: Namespace) -> int:
    import signal

    from load.plot import draw
    from load.run import LoadFailed, run
    from rockoon.errors import RockoonError
    from rockoon.local import LocalClusterError

    # As Ctrl-C: a terminal that is closed, or a pod that is deleted.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        directory, profile = run(options, console.print)
    except (LoadFailed, LocalClusterError, RockoonError) as failure:
        console.print(f"The run failed: {failure}", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped before there was anything to tell.")
        return INTERRUPTED
    (directory / "profile.json").write_text(json.dumps(profile, indent=1))
    draw(profile, directory / "plot.svg")
    show(profile)
    console.print(f"{directory}/profile.json, plot.svg, report.html, load_stats.csv")
    if not is_good(profile):
        return 1
    if profile["stopped_early"]:
        console.print(
            f"Stopped early, after {profile['seconds']:.0f} s: this is what was until then."
        )
        return INTERRUPTED
    return 0


def do_worker(options: Namespace) -> int:
    from load.worker import Worker

    log()
    Worker(options.host, options.port).run()
    return 0


def do_master(options: Namespace) -> int:
    from load.master import Master

    log()
    Master(plan_in(options.dir), options.dir, options.port).run()
    return 0


def do_audit(options: Namespace) -> int:
    import uvloop

    from load.auditor import Auditor

    log()

    async def audit() -> None:
        await Auditor(plan_in(options.dir), options.dir).run()

    uvloop.run(audit())
    return 0


def do_compare(options: Namespace) -> int:
    from load.compare import differences, ratios

    try:
        a, b = (json.loads(profile_path(path).read_text()) for path in (options.a, options.b))
    except (OSError, ValueError) as failure:
        console.print(
            f"No profile to read: {failure}. Name two directories below .load whose runs came to "
            "their end: make load-compare A=.load/DIR B=.load/DIR",
            markup=False,
            highlight=False,
        )
        return 2
    for difference in differences(a, b):
        console.print(f"! {difference}", highlight=False)
    table = Table(title=f"A = {a['commit']}, B = {b['commit']}", title_justify="left")
    for column in ("", "A", "B", "B ÷ A", ""):
        table.add_column(column, justify="right" if column else "left")
    worse = []
    for each in ratios(a, b):
        is_worse = each.is_worse(options.threshold)
        worse += [each] if is_worse else []
        mark = "worse" if is_worse else "" if each.is_judged else "not judged"
        table.add_row(each.name, f"{each.a:,.2f}", f"{each.b:,.2f}", f"{each.ratio:.2f}", mark)
    console.print(table)
    return 1 if worse else 0


def log() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("rockoon").setLevel(logging.WARNING)


def do_overhead(options: Namespace) -> int:
    from load.overhead import WAYS, measure

    costs = measure(options.dir, options.seconds, options.turns)
    table = Table(title="One sender, 200-byte bodies, the best of some turns", title_justify="left")
    for column in ("", "CPU µs a message", "÷ the SDK's", "messages/s", "÷ the SDK's"):
        table.add_column(column, justify="right" if column else "left")
    bare = costs[WAYS[0]]
    for name, cost in costs.items():
        ratios = [cost.cpu_us / bare.cpu_us, cost.per_second / bare.per_second]
        rates = [f"{cost.cpu_us:.2f}", f"{ratios[0]:.2f}", f"{cost.per_second:,.0f}"]
        table.add_row(name, *rates, f"{ratios[1]:.2f}")
    console.print(table)
    return 0


def do_alone(options: Namespace) -> int:
    import uvloop

    from load.overhead import send_alone

    plan = plan_in(options.dir)
    print(json.dumps(uvloop.run(send_alone(plan))))
    return 0


def plan_in(directory: Path) -> Plan:
    return Plan.from_json((directory / "plan.json").read_text())


def profile_path(path: Path) -> Path:
    return path / "profile.json" if path.is_dir() else path


def is_good(profile: Profile) -> bool:
    verdict = profile["verdict"]
    has_failed = profile["failures"] or profile["exceptions"]
    return not has_failed and (verdict is None or verdict["is_good"])


def show(profile: Profile) -> None:
    table = Table(title=f"{profile['seconds']:.0f} s", title_justify="left")
    for column in ("", "count", "/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms"):
        table.add_column(column, justify="right" if column else "left")
    for name, each in profile["operations"].items():
        levels = [f"{each['latency_ms'][level]:.2f}" for level in ("p50", "p99", "p99.9", "max")]
        rates = [f"{each['count']:,}", f"{each['per_second']:,.0f}", f"{each['mb_per_second']:.1f}"]
        table.add_row(name, *rates, *levels)
    console.print(table)
    used = [
        f"{name} {each['cpu_seconds']:.1f} s, {each['memory_mib_max']:.0f} MiB"
        for name, each in profile["processes"].items()
    ]
    console.print("CPU and memory: " + "; ".join(used), highlight=False)
    verdict = profile["verdict"]
    if verdict is None:
        console.print("not checked")
    else:
        groups = verdict["groups"].values()
        console.print(
            f"checked: {verdict['acknowledged']:,} acknowledged of {verdict['sent']:,} sent, "
            f"{verdict['stored']:,} stored, {verdict['twice']:,} of them copies; given to groups "
            f"{sum(group['given'] for group in groups):,}, "
            f"{sum(group['twice'] for group in groups):,} again",
            highlight=False,
        )
        for fault in verdict["faults"]:
            console.print(f"FAULT: {fault}", highlight=False, markup=False)
    for text, count in profile["exceptions"].items():
        console.print(f"FAILED {count} times: {text}", highlight=False, markup=False)
    if profile["failures"]:
        console.print(f"{profile['failures']:,} operations failed, see load_failures.csv")


if __name__ == "__main__":
    sys.exit(main())
