"""Kustomizations that pages of the documentation show, as a reader would write them down."""

import re
import shutil
from pathlib import Path

from deploy.manifests import ROOT

REPOSITORY = ROOT.parents[1]


def kustomizations(page: str, directory: Path) -> list[Path]:
    """Write each kustomization of a page into a directory beside the overlays.

    Args:
        page: path of the page in docs/.
        directory: receives a copy of deploy/.

    Returns:
        The directories of the kustomizations, in the order of the page.
    """
    if not (directory / "deploy").exists():
        shutil.copytree(ROOT.parent, directory / "deploy")
    text = (REPOSITORY / "docs" / page).read_text()
    found = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", text, re.DOTALL)
    assert found, f"{page} has no kustomization"
    places = []
    for number, content in enumerate(found):
        place = directory / f"deploy/kubernetes/overlays/own-{number}"
        place.mkdir()
        (place / "kustomization.yaml").write_text(content)
        places.append(place)
    return places
