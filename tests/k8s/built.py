"""Programs that are built once and kept in the cache: Kubernetes in one binary, pause, etcd."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8s.shell import CACHE, HERE, ROOT, STATE, Clock, Failed, NotHere, logged, run

VERSION = "1.35.4"
KUBE_ROUTER = "github.com/cloudnativelabs/kube-router/v2@v2.1.0"
PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "ipset",
    "conntrack",
    "buildah",
    "mmdebstrap",
    "socat",
    "ethtool",
    "openssl",
)
BIN = CACHE / "bin"
HYPER = BIN / "hyper"
NETPOL = BIN / "netpol"
ETCD_MODULE = ROOT / "client" / "rockoon" / "local" / "etcd_module"
# Services of installed packages must not start.
DISK_SHARE_MAX = 0.85
DISK_BYTES_MIN = 12 << 30
POLICY = Path("/usr/sbin/policy-rc.d")


def check_machine() -> None:
    """Check the requirements that the harness cannot install.

    Raises:
        NotHere: this user or this machine cannot run the cluster.
    """
    if os.uname().sysname != "Linux":
        raise NotHere("it needs Linux: the nodes are namespaces of one machine")
    if os.getuid() != 0:
        raise NotHere("it needs root: the nodes are namespaces of one machine")
    for program, purpose in (
        ("go", "compiles Kubernetes and etcd"),
        ("cargo", "compiles the kernel in the images"),
        ("apt-get", "installs containerd, runc and buildah"),
        ("unshare", "creates the namespaces of the nodes"),
        ("nsenter", "enters the namespaces of the nodes"),
    ):
        if shutil.which(program) is None:
            raise NotHere(f"there is no {program}, which {purpose}")
    check_disk()


def check_disk() -> None:
    """Check the space for the state: brokers refuse messages on a disk that is 90 % full.

    Raises:
        NotHere: there is not enough space.
    """
    disk = shutil.disk_usage(STATE.parent)
    share = disk.used / (disk.used + disk.free)
    if share > DISK_SHARE_MAX or disk.free < DISK_BYTES_MIN:
        raise NotHere(
            f"the disk of {STATE} is {share:.0%} full, with {disk.free >> 30} GiB free: brokers "
            "refuse messages at 90 %, and the nodes need 12 GiB; free space, or set K8S_STATE to a "
            "folder on another disk, such as /dev/shm/rockoon-k8s"
        )


def install_packages() -> None:
    """Install the Debian packages that are missing; none of their services starts."""
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
    )
    missing = [each for each in PACKAGES if f"{each} installed" not in status.stdout.splitlines()]
    if not missing:
        return
    own_policy = not POLICY.exists()
    if own_policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends"
        words = f"{install} {' '.join(missing)}"
        logged("apt", "sh", "-c", words, DEBIAN_FRONTEND="noninteractive")
    finally:
        if own_policy:
            POLICY.unlink()


def build_programs(clock: Clock) -> None:
    """Compile Kubernetes, pause and etcd if the cache does not have this version."""
    BIN.mkdir(parents=True, exist_ok=True)
    sources = sorted((HERE / "programs").glob("[hp][ya]*/*.go"))
    wanted = (
        f"{VERSION} {hashlib.sha256(b''.join(each.read_bytes() for each in sources)).hexdigest()}"
    )
    mark = BIN / "programs"
    if mark.exists() and mark.read_text() == wanted and HYPER.exists():
        return
    folder = CACHE / "kube"
    shutil.copytree(HERE / "programs", folder, dirs_exist_ok=True)
    (folder / "mod.py").unlink(missing_ok=True)
    write_module(folder, "hyper")
    stamp = f"v{VERSION}"
    flags = (
        f"-s -w -X k8s.io/component-base/version.gitVersion={stamp}"
        f" -X k8s.io/client-go/pkg/version.gitVersion={stamp}"
    )
    compile_module("compile", folder, "./hyper", HYPER, flags)
    clock.step(f"Kubernetes {VERSION} compiled")
    compile_module("pause", folder, "./pause", BIN / "pause", "-s -w", CGO_ENABLED="0")
    compile_module(
        "etcd", ETCD_MODULE, ".", BIN / "etcd", "-s -w", CGO_ENABLED="0", GOFLAGS="-trimpath"
    )
    mark.write_text(wanted)
    clock.step("pause and etcd compiled")


def build_netpol(clock: Clock) -> None:
    """Compile the enforcement of NetworkPolicies if the cache does not have it."""
    source = (HERE / "programs" / "netpol" / "main.go").read_bytes()
    wanted = f"{VERSION} {KUBE_ROUTER} {hashlib.sha256(source).hexdigest()}"
    mark = BIN / "netpol-version"
    if mark.exists() and mark.read_text() == wanted and NETPOL.exists():
        return
    folder = CACHE / "netpol"
    shutil.copytree(HERE / "programs" / "netpol", folder / "netpol", dirs_exist_ok=True)
    write_module(folder, "netpol", KUBE_ROUTER)
    compile_module("compile-netpol", folder, "./netpol", NETPOL, "-s -w", CGO_ENABLED="0")
    mark.write_text(wanted)
    clock.step("enforcement of NetworkPolicies compiled")


def write_module(folder: Path, name: str, *requirements: str) -> None:
    """Write go.mod and go.sum for a program that imports Kubernetes.

    Kubernetes' own go.mod replaces its staging modules by folders of its repository; here they are
    replaced by their published versions.
    """
    words = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"]
    own = Path(json.loads(run(*words, folder=CACHE))["Dir"])
    staging = f"v0.{VERSION.split('.', 1)[1]}"
    text = re.sub(r"^module .*$", f"module {name}", (own / "go.mod").read_text(), flags=re.M)
    text = re.sub(r"^\t(k8s\.io/\S+) => \./staging/\S+", rf"\t\1 => \1 {staging}", text, flags=re.M)
    text += f"\nrequire k8s.io/kubernetes v{VERSION}\n"
    for module, version in (each.split("@") for each in requirements):
        text += f"require {module} {version}\n"
    (folder / "go.mod").write_text(text)
    (folder / "go.sum").write_bytes((own / "go.sum").read_bytes())


def compile_module(
    log: str, folder: Path, package: str, target: Path, flags: str, **environment: str
) -> None:
    own = {"GOFLAGS": "-mod=mod -buildvcs=false", "GOGC": "off", "GOWORK": "off"} | environment
    parallel = str(os.cpu_count() or 1)
    command = ("go", "build", "-p", parallel, "-ldflags", flags, "-o", target, package)
    logged(log, "nice", "-n", "10", *command, folder=folder, **own)


@contextmanager
def cache_lock() -> Iterator[None]:
    """Hold the lock of the cache and of the one cluster of this machine.

    Raises:
        Failed: another process holds it.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failed("another `make k8s` runs on this machine: wait until it ends") from None
        yield
