"""Commands of the machine that runs the cluster, and the folders of the harness."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# Programs, modules and images: built once, kept between runs.
CACHE = Path(os.environ.get("K8S_CACHE", Path.home() / ".cache" / "rockoon-k8s"))
# Everything of one cluster; removed at its end.
STATE = Path(os.environ.get("K8S_STATE", "/var/tmp/rockoon-k8s"))
LOG_LINES_SHOWN = 25


class Failed(Exception):
    """A command failed; the text names it and has the end of its output."""


class NotHere(Exception):
    """This machine cannot run the cluster; the text names the missing requirement."""


def run(
    *command: object,
    stdin: str | bytes | None = None,
    seconds: float | None = None,
    folder: Path | None = None,
    **environment: str,
) -> str:
    """Run a command and return its standard output.

    Args:
        command: program and arguments.
        stdin: written to its standard input.
        seconds: time limit.
        folder: working directory.
        environment: variables beside those of this process.

    Raises:
        Failed: the command ended with another status than 0, or reached its time limit.
    """
    words = [str(word) for word in command]
    raw = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            words,
            input=raw,
            stdin=subprocess.DEVNULL if raw is None else None,
            capture_output=True,
            timeout=seconds,
            cwd=folder,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"{' '.join(words)[:300]}: not done after {seconds:.0f} s") from expired
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        last = f"{done.stderr.decode(errors='replace')}\n{output[-2000:]}".strip().splitlines()
        shown = "\n    ".join(last[-LOG_LINES_SHOWN:])
        raise Failed(f"{' '.join(words)[:300]}: status {done.returncode}\n    {shown}")
    return output


def logged(name: str, *command: object, folder: Path | None = None, **environment: str) -> None:
    """Run a long command; its output goes to a file of the cache.

    Raises:
        Failed: the command failed; the text has the last lines of the file.
    """
    log = CACHE / f"{name}.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | environment,
        )
    if done.returncode:
        last = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        raise Failed("\n    ".join([f"{name} failed ({log}):", *last]))


class Clock:
    """Prints each step of a preparation with its duration."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def step(self, name: str) -> None:
        now = time.monotonic()
        print(f"{now - self._began:8.1f} s  {name}", flush=True)
        self._began = now


def wait_for(what: str, condition: Iterable[object], seconds: float, pause: float = 0.2) -> None:
    """Wait until an iterator of attempts yields a true value.

    Raises:
        Failed: no attempt succeeded in time.
    """
    deadline = time.monotonic() + seconds
    for attempt in condition:
        if attempt:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not after {seconds:.0f} s")
        time.sleep(pause)


def environment_of(pid: int) -> Mapping[str, str]:
    """Return the environment of a process; empty if the process has ended."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (each.partition("=") for each in raw.decode(errors="replace").split("\0") if each)
    return {name: value for name, _, value in pairs}
