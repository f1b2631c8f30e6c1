"""The Dockerfile without an engine: linted, compared with the packages, its steps run by hand."""

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
BUILD_STAGES = [f"build-{name}" for name in (*SERVICES, "client", "spark", "load-test")]


def stages() -> dict[str, str]:
    """Each stage's name and its instructions, lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    found = re.split(r"^FROM \S+ AS (\S+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def installed(stage: str) -> list[str]:
    """Requirements that a build stage installs for its image."""
    (line,) = re.findall(r"\./install\.sh \S+ (.*?)(?: &&|$)", stages()[stage], re.MULTILINE)
    return shlex.split(line)


def package_folders() -> dict[str, Path]:
    """Folders of our packages by the name of the distribution; without the kernel."""
    files = [*REPOSITORY.glob("*/pyproject.toml"), *REPOSITORY.glob("services/*/pyproject.toml")]
    return {tomllib.loads(file.read_text())["project"]["name"]: file.parent for file in files}


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("stage", BUILD_STAGES)
def test_the_shared_layer_has_our_packages_that_every_image_needs_and_no_other(stage: str) -> None:
    shared = brought(installed("build-shared")) & package_folders().keys()
    assert {"rockoon-core", "rockoon-format", "rockoon-rpc", "rockoon-proto"} == shared
    assert shared < brought(installed(stage))


def test_wheels_of_all_packages_are_built() -> None:
    """`install.sh` finds nothing but these wheels."""
    copied = re.findall(r"^COPY (?!--from)(\S+) ", stages()["wheels"], re.MULTILINE)
    assert {REPOSITORY / name for name in copied} == {
        folder.parent if folder.parent.name == "services" else folder
        for folder in package_folders().values()
    }
    (line,) = re.findall(r"--wheel-dir /wheels (\./protos .*)", stages()["wheels"])
    assert {word.removeprefix("./").removesuffix("/*") for word in line.split()} == set(copied)


def test_the_third_party_layer_is_made_from_all_packages_but_sparks() -> None:
    stage = stages()["build-packages"]
    (line,) = re.findall(r"third_party\.py (.*?) > shared.txt", stage)
    folders = {
        target.rstrip("/"): REPOSITORY / source
        for source, target in re.findall(r"^COPY (\S+)/pyproject.toml (\S+)$", stage, re.MULTILINE)
    }
    words = [word.partition("[")[0] for word in shlex.split(line)]
    assert "runtime[telemetry]" in shlex.split(line)
    # `rockoon apply` reads YAML.
    assert "client[yaml]" in shlex.split(line)
    assert "rockoon[yaml]" in installed("build-client")
    assert {folders[word] for word in words} == set(package_folders().values()) - {
        REPOSITORY / "spark"
    }


def test_each_third_party_package_of_an_image_has_a_version() -> None:
    """Without one, two builds of the same commit differ."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    fixed = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    words = [word for stage in BUILD_STAGES for word in installed(stage)]
    load = (REPOSITORY / "requirements-load.txt").read_text().splitlines()
    words += [line for line in load if line and not line.startswith("#")]
    assert {name for name in brought(words) if not name.startswith("rockoon")} <= fixed


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_the_packages_for_what_its_manifest_switches_on(service: str) -> None:
    """`metrics_listen` and `otlp_endpoint` without `[telemetry]` end a service at its start."""
    where = "components/gateway" if service == "gateway" else "base"
    settings = tomllib.loads(
        (REPOSITORY / f"deploy/kubernetes/{where}/settings/{service}.toml").read_text()
    )
    assert settings["metrics_listen"]
    assert "rockoon-runtime[telemetry]" in installed(f"build-{service}")


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
        f"--from=build-{service} /layer/rockoon /rockoon"
    ]
    listen = SETTINGS[service]().listen
    assert re.findall(r"^EXPOSE (.*)", image, re.MULTILINE) == [listen.rpartition(":")[2]]


# Every module of a service, because any call may need it, and its dependencies.
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import prometheus_client, opentelemetry.exporter.otlp.proto.grpc
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


# Modules that gRPC tries to import, and those that a development environment adds to each Python.
NOT_NEEDED = {"grpc_tools", "_distutils_hack"}


def brought(words: Iterable[str]) -> set[str]:
    """Return the dependencies of some distributions, by their metadata."""
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
    # The layer that all images share has the kernel; here it is compiled if there is a compiler.
    assert "rockoon-kernel" in installed("build-shared")
    kernel = ["rockoon-kernel"] if is_compiled() else []
    here = brought([*installed(f"build-{service}"), *kernel])
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
    subprocess.run(
        ["git", "-C", str(REPOSITORY), "checkout-index", "--prefix", f"{sources}/", "--all"],
        check=True,
    )
    folders, words = package_folders(), installed(f"build-{service}")
    ours = [str(folders[name].relative_to(REPOSITORY)) for name in brought(words) & folders.keys()]
    ours += ["services/runtime[telemetry]"]
    subprocess.run(
        [*pip, "--no-build-isolation", *(f"./{each}" for each in ours)], cwd=sources, check=True
    )
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
