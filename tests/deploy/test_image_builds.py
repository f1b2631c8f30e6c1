"""`make images` with programs that build nothing: the engine that it uses, and its figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# `save` writes a shared layer, and a layer with one MB for each letter of the image's name.
ENGINE = """\
#!{python}
import gzip, hashlib, io, json, os, sys, tarfile
words = sys.argv[1:]
with open({calls!r}, "a") as file:
    print("{name}", *words, file=file)
if words[0] == "--root":
    del words[:2]
if words[0] == "info":
    sys.exit({status})
if words[0] != "save":
    sys.exit(0)
reference = words[-1]
name = reference.rpartition("/")[2].partition(":")[0]
random = os.urandom(8) if {random} and reference.endswith("-again") else b""
def packed(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()
shared = packed({{"numpy": bytes(2_000_000)}})
own = packed({{"sbom.cdx.json": name.encode() + random, "service": bytes(len(name) * 1_000_000)}})
layers = [own] if name == "etcd" else [shared, own]
digests = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
if "{name}" == "docker":
    layers = [gzip.compress(layer) for layer in layers]
config = json.dumps({{"rootfs": {{"diff_ids": digests}}}}).encode()
names = [f"layer{{index}}.tar" for index in range(len(layers))]
manifest = json.dumps([{{"Config": "config.json", "Layers": names}}]).encode()
files = {{"manifest.json": manifest, "config.json": config}} | dict(zip(names, layers))
open(words[words.index("--output") + 1], "wb").write(packed(files))
"""


class Machine:
    """A folder of programs, which is the whole PATH, and their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"

    def has(self, name: str, status: int = 0, random: bool = False) -> None:
        program = self.folder / name
        content = {"python": sys.executable, "calls": str(self.calls), "name": name}
        program.write_text(ENGINE.format(status=status, random=random, **content))
        program.chmod(0o755)

    def images(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tools.images", "--out", self.folder / "out", *words],
            cwd=REPOSITORY,
            env={"PATH": str(self.folder), "HOME": os.environ["HOME"]},
            capture_output=True,
            text=True,
            check=False,
        )

    def builds(self) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if " build " in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_an_engine_one_sentence_says_what_to_install(machine: Machine) -> None:
    machine.has("docker", status=1)  # without its daemon
    done = machine.images("--only", "broker")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "images: found none of buildah, podman and a running docker; install one of them"
    ]


def test_a_running_docker_is_enough(machine: Machine) -> None:
    machine.has("docker")
    done = machine.images("--only", "broker", "--tag", "1.0")
    assert "| broker | 8 | 8.0 |" in done.stdout.splitlines()
    (build,) = machine.builds()
    assert build.startswith("docker build ")
    assert "--target broker --tag docker.io/rockoon/broker:1.0 " in build


def test_a_node_stores_a_shared_layer_once(machine: Machine) -> None:
    machine.has("podman")
    done = machine.images("--only", "broker offset etcd", "--save", machine.folder / "saved")
    table = done.stdout.splitlines()
    assert "| broker | 8 | 6.0 |" in table
    assert "| etcd | 4 | 4.0 |" in table
    assert "Layers that images share: 2.0 MB." in table
    assert "On a node with broker, offset, etcd: **18 MB**." in table
    assert (machine.folder / "out/offset.cdx.json").read_text() == "offset"
    assert (machine.folder / "saved/offset.tar").exists()


def test_options_reach_the_engine_and_its_build(machine: Machine) -> None:
    machine.has("podman")
    words = ["--engine", "podman --root /srv", "--options", "--pull-never -v /a:/b:ro"]
    assert machine.images(*words, "--only", "etcd").returncode == 0
    assert machine.calls.read_text().startswith("podman --root /srv build ")
    assert " --pull-never -v /a:/b:ro --target etcd " in machine.calls.read_text()


def test_a_second_build_with_another_content_fails(machine: Machine) -> None:
    machine.has("podman", random=True)
    done = machine.images("--only", "broker", "--twice")
    assert done.returncode == 1
    assert done.stderr.startswith("images: the second build of broker differs:\nsha256:")
    assert "--no-cache" in machine.builds()[1]
    assert "--no-cache" not in machine.builds()[0]


def test_equal_second_builds_pass(machine: Machine) -> None:
    machine.has("podman")
    assert machine.images("--only", "broker", "--twice").returncode == 0


def test_an_unknown_image_is_refused(machine: Machine) -> None:
    machine.has("podman")
    assert (
        "no such image: brocker; there are nameserver, "
        in machine.images("--only", "brocker").stderr
    )
