"""The real programs that build kustomizations, where this machine has one."""

import shutil
import subprocess
from pathlib import Path

from deploy.manifests import Overlay

from support.kustomize import Document, build, load_all

BUILDERS = [("kustomize", "build"), ("kubectl", "kustomize")]


def by_name(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    found = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in documents
    }
    assert len(found) == len(documents)
    return found


def real_builds(directory: Path) -> list[dict[tuple[str, str, str], Document]]:
    """What each real program on PATH makes of a directory."""
    found = []
    for program, command in BUILDERS:
        if shutil.which(program):
            made = subprocess.run(
                [program, command, str(directory)], capture_output=True, check=True
            )
            found.append(by_name(list(load_all(made.stdout))))
    return found


def build_as_real(directory: Path) -> Overlay:
    """Build a directory, and compare every object with those of each real program on PATH."""
    overlay = Overlay(build(directory))
    for theirs in real_builds(directory):
        assert by_name(overlay.documents) == theirs
    return overlay
