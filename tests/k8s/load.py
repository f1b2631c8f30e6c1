"""The checker in the client's pod: start, parts, end."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8s.deployment import Deployment
from k8s.shell import HERE, Failed, wait_for

START_SECONDS = 60.0
PART_SECONDS = 30.0
END_SECONDS = 150.0
NEWCOMERS = "new"


@dataclass(frozen=True)
class Part:
    """Figures of one part."""

    name: str
    calls: int
    failed: int
    longest: float
    """Longest call or silence of a long-lived client, in seconds, and its kind."""
    longest_kind: str
    after_return: float
    """The same, counted from the last return of a node into the routes."""
    newcomers: float
    """Longest connect and first send of a newcomer, in seconds."""
    faults: tuple[str, ...]


@dataclass
class Load:
    """A run of the checker.

    Args:
        deployment: whose client pod runs it.
        seconds: after which it ends at the latest.
    """

    deployment: Deployment
    seconds: float
    _name: str = field(default_factory=lambda: str(int(time.monotonic() * 1000)))
    _read: int = 0
    _lines: list[Mapping[str, Any]] = field(default_factory=list)
    _part: str = "begin"
    _parts: int = 0
    _decreases: int = 0
    _twice: int = 0
    _disorder: int = 0

    @property
    def run(self) -> str:
        """Suffix of the names of topics and groups."""
        return self._name

    def start(self) -> None:
        self.deployment.put((HERE / "inside" / "checker.py").read_text(), "/tmp/checker.py")
        command = (
            f"cd /tmp; rm -f mark; LONE={self.deployment.lone} nohup python checker.py "
            f"{self.seconds:.0f} {self._name} > load.log 2> load.err & sleep 0.1"
        )
        self.deployment.exec("sh", "-c", command)
        wait_for("the load begins", self._seen("begins"), START_SECONDS)

    def begin_part(self, name: str) -> None:
        """Begin a part; the part before it ends."""
        self._parts += 1
        self._part = f"{name} {self._parts}"
        self.deployment.put(self._part, "/tmp/mark")

    def end_part(self) -> Part:
        """End the part and return its figures."""
        ended = self._part
        self.begin_part("between")
        wait_for(f"figures of {ended}", self._seen("part", ended), PART_SECONDS)
        facts = next(line for line in self._lines if line.get("part") == ended)
        return self._judge(ended, facts)

    def end(self) -> tuple[Mapping[str, Any], list[str]]:
        """End the load; return the checker's last line, and the faults of the whole run."""
        self.deployment.put("stop", "/tmp/mark")
        wait_for("the load ends", self._seen("end"), END_SECONDS)
        facts = next(line for line in self._lines if "end" in line)
        faults = []
        if facts["lost"]:
            faults.append(f"{facts['lost']} messages lost, such as {facts['examples']}")
        return facts, faults + self._new_faults(facts)

    def failures(self) -> list[str]:
        """Return the failed calls so far, as text."""
        return [
            f"{line['at']} {line['failed']} after {line['seconds']} s: {line['reason']}"
            for line in self._lines
            if "reason" in line
        ]

    def events(self) -> Iterator[str]:
        """Yield long calls and silences so far, as text."""
        for line in self._lines:
            for kind in ("long", "silent"):
                if kind in line:
                    yield f"{line['at']} {line[kind]}: {line['seconds']} s"

    def save(self, folder: Path) -> None:
        """Write the output of the checker to files of a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("load.log", "load.err"):
            text = self.deployment.exec("cat", f"/tmp/{name}")
            (folder / f"{self.deployment.namespace}-{name}").write_text(text)

    def _judge(self, name: str, facts: Mapping[str, Any]) -> Part:
        figures: Mapping[str, Mapping[str, float]] = facts["figures"]
        lasting = {kind: each for kind, each in figures.items() if kind != NEWCOMERS}
        kind = max(lasting, key=lambda each: lasting[each]["longest"])
        return Part(
            name.rpartition(" ")[0],
            calls=sum(int(each["count"]) for each in figures.values()),
            failed=sum(int(each["failed"]) for each in figures.values()),
            longest=lasting[kind]["longest"],
            longest_kind=kind,
            after_return=max(each["after_return"] for each in lasting.values()),
            newcomers=figures[NEWCOMERS]["longest"],
            faults=tuple(self._new_faults(facts)),
        )

    def _new_faults(self, facts: Mapping[str, Any]) -> list[str]:
        """Return faults that the parts before did not have."""
        faults = []
        if facts["idempotent_twice"] > self._twice:
            faults.append(f"{facts['idempotent_twice']} idempotent messages stored twice")
        if len(facts["decreases"]) > self._decreases:
            faults.append(f"progress went back: {facts['decreases'][-1]}")
        if len(facts["disorder"]) > self._disorder:
            faults.append(f"out of order: {facts['disorder'][-1]}")
        self._twice = facts["idempotent_twice"]
        self._decreases, self._disorder = len(facts["decreases"]), len(facts["disorder"])
        return faults

    def _seen(self, key: str, value: str | None = None) -> Iterator[bool]:
        while True:
            self._read_lines()
            yield any(key in line and value in (None, line[key]) for line in self._lines)

    def _read_lines(self) -> None:
        script = f"tail -c +{self._read + 1} load.log; echo; grep -A 40 Traceback load.err"
        output = self.deployment.exec("sh", "-c", f"cd /tmp; {script} || true")
        text, found, errors = output.partition("Traceback")
        if found:
            raise Failed(f"the checker ended:\n{errors[-3000:]}")
        text = text.removesuffix("\n")
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        self._lines += [json.loads(line) for line in whole.splitlines()]
