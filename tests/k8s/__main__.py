"""`make k8s`: Rockoon on a real Kubernetes of namespaces on this machine, under load.

Without a command: start the cluster, run the steps, end the cluster. Exit status 0: all bounds
held; 1: a fault; 2: this machine cannot run it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from k8s import built, cluster, former, images, jobs, page
from k8s.node import OUTSIDE, Namespaces, Node
from k8s.shell import CACHE, ROOT, Clock, Failed, NotHere
from k8s.stage import Report
from k8s.steps import NAMES, Options, run_all

NODES = 3
FORMER = "HEAD~1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make k8s", description=__doc__)
    parser.add_argument("--only", help="names of steps, with commas")
    parser.add_argument("--dns", default="0,5,30", help="maximum ages of DNS answers in seconds")
    parser.add_argument("--days", type=float, default=0, help="minutes of random operations")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--former", default=FORMER, help="commit for the upgrade")
    parser.add_argument("--write", action="store_true", help="fill docs/operate/kubernetes.md")
    parser.add_argument("--keep", action="store_true", help="do not end the cluster")
    parser.add_argument("--reuse", action="store_true", help="use the cluster that is up")
    parser.add_argument("command", nargs="?", choices=[*COMMANDS], help="one step by hand")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, terminate)
    try:
        if arguments.command in (None, "up") and not arguments.reuse:
            built.check_machine()
        if arguments.command:
            return COMMANDS[arguments.command](arguments.words)
        with built.cache_lock():
            return run(arguments)
    except NotHere as reason:
        print(f"make k8s cannot run here: {reason}", file=sys.stderr)
        return 2
    except Failed as failure:
        print(f"make k8s: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(arguments: argparse.Namespace) -> int:
    only = arguments.only.split(",") if arguments.only else []
    if unknown := set(only) - NAMES:
        raise NotHere(
            f"no step is named {', '.join(unknown)}; there are {', '.join(sorted(NAMES))}"
        )
    ages = [float(age) for age in arguments.dns.split(",")]
    report, clock, began = Report(), Clock(), time.monotonic()
    try:
        upgrades = not arguments.days and (not only or {"dev-upgrade", "upgrade"} & set(only))
        tag = former.build(arguments.former, clock) if upgrades else ""
        options = Options(only, ages, arguments.days, arguments.seed, tag)
        if not arguments.reuse:
            start(options, clock)
        run_all(options, report)
    finally:
        if not arguments.keep:
            cluster.down()
    minutes = (time.monotonic() - began) / 60
    print(f"{len(report.rows)} steps in {minutes:.1f} minutes, {len(report.faults)} faults")
    for fault in report.faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    if arguments.write:
        words = f"{len(report.rows)} rows in {minutes:.0f} minutes on {os.cpu_count()} cores."
        if arguments.days:
            words += f" SEED={arguments.seed}."
        page.write(report.rows, words, page.DAYS if arguments.days else page.STEPS)
    return 1 if report.faults else 0


def start(options: Options, clock: Clock) -> None:
    """Start a new cluster with the images of this checkout, and of a former commit if it has a
    tag."""
    prepare(clock)
    cluster.down()
    names: tuple[str, ...] = images.SERVICES
    if options.wants("jobs") and not options.days:
        images.build([jobs.SPARK], clock)
        names = (*names, jobs.LOAD_TEST)
    images.build(names, clock)
    cluster.up(NODES, clock)
    references = [images.reference(name) for name in names]
    if options.former:
        references += [images.reference(name, options.former) for name in former.SERVICES]
    cluster.give(references, clock)


def prepare(clock: Clock) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    built.install_packages()
    built.build_programs(clock)
    built.build_netpol(clock)


def command_build(words: Sequence[str]) -> int:
    """Fill the cache with all that a run needs, without a cluster."""
    clock = Clock()
    try:
        prepare(clock)
        images.build((jobs.SPARK, *images.SERVICES, jobs.LOAD_TEST), clock)
        former.build(words[0] if words else FORMER, clock)
    finally:
        cluster.down()
    return 0


def command_up(words: Sequence[str]) -> int:
    clock = Clock()
    prepare(clock)
    images.build_bases(ROOT, clock)
    cluster.up(int(words[0]) if words else NODES, clock)
    return 0


def command_down(words: Sequence[str]) -> int:
    cluster.down()
    return 0


def command_load(words: Sequence[str]) -> int:
    clock = Clock()
    names = words or images.SERVICES
    images.build(names, clock)
    cluster.give(map(images.reference, names), clock)
    return 0


def command_kubectl(words: Sequence[str]) -> int:
    return subprocess.run(cluster.kubectl_words(*words)).returncode


def command_node(words: Sequence[str]) -> int:
    return subprocess.run(Node(int(words[0])).inside(*words[1:])).returncode


def command_outside(words: Sequence[str]) -> int:
    return subprocess.run(Namespaces(OUTSIDE).network(*words)).returncode


def command_dns(words: Sequence[str]) -> int:
    cluster.set_dns_age(float(words[0]))
    return 0


COMMANDS = {
    "build": command_build,
    "up": command_up,
    "down": command_down,
    "load": command_load,
    "kubectl": command_kubectl,
    "node": command_node,
    "outside": command_outside,
    "dns": command_dns,
}

if __name__ == "__main__":
    sys.exit(main())
