"""Actions of operators, and failures of pods, nodes and disks."""

import json
from collections.abc import Iterator, Set
from typing import Any

from k8s.cluster import kubectl, objects, ready_nodes
from k8s.deployment import CHECKER, SERVICES, Deployment
from k8s.node import Node, existing_nodes
from k8s.shell import Failed, wait_for

BROKER = "statefulset/rockoon-broker"
OFFSET = "statefulset/rockoon-offset"
NAMESERVER = "deployment/rockoon-nameserver"
GATEWAY = "deployment/rockoon-gateway"
POD_SECONDS = 120.0
IMAGES = {"nameserver": NAMESERVER, "broker": BROKER, "offset": OFFSET, "gateway": GATEWAY}


def restart(deployment: Deployment, *workloads: str) -> None:
    """Restart workloads at the same time; each replaces its pods one after the other."""
    deployment.kubectl("rollout", "restart", *workloads)


def restart_all(deployment: Deployment) -> None:
    restart(deployment, *SERVICES)


def delete_pod(deployment: Deployment, pod: str, force: bool = False) -> None:
    """Delete a pod and wait until its successor exists."""
    former = {uid for _, uid in pods_of(deployment, pod)}
    options = ("--grace-period=0", "--force") if force else ()
    deployment.kubectl("delete", "pod", pod, "--wait=false", *options)
    wait_for(f"a new {pod}", pod_replaced(deployment, pod, former), POD_SECONDS)


def pod_replaced(deployment: Deployment, pod: str, former: Set[str]) -> Iterator[bool]:
    while True:
        yield any(uid not in former for _, uid in pods_of(deployment, pod))


def pods_of(deployment: Deployment, pod: str) -> list[tuple[str, str]]:
    """Return names and uids of the Deployment's pods, or of the one pod of a StatefulSet."""
    prefix = pod if pod.endswith(("-0", "-1", "-2")) else short(pod)
    pods = objects("pods", deployment.namespace)
    found = [(each["metadata"]["name"], each["metadata"]["uid"]) for each in pods]
    return [each for each in found if each[0].startswith(prefix)]


def short(pod: str) -> str:
    """Return the name of a pod without the parts that differ between runs."""
    words = pod.split("-")
    return "-".join(words[:3] if words[1] in ("broker", "offset") else words[:2])


def delete_leader(deployment: Deployment, log: str, force: bool = False) -> None:
    delete_pod(deployment, deployment.leader(log), force)


def drain(deployment: Deployment, node: str) -> None:
    """Evict the pods of a node, wait until they run elsewhere or wait for a node, and allow pods
    again."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
    kubectl("drain", node, *options, seconds=170)
    kubectl("uncordon", node)


def node_to_drain(deployment: Deployment) -> str:
    """Return a node without the client's pod, if possible the one of the log's leader."""
    client = deployment.node_of(CHECKER)
    if deployment.copies:
        leading = deployment.node_of(deployment.leader("rockoon-broker"))
        if leading != client:
            return leading
    return next(each.name for each in reversed(existing_nodes()) if each.name != client)


def replace_node(deployment: Deployment, name: str) -> None:
    """Drain a node, delete it with the disks of its replicas, and add it again with empty disks."""
    here = [
        each["metadata"]["name"]
        for each in objects("pods", deployment.namespace)
        if each["spec"].get("nodeName") == name
    ]
    replicas = [pod for pod in here if pod.startswith(("rockoon-broker-", "rockoon-offset-"))]
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
    kubectl("drain", name, *options, seconds=170)
    kubectl("delete", "node", name)
    node = Node(int(name.removeprefix("node")))
    node.stop(f"kubelet{node.number}")
    for pod in replicas:
        replace_disk(deployment, pod)
    node.start_kubelet()
    count = len(existing_nodes())
    wait_for("the node is back", (ready_nodes() >= count for _ in iter(int, 1)), POD_SECONDS)


def replace_disk(deployment: Deployment, pod: str) -> None:
    """Delete a pod by force together with its disk; the StatefulSet creates both again."""
    claim = f"data-{pod}"
    uid = "jsonpath={.metadata.uid}"
    former = deployment.kubectl("get", "pvc", claim, "-o", uid)
    deployment.kubectl("delete", "pvc", claim, "--wait=false")
    deployment.kubectl(
        "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false", "--ignore-not-found"
    )

    def attempts() -> Iterator[bool]:
        while True:
            found = deployment.kubectl("get", "pvc", claim, "--ignore-not-found", "-o", uid)
            if found not in ("", former):
                yield True
            # A pod that was created before the claim had gone waits for the old claim.
            phase = "jsonpath={.status.phase}"
            words = ("get", "pod", pod, "--ignore-not-found", "-o", phase)
            if not found and deployment.kubectl(*words) == "Pending":
                deployment.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")
            yield False

    wait_for(f"a new claim {claim}", attempts(), POD_SECONDS, 0.5)


def scale_brokers(deployment: Deployment, topic: str) -> None:
    """Add a third broker, expand a topic to it, remove the broker, add it again with its disk."""
    for count in (3, 2, 3):
        deployment.kubectl("scale", BROKER, f"--replicas={count}")
        deployment.kubectl("rollout", "status", BROKER, "--timeout=120s")
        if count == 2:
            deployment.kubectl("wait", "--for=delete", "pod/rockoon-broker-2", "--timeout=120s")
        else:
            wait_for("the third broker is in the routes", broker_listed(deployment), POD_SECONDS)
            words = ("topic", "expand", topic, "--add", "rockoon-broker-2=2")
            deployment.exec("rockoon", *words)


def broker_listed(deployment: Deployment) -> Iterator[bool]:
    while True:
        # While a broker is away, `rockoon status` ends with status 1.
        status: Any = json.loads(deployment.exec("sh", "-c", "rockoon status --json || true"))
        yield any(each["name"] == "rockoon-broker-2" and each["up"] for each in status["brokers"])


def change_settings(deployment: Deployment) -> None:
    """Change a setting of the brokers in their ConfigMap, and restart them."""
    found: Any = json.loads(deployment.kubectl("get", BROKER, "-o", "json"))
    volumes = found["spec"]["template"]["spec"]["volumes"]
    name = next(v["configMap"]["name"] for v in volumes if v["name"] == "settings")
    config: Any = json.loads(deployment.kubectl("get", "configmap", name, "-o", "json"))
    text: str = config["data"]["broker.toml"]
    setting = "drain_seconds_max"
    lines = [line for line in text.splitlines() if not line.startswith(setting)]
    seconds = 9 if f"{setting} = 8" in text else 8
    patch = {"data": {"broker.toml": "\n".join([f"{setting} = {seconds}", *lines, ""])}}
    deployment.kubectl("patch", "configmap", name, "--type=merge", "-p", json.dumps(patch))
    restart(deployment, BROKER)


def is_service(pod: str) -> bool:
    return pod.startswith(tuple(f"rockoon-{name}-" for name in IMAGES))


def set_images(deployment: Deployment, tag: str) -> None:
    """Change the images of all services."""
    for name, workload in IMAGES.items():
        deployment.kubectl("set", "image", workload, f"*=docker.io/rockoon/{name}:{tag}")


def first_message(deployment: Deployment, seconds: float) -> None:
    """Create a topic and send a message to it, again and again until both succeed."""
    script = "rockoon topic create first --if-absent && echo hello | rockoon produce first"

    def attempts() -> Iterator[bool]:
        while True:
            try:
                deployment.exec("sh", "-c", script, seconds=30)
            except Failed:
                yield False
            else:
                yield True

    wait_for("a first message is acknowledged", attempts(), seconds, 0.1)
