"""Extracts the packages of a former commit from this repository's history into .compare, once."""

import shutil
import sys
import tarfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from bench.compare.fetching import CACHE, ROOT, NotHere, is_made, mark, run

# The last commit before the frame layer had turns and budgets.
COMMIT = "8e2a73318654f2c793b2f20826cbbb185d64bb84"
PACKAGES = ("core", "protos", "services/runtime")
# Of its dependencies, those that this checkout may lack.
DEPENDENCY = "hpack"


def environment(repository: Path = ROOT, commit: str = COMMIT) -> Mapping[str, str]:
    """Return the environment variables of a process that imports the packages of the former commit.

    Raises:
        NotHere: the clone does not have the commit, or a dependency cannot be installed.
    """
    folder = CACHE / f"commit-{commit[:7]}"
    marker = folder / "commit"
    if not is_made(marker, commit.encode()):
        _extract(repository, commit, folder)
        mark(marker, commit.encode())
    paths = [ROOT, *(folder / package for package in PACKAGES)]
    if find_spec(DEPENDENCY) is None:
        paths.append(_dependency(folder))
    return {"PYTHONPATH": ":".join(map(str, paths)), "FORMER_LAYER": str(folder)}


def _extract(repository: Path, commit: str, folder: Path) -> None:
    try:
        run(["git", "-C", repository, "cat-file", "-e", f"{commit}^{{commit}}"])
    except NotHere as failure:
        raise NotHere(
            f"the layer of commit {commit[:7]} cannot be compared: this clone does not have the "
            f"commit. A shallow clone gets it by `git fetch --unshallow` ({failure})"
        ) from failure
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    wanted = [*PACKAGES, "constraints.txt"]
    run(["git", "-C", repository, "archive", "-o", archive, commit, *wanted])
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()


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
