"""Extracts packages of a former commit from this repository's history into .compare, once."""

import shutil
import sys
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.compare.programs import CACHE, ROOT, NotHere, is_made, mark, run

# The last commit before the frame layer had turns and budgets.
COMMIT = "8e2a73318654f2c793b2f20826cbbb185d64bb84"
PACKAGES = ("core", "protos", "services/runtime")
# Of its dependencies, those that this checkout may lack.
DEPENDENCY = "hpack"


def environment(
    repository: Path = ROOT, commit: str = COMMIT, packages: Sequence[str] = PACKAGES
) -> Mapping[str, str]:
    """Return the environment variables of a process that imports the packages of a former commit.

    Args:
        repository: the clone whose history has the commit.
        commit: a commit, in any form that git accepts.
        packages: directories of packages; those that the commit does not have are left out.

    Raises:
        NotHere: the clone does not have the commit, or a dependency cannot be installed.
    """
    folder, present = extract(repository, commit, packages)
    paths = [ROOT, *(folder / package for package in present)]
    if find_spec(DEPENDENCY) is None:
        paths.append(_dependency(folder))
    return {"PYTHONPATH": ":".join(map(str, paths)), "FORMER_LAYER": str(folder)}


def extract(repository: Path, commit: str, packages: Sequence[str]) -> tuple[Path, list[str]]:
    """Extract directories of a commit, once; return their parent, and those that it has. Raises
    NotHere: the clone does not have the commit."""
    try:
        full = run(["git", "-C", repository, "rev-parse", "--verify", "-q", f"{commit}^{{commit}}"])
    except NotHere as failure:
        raise NotHere(
            f"commit {commit[:12]} cannot be extracted: this clone does not have it. "
            f"A shallow clone gets it by `git fetch --unshallow` ({failure})"
        ) from failure
    full = full.strip()
    listed = run(["git", "-C", repository, "ls-tree", "--name-only", full, "--", *packages])
    present = listed.split()
    content = " ".join([full, *present]).encode()
    folder = CACHE / f"commit-{full[:7]}-{zlib.crc32(content):08x}"
    if not is_made(folder / "commit", content):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        archive = folder / "archive.tar"
        run(["git", "-C", repository, "archive", "-o", archive, full, *present, "constraints.txt"])
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        archive.unlink()
        mark(folder / "commit", content)
    return folder, present


def _dependency(folder: Path) -> Path:
    """Return a folder with the dependency, in the version that the former commit requires."""
    target = folder / "third-party"
    lines = (folder / "constraints.txt").read_text().splitlines()
    wanted = next(line for line in lines if line.startswith(f"{DEPENDENCY}=="))
    if not is_made(target / "version", wanted.encode()):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--target", target, wanted])
        mark(target / "version", wanted.encode())
    return target
