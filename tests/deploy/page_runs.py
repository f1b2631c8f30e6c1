"""Runs the commands of a page about Kubernetes, in order and as written.

    KUBECTL="kubectl --context test" PYTHONPATH=tests python -m deploy.page_runs PAGE...

HELM names the command of a page that calls `helm`.

Each ```sh block, also within a list, is a program for bash, in a directory with a copy of deploy/.
A comment on the line before a block says otherwise:

<!-- file: PATH -->   the block (of any language) is the content of a file
<!-- images -->       the block builds images and loads them into the nodes: not run, done before
<!-- needs WORD -->   the block is run only if the cluster has the feature
<!-- example -->      the block is not run
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from deploy.manifests import ROOT

REPOSITORY = ROOT.parents[1]
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+?) -->\n+)?^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)"
    r"^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
# Of one block: it may wait for images that are pulled and for pods that start.
SECONDS_MAX = 900.0


class PageError(Exception):
    """A block of a page failed; the text has its position and its output."""


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        page: file name of the page.
        line: line of its first command.
        section: title of the `##` section that has it.
        mark: comment before it.
        text: its content.
    """

    page: str
    line: int
    section: str
    mark: str
    text: str


@dataclass(frozen=True)
class Ran:
    """A block that was run.

    Attributes:
        block: the block.
        seconds: duration of the run.
        output: output of its commands.
    """

    block: Block
    seconds: float
    output: str


def blocks(path: Path) -> list[Block]:
    """Blocks of a page that are commands for a shell, or files.

    Raises:
        ValueError: a comment before a block is not in the list above.
    """
    text, found = path.read_text(), []
    for each in BLOCK.finditer(text):
        mark = each["mark"] or ""
        is_file = mark.startswith("file: ")
        if each["language"] != "sh" and not is_file:
            continue
        if mark and not (is_file or mark in ("images", "example") or mark.startswith("needs ")):
            raise ValueError(f"{path.name}: <!-- {mark} --> is not known")
        line = text.count("\n", 0, each.start("text")) + 1
        titles = SECTION.findall(text, 0, each.start())
        section = titles[-1] if titles else ""
        found.append(Block(path.name, line, section, mark, textwrap.dedent(each["text"])))
    return found


def run_page(
    path: Path,
    kubectl: str,
    env: Mapping[str, str] | None = None,
    *,
    workspace: Path | None = None,
    features: AbstractSet[str] = frozenset(),
    seconds_max: float = SECONDS_MAX,
    helm: str = "helm",
    etcdctl: str = "etcdctl",
    chosen: Callable[[Block], bool] = lambda _: True,
) -> list[Ran]:
    """Run the blocks of a page.

    Args:
        path: the page.
        kubectl: command that the page's `kubectl` runs, for example "k8s.sh kubectl".
        env: additional environment of the commands.
        workspace: directory in which they run; it gets a copy of deploy/ if it has none. Pages
            that continue others need the same one. Default: a temporary directory.
        features: words of <!-- needs WORD --> that the cluster has.
        seconds_max: maximum duration of a block.
        helm: command that the page's `helm` runs.
        etcdctl: command that the page's `etcdctl` runs.
        chosen: returns whether to run a block, or write its file; default: all blocks.

    Raises:
        PageError: a command failed or took too long; blocks after it are not run.
    """
    if workspace is None:
        with tempfile.TemporaryDirectory(prefix="rockoon-page-") as folder:
            return run_page(
                path,
                kubectl,
                env,
                workspace=Path(folder),
                features=features,
                seconds_max=seconds_max,
                helm=helm,
                etcdctl=etcdctl,
                chosen=chosen,
            )
    copy_manifests(workspace)
    programs = workspace / ".programs"
    programs.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in os.environ if name != "KUBECTL"}
    environment |= dict(env or {})
    for name, command in (("kubectl", kubectl), ("helm", helm), ("etcdctl", etcdctl)):
        program, *words = shlex.split(command)
        # Without its folder the wrapper would call itself.
        if found := shutil.which(program):
            # Another page may run in the same directory: it finds the whole file.
            wrapper = programs / f"{name}.{threading.get_ident()}"
            wrapper.write_text(f'#!/bin/sh\nexec {shlex.join([found, *words])} "$@"\n')
            wrapper.chmod(0o755)
            wrapper.rename(programs / name)
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = []
    for block in filter(chosen, blocks(path)):
        kind, _, rest = block.mark.partition(" ")
        if kind == "file:":
            write_file(block, workspace)
        elif kind not in ("images", "example") and (kind != "needs" or rest in features):
            done.append(run_block(block, workspace, environment, seconds_max))
    return done


def copy_manifests(workspace: Path) -> None:
    if not (workspace / "deploy").exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT.parent, workspace / "deploy", ignore=ignored, symlinks=True)


def write_file(block: Block, workspace: Path) -> None:
    file = workspace / block.mark.removeprefix("file: ")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)


def write_files(path: Path, workspace: Path) -> None:
    """Write the files of a page into a directory with a copy of deploy/, and run nothing."""
    copy_manifests(workspace)
    for block in blocks(path):
        if block.mark.startswith("file: "):
            write_file(block, workspace)


def run_block(
    block: Block, workspace: Path, environment: Mapping[str, str], seconds_max: float
) -> Ran:
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=workspace,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds_max)
        reason = f"exit status {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        end(process)
        output, _ = process.communicate()
        reason = f"no end after {seconds_max:.0f} s"
    except BaseException:
        end(process)
        raise
    if reason:
        raise PageError(f"{block.page}, line {block.line}: {reason}\n{block.text}\n{output}")
    return Ran(block, time.monotonic() - began, output)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a shell and the programs that it started."""
    os.killpg(process.pid, signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Run pages one after the other in one directory."""
    kubectl, helm = os.environ.get("KUBECTL", "kubectl"), os.environ.get("HELM", "helm")
    features = frozenset(shlex.split(os.environ.get("FEATURES", "")))
    with tempfile.TemporaryDirectory(prefix="rockoon-pages-") as folder:
        for name in arguments:
            try:
                ran = run_page(
                    Path(name), kubectl, workspace=Path(folder), features=features, helm=helm
                )
            except PageError as failure:
                print(failure, file=sys.stderr)
                return 1
            for each in ran:
                first = each.block.text.partition("\n")[0]
                print(f"{each.seconds:7.1f} s  {each.block.page}:{each.block.line}  {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
