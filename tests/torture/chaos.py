"""Processes with members, acts on them and on the cluster, and the times of these acts."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torture.judge import Call, Span, read_calls

from rockoon.local import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS_MAX = 30.0
# Time after an act in which messages in progress of a stopped or killed member may matter.
AFTER_NS = 15 * 10**9


@dataclass(slots=True, eq=False)
class MemberProcess:
    """A process of members, and its log."""

    members: tuple[str, ...]
    process: subprocess.Popen[bytes]
    stopped_at_ns: int = 0

    @property
    def running(self) -> bool:
        return self.process.poll() is None


@dataclass(slots=True)
class Members:
    """All processes of members so far.

    Args:
        local: the cluster.
        directory: for logs.
        topic: topic of the members.
    """

    local: LocalCluster
    directory: Path
    topic: str
    processes: list[MemberProcess] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def start(self, groups: Sequence[str]) -> MemberProcess:
        """Start a process with a member of each of some groups."""
        number = len(self.processes)
        names = tuple(f"{group}:p{number}.{index}" for index, group in enumerate(groups))
        with (self.directory / f"member-{number}.err").open("wb") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torture.member",
                    ",".join(self.local.nameservers),
                    self.topic,
                    str(self.directory / f"member-{number}.log"),
                    *names,
                ],
                stderr=errors,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *sys.path)),
                    "GRPC_VERBOSITY": "NONE",
                },
            )
        started = MemberProcess(tuple(name.partition(":")[2] for name in names), process)
        self.processes.append(started)
        return started

    @property
    def running(self) -> list[MemberProcess]:
        return [each for each in self.processes if each.running and not each.stopped_at_ns]

    @property
    def stopped(self) -> list[MemberProcess]:
        return [each for each in self.processes if each.running and each.stopped_at_ns]

    def kill(self, which: MemberProcess) -> None:
        self._note("killed", which, time.monotonic_ns())
        which.process.kill()
        which.process.wait()

    def stop(self, which: MemberProcess) -> None:
        which.stopped_at_ns = time.monotonic_ns()
        which.process.send_signal(signal.SIGSTOP)

    def go_on(self, which: MemberProcess) -> None:
        which.process.send_signal(signal.SIGCONT)
        self._note("stopped", which, which.stopped_at_ns)
        which.stopped_at_ns = 0

    def leave(self, which: MemberProcess) -> None:
        """Ask a process to close its members; `wait_left` waits for it."""
        which.process.send_signal(signal.SIGTERM)

    async def wait_left(self, which: MemberProcess) -> None:
        await asyncio.to_thread(which.process.wait, END_SECONDS_MAX)

    def outage(self, what: str, from_ns: int) -> None:
        """Record that a part of the cluster was down for all, from then until now."""
        self.spans.append(Span(what, "", from_ns, time.monotonic_ns() + AFTER_NS))

    def _note(self, what: str, which: MemberProcess, from_ns: int) -> None:
        to_ns = time.monotonic_ns() + AFTER_NS
        self.spans += [Span(what, member, from_ns, to_ns) for member in which.members]

    def calls(self) -> list[Call]:
        """Return all handler calls so far."""
        lines: list[str] = []
        for path in sorted(self.directory.glob("member-*.log")):
            lines += path.read_text().splitlines()
        return read_calls(lines)

    def end(self) -> None:
        """Kill running processes."""
        for each in self.processes:
            if each.running:
                each.process.kill()
                each.process.wait()

    def errors(self) -> str:
        """Return the processes' output to stderr above the level of warnings."""
        texts = [path.read_text() for path in sorted(self.directory.glob("member-*.err"))]
        return "\n".join(text for text in texts if "Traceback" in text)
