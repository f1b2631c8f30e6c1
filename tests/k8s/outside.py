"""Clients outside of the cluster: load balancers, port-forward, an official client."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import yaml

from bench.compare.programs import NotHere
from conformance.languages import python
from k8s.cluster import kubectl, kubectl_words, objects
from k8s.deployment import Deployment
from k8s.node import OUTSIDE, Namespaces, Node
from k8s.operations import BROKER
from k8s.shell import HERE, Failed, run, wait_for

DOMAIN = "rockoon.example.com"
OVERLAY = "outside"
GATEWAY_PORT = 8081
FORWARD_PORT = 18081
BALANCER_SECONDS = 30.0
MESSAGES = 100


def open_to_outside(deployment: Deployment) -> str:
    """Add load balancers to the dev overlay, and give the machine outside their names."""
    overlays = deployment.copy_manifests()
    own = overlays / OVERLAY
    own.mkdir()
    # Steps before may have added brokers.
    brokers = deployment.kubectl("get", BROKER, "-o", "jsonpath={.spec.replicas}")
    domain = f"- {{op: replace, path: /data/domain, value: {DOMAIN}}}"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": deployment.namespace,
        "resources": ["../dev"],
        "components": [
            "../../components/external-access",
            "../../components/external-gateway",
            "../../components/gateway-scaler",
        ],
        "replicas": [{"name": "rockoon-broker", "count": int(brokers)}],
        "patches": [{"target": {"kind": "ConfigMap", "name": "rockoon-external"}, "patch": domain}],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(kustomization, sort_keys=False))
    kubectl("apply", "-k", own)
    deployment.roll_out()
    wait_for("load balancers have addresses", has_addresses(deployment), BALANCER_SECONDS, 0.5)
    lines = [f"{address} {name}" for name, address in external_names(deployment).items()]
    script = "cat > /etc/hosts"
    hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])
    run(*Namespaces(OUTSIDE).inside("sh", "-c", script), stdin=hosts)
    return ""


def balancers(deployment: Deployment) -> dict[str, str]:
    """Return the address of each Service of type LoadBalancer; empty: none yet."""
    found: dict[str, str] = {}
    for service in objects("services", deployment.namespace):
        if service["spec"].get("type") == "LoadBalancer":
            ingress: list[Any] = service["status"].get("loadBalancer", {}).get("ingress") or [{}]
            found[service["metadata"]["name"]] = ingress[0].get("ip", "")
    return found


def has_addresses(deployment: Deployment) -> Iterator[bool]:
    while True:
        yield all(balancers(deployment).values())


def external_names(deployment: Deployment) -> dict[str, str]:
    """Return the address of each name below the domain, as its DNS records would have them."""
    names = {}
    for service, address in balancers(deployment).items():
        is_node = service.startswith(("rockoon-broker-", "rockoon-offset-"))
        name = service if is_node else service.removeprefix("rockoon-")
        names[f"{name.removesuffix('-external')}.{DOMAIN}"] = address
    return names


def sdk_outside(_: Deployment) -> str:
    """Send and read with the SDK through the external listener of the nameservers."""
    words = (HERE / "inside" / "outsider.py", f"nameserver.{DOMAIN}:9876", "outside", MESSAGES)
    run(*Namespaces(OUTSIDE).inside(sys.executable, *words), seconds=120)
    return f"{MESSAGES} messages sent and read"


def official_client_outside(deployment: Deployment) -> str:
    """Send and receive with RocketMQ's Python client through the gateway's load balancer."""
    address = balancers(deployment).get("rockoon-gateway-external", "")
    outside = Namespaces(OUTSIDE)
    return official_client(deployment, outside, f"{address}:{GATEWAY_PORT}", "balancer")


def official_client_forwarded(deployment: Deployment) -> str:
    """Send and receive with RocketMQ's Python client through `kubectl port-forward`."""
    service = ("port-forward", "service/rockoon-gateway", f"{FORWARD_PORT}:{GATEWAY_PORT}")
    words = kubectl_words("-n", deployment.namespace, *service)
    forward = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert forward.stdout is not None
        if b"Forwarding" not in forward.stdout.readline():
            raise Failed("kubectl port-forward did not start")
        return official_client(deployment, Node(0), f"127.0.0.1:{FORWARD_PORT}", "forwarded")
    finally:
        forward.terminate()
        forward.wait()


def official_client(deployment: Deployment, where: Namespaces, endpoint: str, topic: str) -> str:
    try:
        client = python()
    except NotHere as reason:
        return f"not tried: {reason}"
    deployment.exec("rockoon", "topic", "create", topic, "--if-absent")
    program = client.command[0]
    script = HERE / "inside" / "official_client.py"
    began = time.monotonic()
    run(*where.network(program, script, endpoint, topic, f"group-{topic}"), seconds=120)
    return f"rocketmq-python-client {client.version}, {time.monotonic() - began:.1f} s"
