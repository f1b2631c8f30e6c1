"""Clients outside of the cluster: load balancers, port-forward, an official client."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.compare.programs import NotHere
from conformance.languages import python
from k8s.cluster import kubectl, kubectl_words, objects
from k8s.deployment import Deployment
from k8s.node import OUTSIDE, Namespaces, Node
from k8s.operations import BROKER, delete_leader
from k8s.shell import HERE, Failed, run, wait_for

DOMAIN = "rockoon.example.com"
# Of external-access.md.
PAGE_DOMAIN = "rockoon.your.domain"
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
    write_names(deployment, DOMAIN)
    return ""


def write_names(deployment: Deployment, domain: str) -> None:
    """Give the machine outside the names of all load balancers."""
    wait_for("load balancers have addresses", has_addresses(deployment), BALANCER_SECONDS, 0.5)
    names = external_names(deployment, domain)
    lines = [f"{address} {name}" for name, address in names.items()]
    hosts = "\n".join(["127.0.0.1 localhost", *lines, ""])
    run(*Namespaces(OUTSIDE).inside("sh", "-c", "cat > /etc/hosts"), stdin=hosts)


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


def external_names(deployment: Deployment, domain: str) -> dict[str, str]:
    """Return the address of each name below the domain, as its DNS records would have them."""
    names = {}
    for service, address in balancers(deployment).items():
        is_node = service.startswith(("rockoon-broker-", "rockoon-offset-"))
        name = service if is_node else service.removeprefix("rockoon-")
        names[f"{name.removesuffix('-external')}.{domain}"] = address
    return names


def sdk_outside(_: Deployment) -> str:
    """Send and read with the SDK through the external listener of the nameservers."""
    send_and_read(DOMAIN, "outside")
    return f"{MESSAGES} messages sent and read"


def send_and_read(domain: str, topic: str, **environment: str) -> None:
    words = (HERE / "inside" / "outsider.py", f"nameserver.{domain}:9876", topic, MESSAGES)
    command = Namespaces(OUTSIDE).inside(sys.executable, *words)
    run(*command, seconds=120, stdin=None, folder=None, **environment)


def sdk_outside_with_copies(deployment: Deployment) -> str:
    """Send and read with TLS and an access key, after external-access.md, and again immediately
    after the leader of the brokers' log was deleted by force."""
    write_names(deployment, PAGE_DOMAIN)
    folder = deployment.folder / "outside"
    tls = secret_files(deployment, "rockoon-client-tls", folder)
    access = secret_files(deployment, "rockoon-access-client", folder)
    environment = {
        "ROCKOON_TLS_CA": str(tls["ca.crt"]),
        "ROCKOON_TLS_CERTIFICATE": str(tls["tls.crt"]),
        "ROCKOON_TLS_KEY": str(tls["tls.key"]),
        "ROCKOON_ACCESS_KEY": access["key"].read_text(),
        "ROCKOON_ACCESS_SECRET_FILE": str(access["secret"]),
    }
    send_and_read(PAGE_DOMAIN, "outside-first", **environment)
    delete_leader(deployment, "rockoon-broker", force=True)
    send_and_read(PAGE_DOMAIN, "outside-next", **environment)
    deployment.roll_out()
    return f"{MESSAGES} messages sent and read, and {MESSAGES} by way of the next leader"


def secret_files(deployment: Deployment, name: str, folder: Path) -> dict[str, Path]:
    """Write the values of a Secret to files, and return them by key."""
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads(deployment.kubectl("get", "secret", name, "-o", "json"))["data"]
    files = {key: folder / key for key in found}
    for key, path in files.items():
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(found[key]))
    return files


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
