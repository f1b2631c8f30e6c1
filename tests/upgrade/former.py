"""Programs of a former commit: packages from the history, and the kernel, compiled once."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.compare.programs import ROOT, NotHere, is_made, mark, run
from bench.layers.checkout import environment

PACKAGES = (
    "protos",
    "format",
    "rpc",
    "core",
    "services/runtime",
    "services/node",
    "services/replica",
    "services/nameserver",
    "services/broker",
    "services/offset",
    "services/gateway",
    "client",
)
KERNEL = "format/kernel"


def programs(commit: str) -> Mapping[str, str]:
    """Return the environment variables of a process that runs the programs of a commit.

    Its third-party packages are those of this environment.

    Raises:
        NotHere: the history or the compiler of the kernel is missing, or the kernel does not
            compile.
    """
    found = environment(ROOT, commit, PACKAGES)
    folder = Path(found["FORMER_LAYER"])
    kernel = folder / "kernel"
    if not is_made(kernel / "compiled", commit.encode()):
        compile_kernel(folder / KERNEL, kernel)
        mark(kernel / "compiled", commit.encode())
    return {"PYTHONPATH": f"{kernel}:{found['PYTHONPATH']}"}


def compile_kernel(source: Path, target: Path) -> None:
    if shutil.which("cargo") is None:
        raise NotHere("there is no cargo, which compiles the kernel of the former commit")
    shutil.rmtree(target, ignore_errors=True)
    tools = Path(sys.executable).parent
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(
        [*pip, "--no-build-isolation", "--no-deps", "--target", target, source],
        PATH=f"{tools}:{os.environ['PATH']}",
        CARGO_TARGET_DIR=str(target.parent / "cargo"),
    )
    # Half a gigabyte of intermediate files.
    shutil.rmtree(target.parent / "cargo", ignore_errors=True)
