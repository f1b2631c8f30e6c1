"""The command line: options of a run, and their environment variables."""

import argparse
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from load.compare import THRESHOLD
from load.scenarios import DEFAULTS, SCENARIOS

PORT = 5557
PREFIX = "LOAD_"
SHAPES = ("soak", "ramp", "step")
CHECKS = ("live", "after", "off")


def _number(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    """Return a parser of numbers that must not be less than `least`."""

    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text!r} is less than {least}")
        return value

    return number


_NUMBERS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "users": (_number(int, 1), "users when all are there"),
    "rate": (
        _number(float, 0),
        "messages a second of each sender; 0: as fast as they are acknowledged",
    ),
    "window": (_number(int, 1), "messages that a sender may have on their way"),
    "body_bytes": (_number(int, 40), "size of each body, 40 or more"),
    "topics": (_number(int, 1), "topics"),
    "queues": (_number(int, 1), "queues of each topic on each broker"),
    "groups": (_number(int, 0), "consumer groups"),
    "handle_ms": (_number(float, 0), "what a slow consumer's handler takes for a message"),
    "stay_seconds": (_number(float, 0), "how long a member stays in a storm of rebalances"),
    "hot_share": (_number(float, 0), "share of the messages with the hot key"),
}


def parser(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """Every option of `run` may be an environment variable instead: LOAD_BODY_BYTES=1024."""
    found = argparse.ArgumentParser(
        prog="python -m load", description="Distributed load tests of a Rockoon cluster."
    )
    commands = found.add_subparsers(dest="command", required=True)
    _add_run(
        commands.add_parser(
            "run",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            help="a whole run: cluster, workers, checker, results",
            epilog=_scenarios_text(),
        ),
        environment,
    )
    worker = commands.add_parser("worker", help="one worker process, for a run on another machine")
    worker.add_argument("--host", default=environment.get(f"{PREFIX}HOST", "127.0.0.1"))
    worker.add_argument("--port", type=int, default=environment.get(f"{PREFIX}PORT", PORT))
    for name, text in (("master", "part of a run: Locust's master"), ("audit", "its checker")):
        part = commands.add_parser(name, help=text)
        part.add_argument("--dir", type=Path, required=True)
        if name == "master":
            part.add_argument("--port", type=int, required=True)
    text = "whether the load itself is the limit: senders with and without Locust around them"
    overhead = commands.add_parser("overhead", help=text)
    overhead.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    overhead.add_argument("--turns", type=int, default=3)
    overhead.add_argument("--dir", type=Path, default=Path(".load"))
    alone = commands.add_parser("alone", help="part of `overhead`: one sender, no Locust")
    alone.add_argument("--dir", type=Path, required=True)
    compare = commands.add_parser("compare", help="two profiles, as ratios")
    compare.add_argument("a", type=Path, help="profile.json, or its directory, of the one before")
    compare.add_argument("b", type=Path, help="of the one after")
    text = "exit status 1 when B is worse by more than this share"
    compare.add_argument("--threshold", type=float, default=THRESHOLD, help=text)
    return found


def _add_run(run: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    known = {f"{PREFIX}HOST", f"{PREFIX}KEEP"}

    def add(
        flag: str, kind: Callable[[str], object], default: object, text: str, **more: object
    ) -> None:
        name = flag.strip("-").replace("-", "_")
        known.add(PREFIX + name.upper())
        given = environment.get(PREFIX + name.upper()) or default
        choices = more.get("choices")
        if isinstance(choices, Sequence) and given not in choices:
            # argparse sees only the command line.
            run.error(f"{PREFIX}{name.upper()} is {given!r}, none of {', '.join(choices)}")
        shown = text if default is None else f"{text} (default: {default})"
        run.add_argument(flag, type=kind, default=given, help=shown, **more)  # type: ignore[arg-type]

    add("--scenario", str, "mixed", "what users do, see below", choices=sorted(SCENARIOS))
    add("--shape", str, "soak", "how users come", choices=SHAPES)
    add("--minutes", _number(float, 0.01), 1.0, "how long")
    add("--endpoint", str, None, "nameservers; without, a cluster is started on this machine")
    add("--brokers", _number(int, 1), 2, "of the cluster that is started")
    add("--flush", str, "async", "of its brokers: sync or async", choices=("sync", "async"))
    add("--workers", _number(int, 1), 2, "worker processes")
    add("--port", int, None, f"wait for the workers there instead of starting them, as {PORT}")
    text = "kill -9 a process of the cluster that is started so often, brokers most; 0: never"
    add("--kill-seconds", _number(float, 0), 0.0, text)
    add(
        "--check",
        str,
        "live",
        "when the checker reads: with the load, after it, not at all",
        choices=CHECKS,
    )
    add("--dir", Path, Path(".load"), "results go below it")
    add("--commit", str, "", "what the profile says was measured; by default what git says")
    for name, (kind, text) in _NUMBERS.items():
        flag = "--" + name.replace("_", "-")
        add(flag, kind, None, f"{text} (default: the scenario's, or {DEFAULTS[name]})")
    text = f"leave the topics and groups there (also {PREFIX}KEEP=1)"
    kept = bool(environment.get(f"{PREFIX}KEEP"))
    run.add_argument("--keep", action="store_true", default=kept, help=text)
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            run.error(f"{name} is no option" + "".join(f"; did you mean {each}?" for each in near))


def _scenarios_text() -> str:
    width = max(map(len, SCENARIOS))
    lines = [f"  {name:{width}}  {each.purpose}" for name, each in SCENARIOS.items()]
    return "\n".join(
        [
            "scenarios:",
            *lines,
            "",
            f"Every option may stand in the environment instead: {PREFIX}SCENARIO=produce.",
        ]
    )
