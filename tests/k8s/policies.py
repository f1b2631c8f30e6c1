"""NetworkPolicies: enforced on each node, and checked from pods with and without labels."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from k8s.deployment import CHECKER, EXAMPLES, Deployment
from k8s.node import existing_nodes
from k8s.shell import Failed, wait_for

ENFORCED_SECONDS = 60.0
STRANGER = "stranger"
# Port of each service that a client may call, and of each that it may not.
OPEN = ("rockoon-nameserver:9876", "rockoon-broker-0.rockoon-broker:10911", "rockoon-offset:10912")
CLOSED = ("etcd:2379", "rockoon-broker-0.rockoon-broker:9464")
SCRIPT = """
import socket, sys
for address in sys.argv[1:]:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
        print(address, "open")
    except OSError:
        print(address, "closed")
"""


@contextmanager
def enforced() -> Iterator[None]:
    """Enforce NetworkPolicies on all nodes for this time."""
    for node in existing_nodes():
        node.start_netpol()
    try:
        yield
    finally:
        for node in existing_nodes():
            node.stop_netpol()


def check(deployment: Deployment) -> str:
    """Compare the ports that pods reach with the manifests.

    Raises:
        Failed: a connection is possible that must not be, or the reverse.
    """
    create_stranger(deployment)
    wait_for("NetworkPolicies are enforced", blocked(deployment), ENFORCED_SECONDS, 1)
    reached = reachable(deployment, CHECKER, (*OPEN, *CLOSED))
    if reached != set(OPEN):
        raise Failed(f"a client reaches {sorted(reached)} instead of {sorted(OPEN)}")
    reached = reachable(deployment, STRANGER, (*OPEN, *CLOSED))
    if reached:
        raise Failed(f"a pod without label reaches {sorted(reached)}")
    deployment.kubectl("delete", "pod", STRANGER, "--wait=false")
    return f"a client reaches {', '.join(OPEN)}; a pod without label reaches none"


def blocked(deployment: Deployment) -> Iterator[bool]:
    while True:
        yield not reachable(deployment, STRANGER, OPEN[:1])


def reachable(deployment: Deployment, pod: str, addresses: tuple[str, ...]) -> set[str]:
    """Return those addresses that accept a connection from a pod."""
    lines = deployment.exec("python", "-c", SCRIPT, *addresses, pod=pod).splitlines()
    return {line.removesuffix(" open") for line in lines if line.endswith(" open")}


def create_stranger(deployment: Deployment) -> None:
    """Create a pod without the label of clients."""
    pod: Any = yaml.safe_load((EXAMPLES / "client.yaml").read_text())
    pod["metadata"] = {"name": STRANGER}
    deployment.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    deployment.kubectl("wait", "--for=condition=Ready", f"pod/{STRANGER}", "--timeout=60s")
