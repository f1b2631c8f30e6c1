"""Runs the programs of docs/use/gateway-clients.md, unchanged, by the scenarios' clients."""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.compare.programs import ROOT, NotHere, run
from conformance.languages import CACHE, Prepared
from conformance.running import FAILED, OK, Outcome
from conformance.target import Target

PAGE = ROOT / "docs" / "use" / "gateway-clients.md"
# Texts of the page, and their replacements for a run.
ENDPOINT = "127.0.0.1:8081"
TOPIC, GROUPS = "orders", ("billing", "shipping")
SECONDS_MAX = 300.0


def programs() -> Mapping[str, str]:
    """Return the page's programs, by the language of their fence."""
    blocks: list[tuple[str, str]] = re.findall(
        r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    return dict(blocks)


def folder_of(language: str) -> Path:
    folder = CACHE / "documents" / language
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def python(text: str) -> Sequence[object]:
    program = folder_of("python") / "orders.py"
    program.write_text(text)
    return [CACHE / "python" / "bin" / "python", "-u", program]


def java(text: str) -> Sequence[object]:
    folder = folder_of("java")
    (folder / "Orders.java").write_text(text)
    libraries = f"{CACHE / 'java' / 'lib'}/*"
    run(["javac", "-nowarn", "-d", folder, "-cp", libraries, folder / "Orders.java"])
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{libraries}", "Orders"]


def node(text: str) -> Sequence[object]:
    # The program finds its library in its own directory.
    program = CACHE / "node" / "orders.js"
    program.write_text(text)
    return ["node", program]


def go(text: str) -> Sequence[object]:
    folder = folder_of("go")
    for each in ("go.mod", "go.sum"):
        shutil.copy(CACHE / "go" / each, folder)
    (folder / "main.go").write_text(text)
    run(["go", "-C", folder, "build", "-o", "orders", "."])
    return [folder / "orders"]


def rust(text: str) -> Sequence[object]:
    # In the directory of the scenarios' client, whose libraries are compiled.
    source = CACHE / "rust" / "examples" / "orders.rs"
    source.parent.mkdir(exist_ok=True)
    source.write_text(text)
    manifest = CACHE / "rust" / "Cargo.toml"
    run(["cargo", "build", "-q", "--release", "--example", "orders", "--manifest-path", manifest])
    return [CACHE / "rust" / "target" / "release" / "examples" / "orders"]


MADE: Mapping[str, tuple[str, Callable[[str], Sequence[object]]]] = {
    "Python": ("python", python),
    "Java": ("java", java),
    "Go": ("go", go),
    "Node.js": ("javascript", node),
    "Rust": ("rust", rust),
}


def prepare(target: Target) -> None:
    """Create the topic and the groups that the page has created before."""
    target.make_topic(TOPIC, "NORMAL")
    for group in GROUPS:
        target.make_group(group, fifo=False, retries_max=None)


def play(target: Target, client: Prepared, folder: Path) -> Outcome:
    """Run one language's program.

    Args:
        target: has the topic and the groups.
        client: prepared, so that its library is installed.
        folder: for the library's log.
    """
    fence, made = MADE[client.language]
    text = programs()[fence]
    assert text.count(ENDPOINT) == 1
    try:
        command = made(text.replace(ENDPOINT, target.endpoint))
        done = subprocess.run(
            list(map(str, command)),
            env=dict(client.environment(folder)),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (NotHere, subprocess.TimeoutExpired) as failure:
        return Outcome(FAILED, str(failure), 0.0)
    said = done.stdout
    groups = [group for group in GROUPS if f'"{group}"' in text or f"'{group}'" in text]
    wanted = ["sent ", *(f"{group} has hello" for group in groups)]
    missing = [each for each in wanted if each not in said]
    if done.returncode or missing:
        return Outcome(
            FAILED, f"status {done.returncode}, without {missing}: {said}{done.stderr}", 0.0
        )
    return Outcome(OK, "", 0.0)


def failures(target: Target, clients: Sequence[Prepared], folder: Path) -> list[str]:
    """Run the program of each language; return the differences from the page."""
    prepare(target)
    found = []
    for client in clients:
        # The page has no program in some languages.
        if client.language in MADE:
            outcome = play(target, client, folder / f"{client.language}-documents")
            print(f"{outcome.kind:12}{client.language:8} {PAGE.name}  {outcome.said}", flush=True)
            if outcome.kind != OK:
                found.append(f"{client.language}, the program of {PAGE.name}: {outcome.said}")
    return found
