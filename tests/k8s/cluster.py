"""The cluster: `up` starts its nodes, `down` ends all its processes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from k8s.built import BIN, HYPER
from k8s.certificates import authority, certificate
from k8s.images import Images, buildah
from k8s.node import (
    BALANCERS,
    CONTROL,
    LOG,
    OUTSIDE,
    PKI,
    RUN,
    Namespaces,
    Node,
    existing_nodes,
    remove_cgroups,
    start_control_plane,
    start_controllers,
)
from k8s.shell import HERE, STATE, Clock, Failed, run, wait_for

OUTSIDE_ADDRESS = "10.88.0.100"
DNS_SECONDS = 5.0
API_SECONDS = 120.0
NODES_SECONDS = 90.0
USERS = {
    "admin": "/O=system:masters/CN=admin",
    "cm": "/CN=system:kube-controller-manager",
    "sched": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "front": "/CN=front-proxy",
}
DOMAIN = "kubernetes.default.svc.cluster.local"


def up(count: int, clock: Clock) -> None:
    """Start a cluster; parts that run already stay.

    Args:
        count: number of nodes, 1 to 4.
        clock: prints the durations.
    """
    for folder in (RUN, LOG, PKI):
        folder.mkdir(parents=True, exist_ok=True)
    create_certificates()
    nodes = [Node(number) for number in range(count)]
    for node in nodes:
        node.create()
        give_pause(node)
    clock.step(f"{count} nodes with containerd")
    create_outside()
    start_control_plane()
    wait_for("the API server", api_answers(), API_SECONDS)
    start_controllers()
    set_dns_age(DNS_SECONDS)
    Node(0).start("cloud", sys.executable, HERE / "cloud.py", STATE)
    clock.step("control plane")
    for node in nodes:
        node.start_kubelet()
    wait_for("the nodes", (ready_nodes() >= count for _ in iter(int, 1)), NODES_SECONDS)
    kubectl("apply", "-f", HERE / "settings" / "storage.yaml")
    clock.step("nodes ready")


def down() -> None:
    """End all processes of the cluster and remove its state; programs and images stay."""
    if not STATE.exists():
        return
    for each in [Namespaces(OUTSIDE), *existing_nodes()]:
        each.end()
    remove_cgroups()
    with suppress(Failed):
        buildah("unmount", "-a")
    for mount in reversed(mounts_below(STATE)):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    # A container's immutable files would stay.
    subprocess.run(["chattr", "-R", "-f", "-i", STATE], capture_output=True)
    shutil.rmtree(STATE, ignore_errors=True)


def mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [
        point for point in (each.split()[1] for each in lines) if point.startswith(f"{folder}/")
    ]


def create_certificates() -> None:
    if (PKI / "done").exists():
        return
    authority(PKI, "rockoon-k8s")
    run("openssl", "genrsa", "-out", PKI / "sa.key", 2048)
    run("openssl", "rsa", "-in", PKI / "sa.key", "-pubout", "-out", PKI / "sa.pub")
    names = [DOMAIN.rsplit(".", cut)[0] if cut else DOMAIN for cut in range(5)]
    addresses = [f"IP:{each}" for each in (CONTROL, "10.96.0.1", "127.0.0.1")]
    subjects = {"apiserver": ("/CN=kube-apiserver", [*addresses, *(f"DNS:{n}" for n in names)])}
    subjects |= {name: (subject, []) for name, subject in USERS.items()}
    for node in map(Node, range(4)):
        own = [f"IP:{node.address}", f"DNS:{node.name}"]
        subjects[node.name] = (f"/O=system:nodes/CN=system:node:{node.name}", own)
    for name, (subject, alternatives) in subjects.items():
        certificate(PKI, PKI / f"{name}.key", PKI / f"{name}.crt", subject, alternatives)
        (PKI / f"{name}.kubeconfig").write_text(json.dumps(kubeconfig(name)))
    (PKI / "done").touch()


def kubeconfig(name: str) -> Any:
    """Return the configuration of a Kubernetes client with the certificate of this name."""
    server = {"server": f"https://{CONTROL}:6443", "certificate-authority": str(PKI / "ca.crt")}
    user = {
        "client-certificate": str(PKI / f"{name}.crt"),
        "client-key": str(PKI / f"{name}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def give_pause(node: Node) -> None:
    """Import the image of the pods' first process."""
    if not Images.exists("localhost/pause:1"):
        container = buildah("from", "scratch").strip()
        buildah("copy", "-q", container, BIN / "pause", "/pause")
        buildah("config", "--entrypoint", '["/pause"]', "--user", "65535:65535", container)
        buildah("commit", "-q", container, "localhost/pause:1")
        buildah("rm", container)
    archive = node.run_folder / "pause.tar"
    buildah("push", "-q", "localhost/pause:1", f"oci-archive:{archive}:localhost/pause:1")
    node.ctr("images", "import", archive)
    archive.unlink()


