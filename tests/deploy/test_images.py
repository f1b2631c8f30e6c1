"""The Dockerfile, without a Docker engine: linted, compared with the packages, done by hand."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from deploy.manifests import SETTINGS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.kernels import is_compiled

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "deploy/docker/Dockerfile"
SERVICES = ("nameserver", "broker", "offset", "gateway")


def stages() -> dict[str, str]:
    """Each stage's name and its instructions, lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    found = re.split(r"^FROM \S+ AS (\S+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def installed(stage: str) -> list[str]:
    """What the pip line of a build stage installs, as it is written."""
    (line,) = re.findall(r"pip install --no-build-isolation (.*?) &&", stages()[stage])
    return shlex.split(line)[2:]


def directory(word: str) -> Path:
    return REPOSITORY / word.partition("[")[0]


def needed(package: Path) -> set[Path]:
    """A package's folder and those of ours that it needs."""
    folders = {
        tomllib.loads(file.read_text())["project"]["name"]: file.parent
        for file in REPOSITORY.glob("*/pyproject.toml")
    } | {
        tomllib.loads(file.read_text())["project"]["name"]: file.parent
        for file in REPOSITORY.glob("services/*/pyproject.toml")
    }
    found: set[Path] = set()
    wanted = [package]
    while wanted:
        folder = wanted.pop()
        if folder in found:
            continue
        found.add(folder)
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        names = [re.split(r"[=<>;\[ ]", each)[0] for each in project["dependencies"]]
        wanted += [folders[name] for name in names if name in folders]
    return found


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize(
    ("stage", "package"),
    [
        ("build-nameserver", "services/nameserver"),
        ("build-broker", "services/broker"),
        ("build-offset", "services/offset"),
        ("build-gateway", "services/gateway"),
        ("build-client", "client"),
        ("build-load-test", "client"),
        ("build-spark", "spark"),
    ],
)
def test_an_image_holds_the_packages_that_it_needs_and_no_other(stage: str, package: str) -> None:
    assert {directory(word) for word in installed(stage)} == needed(REPOSITORY / package)
    copied = {
        REPOSITORY / line.split()[1]
        for part in ("build", stage)
        for line in re.findall(r"^COPY .*", stages()[part], re.MULTILINE)
    }
    assert needed(REPOSITORY / package) <= copied


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_the_packages_for_what_its_manifest_switches_on(service: str) -> None:
    """`metrics_listen` and `otlp_endpoint` without `[telemetry]` end a service at its start."""
    where = "components/gateway" if service == "gateway" else "base"
    settings = tomllib.loads(
        (REPOSITORY / f"deploy/kubernetes/{where}/settings/{service}.toml").read_text()
    )
    assert settings["metrics_listen"]
    assert "./services/runtime[telemetry]" in installed(f"build-{service}")


def test_what_is_copied_goes_to_the_engine() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", "\n".join(stages().values()), re.MULTILINE)
    sources = [word for line in copies for word in line.split()]
    assert sources
    for source in sources:
        assert any(f"{source}/".startswith(f"{name}/") for name in sent), source


def test_services_run_as_nobody_in_particular_and_start_by_their_own_commands() -> None:
    found = stages()
    assert found["service"].rstrip().endswith("USER 10001:10001")
    for service in SERVICES:
        assert f'ENTRYPOINT ["rockoon-{service}"]' in found[service]
        assert "USER" not in found[service]


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_what_its_own_stage_has_built_and_names_the_port_it_listens_on(
    service: str,
) -> None:
    image = stages()[service]
    assert re.findall(r"^COPY (.*)", image, re.MULTILINE) == [
        f"--from=build-{service} /rockoon /rockoon"
    ]
    listen = SETTINGS[service]().listen
    assert re.findall(r"^EXPOSE (.*)", image, re.MULTILINE) == [listen.rpartition(":")[2]]


# Every module of a service, as any call may need it, and what that brings along.
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import prometheus_client, opentelemetry.exporter.otlp.proto.grpc
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


# What gRPC looks for and does without, and what a development environment starts every Python with.
NOT_NEEDED = {"grpc_tools", "_distutils_hack"}


def brought(words: Iterable[str]) -> set[str]:
    """The distributions that installing some brings along, by what each says that it needs."""
    found: set[tuple[str, frozenset[str]]] = set()
    wanted = [Requirement(word) for word in words]
    while wanted:
        one = wanted.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for text in requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                wanted.append(needed)
    return {name for name, _ in found}


def requirement(word: str) -> str:
    """A folder on a pip line, as the name of what is in it."""
    folder, bracket, extras = word.partition("[")
    project = tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text())["project"]
    return str(project["name"]) + bracket + extras


@pytest.mark.parametrize("service", SERVICES)
def test_all_that_a_service_imports_is_brought_along_by_what_its_image_installs(
    service: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, f"rockoon_{service}"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(done.stdout.split()) - NOT_NEEDED
    # What every image starts from has the kernel's wheel; here it is where there is a compiler.
    assert "/wheels/*.whl" in stages()["build"]
    kernel = ["format/kernel"] if is_compiled() else []
    here = brought(map(requirement, [*installed(f"build-{service}"), *kernel]))
    homes = packages_distributions()
    missing = {
        name: homes[name]
        for name in imported & homes.keys() - sys.stdlib_module_names
        if not here & set(map(canonicalize_name, homes[name]))
    }
    assert missing == {}
    assert f"rockoon-{service}" in here
    assert not here & {f"rockoon-{other}" for other in SERVICES if other != service}


@pytest.mark.soak
@pytest.mark.parametrize("service", SERVICES)
def test_the_install_steps_in_a_clean_environment_make_a_service_that_starts(
    service: str, tmp_path: Path
) -> None:
    tree, sources = tmp_path / "tree", tmp_path / "sources"
    subprocess.run([sys.executable, "-m", "venv", str(tree)], check=True)
    pip = [str(tree / "bin/pip"), "install", "--quiet", "-c", str(REPOSITORY / "constraints.txt")]
    subprocess.run([*pip, "setuptools"], check=True)
    words = installed(f"build-{service}")
    subprocess.run(
        ["git", "-C", str(REPOSITORY), "checkout-index", "--prefix", f"{sources}/", "--all"],
        check=True,
    )
    subprocess.run([*pip, "--no-build-isolation", *words], cwd=sources, check=True)
    started = subprocess.run(
        [str(tree / f"bin/rockoon-{service}"), "--print-settings"],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "listen = " in started.stdout
    telemetry = "import prometheus_client, opentelemetry.exporter.otlp.proto.grpc"
    subprocess.run([str(tree / "bin/python"), "-c", telemetry], check=True)
    foreign = {f"rockoon_{other}" for other in SERVICES if other != service} | {"pytest"}
    # A gateway is a client.
    foreign |= set() if service == "gateway" else {"rockoon"}
    here = {path.name for path in tree.glob("lib/python*/site-packages/*")}
    assert not foreign & here
