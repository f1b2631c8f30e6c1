"""KEDA's external scaler: a test client in a pod with the label of KEDA's operator scales a
Deployment of consumers from none to several and back to none, as KEDA would."""

import json
import math
from collections.abc import Iterator
from typing import Any

import yaml

from k8s.deployment import EXAMPLES, Deployment
from k8s.shell import HERE, wait_for

OPERATOR = "keda"
GROUP = "billing"
TOPIC = "scaled"
ADDRESS = "rockoon-gateway:8082"
THRESHOLD = 20
MESSAGES = 100
REPLICAS_MAX = 5
SCALED_SECONDS = 90.0


def scale_consumers(deployment: Deployment) -> str:
    """Scale consumers with the answers of the scaler; return the highest number of replicas."""
    create_pods(deployment)
    create = f"rockoon topic create {TOPIC} --if-absent; "
    lines = f"seq {MESSAGES + 1} | rockoon produce {TOPIC}; "
    # The group exists once it has read a message.
    first = f"rockoon consume {TOPIC} --group {GROUP} --from first --max-messages 1"
    deployment.exec("sh", "-c", create + lines + first)
    seen = [0]
    wait_for("the scaler asks for consumers", scaled(deployment, seen, 1), SCALED_SECONDS, 1)
    wait_for("the scaler asks for none", scaled(deployment, seen, 0), SCALED_SECONDS, 1)
    return f"replicas 0, {', '.join(map(str, sorted(set(seen) - {0}, reverse=True)))}, 0"


def scaled(deployment: Deployment, seen: list[int], wanted: int) -> Iterator[bool]:
    """Set the number of replicas that KEDA would choose, again and again; true once it is 0 or
    positive, as wanted."""
    while True:
        answer = ask(deployment)
        count = 0
        if answer["active"]:
            count = max(1, min(REPLICAS_MAX, math.ceil(answer["value"] / answer["target"])))
        if count != seen[-1]:
            deployment.kubectl("scale", "deployment/consumer", f"--replicas={count}")
            seen.append(count)
        yield bool(count) == bool(wanted)


def ask(deployment: Deployment) -> Any:
    words = ("/tmp/keda.py", ADDRESS, GROUP, TOPIC, THRESHOLD)
    return json.loads(deployment.exec("python", *words, pod=OPERATOR))


def create_pods(deployment: Deployment) -> None:
    """Create the pod that acts as KEDA's operator, and the Deployment of consumers."""
    pod: Any = yaml.safe_load((EXAMPLES / "client.yaml").read_text())
    operator = pod | {"metadata": {"name": OPERATOR, "labels": {"app": "keda-operator"}}}
    deployment.kubectl("apply", "-f", "-", stdin=json.dumps(operator))
    labels = {"app": "consumer", "rockoon-client": "true"}
    container = pod["spec"]["containers"][0]
    words = ["consume", TOPIC, "--group", GROUP, "--follow"]
    container |= {"command": ["rockoon", *words], "name": "consumer"}
    consumer = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "consumer"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "consumer"}},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }
    deployment.kubectl("apply", "-f", "-", stdin=json.dumps(consumer))
    deployment.kubectl("wait", "--for=condition=Ready", f"pod/{OPERATOR}", "--timeout=60s")
    deployment.put((HERE / "inside" / "keda.py").read_text(), "/tmp/keda.py", pod=OPERATOR)