def create_outside() -> None:
    """Create the machine outside of the cluster; it reaches the addresses of load balancers."""
    outside = Namespaces(OUTSIDE)
    if outside.holder() is not None:
        return
    outside.create()
    control = Node(0)
    peer = ("type", "veth", "peer", "name", "lan", "netns", outside.first())
    control.ip("link", "add", "toout", *peer)
    control.ip("link", "set", "toout", "master", "lan", "up")
    outside.ip("addr", "add", f"{OUTSIDE_ADDRESS}/24", "dev", "lan")
    outside.ip("link", "set", "lan", "up")
    outside.ip("route", "add", BALANCERS, "via", CONTROL)


def set_dns_age(seconds: float) -> None:
    """Set the maximum age of DNS answers from now on."""
    path = STATE / "dns-seconds"
    path.with_suffix(".new").write_text(str(seconds))
    path.with_suffix(".new").rename(path)


def kubectl_words(*words: object) -> list[str]:
    own = (HYPER, "kubectl", "--kubeconfig", PKI / "admin.kubeconfig")
    return Node(0).network(*own, *words)


def kubectl(*words: object, stdin: str | bytes | None = None, seconds: float = 300) -> str:
    """Call kubectl as an administrator and return its output."""
    return run(*kubectl_words(*words), stdin=stdin, seconds=seconds)


def objects(kind: str, namespace: str, *words: object) -> list[Any]:
    found: list[Any] = json.loads(kubectl("-n", namespace, "get", kind, "-o", "json", *words))[
        "items"
    ]
    return found


def api_answers() -> Iterator[bool]:
    while True:
        with suppress(Failed):
            kubectl("get", "--raw", "/readyz", seconds=10)
            yield True
        yield False


def ready_nodes() -> int:
    try:
        return kubectl("get", "nodes", "--no-headers").count(" Ready ")
    except Failed:
        return 0


def give(references: Iterable[str], clock: Clock, nodes: Sequence[Node] = ()) -> None:
    """Import images into nodes, as one archive: layers that images share are in it once.

    Args:
        references: names with tags.
        clock: prints the duration.
        nodes: default: all.
    """
    names = list(references)
    nodes = nodes or existing_nodes()
    # In memory and not compressed: compression would last minutes.
    folder = Path(f"/dev/shm/rockoon-k8s-images-{os.getpid()}")
    archive = folder.with_suffix(".tar")
    try:
        for each in names:
            buildah("push", "-q", "--disable-compression", each, f"oci:{folder}:{each}")
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, "")
        shutil.rmtree(folder)
        imports = [
            subprocess.Popen(
                node.inside("ctr", "-a", node.socket, "-n", "k8s.io", "images", "import", archive),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            for node in nodes
        ]
        statuses = [each.wait() for each in imports]
        if any(statuses):
            raise Failed(f"a node did not import {', '.join(names)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        archive.unlink(missing_ok=True)
    clock.step(f"{len(names)} images in {len(nodes)} nodes")
