"""What is released together fits together: one version, and each package pins the others to it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path
    for pattern in ("", "services/", "format/")
    for path in ROOT.glob(f"{pattern}*/pyproject.toml")
)
PROJECTS: dict[str, dict[str, Any]] = {
    project["name"]: project
    for project in (tomllib.loads(path.read_text())["project"] for path in FILES)
}
(VERSION,) = {project["version"] for project in PROJECTS.values()}


def needed(project: dict[str, Any]) -> list[str]:
    """Requirements of a package, those of its extras too."""
    extras = project.get("optional-dependencies", {}).values()
    return [*project.get("dependencies", ()), *(each for extra in extras for each in extra)]


@pytest.mark.parametrize("name", PROJECTS)
def test_an_upgrade_of_one_package_brings_the_others_it_was_released_with(name: str) -> None:
    """Otherwise `pip install --upgrade rockoon` keeps a rockoon-proto whose wire is another."""
    ours = [each for each in needed(PROJECTS[name]) if each.startswith("rockoon")]
    ours = [each.partition(";")[0] for each in ours]
    names = [re.split(r"[^\w-]", each)[0] for each in ours]
    assert set(names) <= PROJECTS.keys()
    assert ours == [f"{each}=={VERSION}" for each in names]


def test_every_package_is_found() -> None:
    assert len(PROJECTS) == len(FILES) == 14


def test_a_broker_and_a_local_cluster_come_with_the_compiled_kernel() -> None:
    """On a platform without a wheel, pip would need a Rust compiler: NumPy is used there."""
    local = PROJECTS["rockoon"]["optional-dependencies"]["local"]
    for needs in (PROJECTS["rockoon-broker"]["dependencies"], local):
        (kernel,) = [Requirement(each) for each in needs if each.startswith("rockoon-kernel")]
        assert kernel.marker is not None
        here = {"platform_python_implementation": "CPython", "extra": ""}
        for system, machine, expected in (
            ("linux", "x86_64", True),
            ("linux", "aarch64", True),
            ("darwin", "arm64", True),
            ("linux", "riscv64", False),
            ("win32", "AMD64", False),
        ):
            platform = {"sys_platform": system, "platform_machine": machine}
            assert kernel.marker.evaluate(here | platform) is expected, platform
        assert not kernel.marker.evaluate(
            {"platform_python_implementation": "PyPy", "sys_platform": "linux"}
        )


def test_manifests_and_documents_name_images_of_this_version() -> None:
    """Without a tag Kubernetes fetches whatever somebody publishes under the name."""
    files = [
        *ROOT.glob("deploy/**/*.yaml"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("deploy/docker/*"),
    ]
    texts = {path: path.read_text() for path in files if path.is_file()}
    named = [
        tag
        for text in texts.values()
        for tag in re.findall(r"(?:image: |-t |image )rockoon/[\w$-]+(?::(\S+))?", text)
    ]
    named += re.findall(r"newTag: (\S+)", "".join(texts.values()))
    assert len(named) > 10
    assert set(named) == {VERSION}
