"""The Jobs of spark-jobs and of the load test in the production cluster, each until its end."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from deploy.page_runs import Ran
from pyarrow import compute, dataset

from k8s import documents, images
from k8s import operations as do
from k8s.cluster import give, objects
from k8s.deployment import CHECKER, Deployment
from k8s.node import Node
from k8s.shell import STATE, Clock, Failed, wait_for

SPARK, LOAD_TEST = "spark", "load-test"
TOPIC = "compacted"
LOG = "rockoon-broker"
KEYS = 50
VERSIONS = 4
JOB_SECONDS = 300.0
COPIED_SECONDS = 60.0
# Wide terminals or narrow ones: the summary may have line breaks.
CHECKED = (
    r"checked: ([\d,]+) acknowledged of ([\d,]+) sent, ([\d,]+) stored, ([\d,]+) of them copies; "
    r"given to groups ([\d,]+), ([\d,]+) again"
)


def give_spark(deployment: Deployment) -> str:
    """Import the image of Spark into the checker's node: on each node it would need minutes and
    three times the space."""
    name = deployment.node_of(CHECKER)
    give([images.reference(SPARK)], Clock(), [Node(int(name.removeprefix("node")))])
    return ""


def compaction(deployment: Deployment) -> str:
    """Run the CronJob for compaction, and read the topic at the leader and at its successor.

    Raises:
        Failed: the Job failed, or a broker serves other messages than the newest of each key.
    """
    attribute = ("--attribute", "cleanup.policy=COMPACTION")
    deployment.exec("rockoon", "topic", "create", TOPIC, "--queues", 2, *attribute)
    lines = [
        json.dumps({"id": f"key-{key}", "version": version})
        for version in range(VERSIONS)
        for key in range(KEYS)
    ]
    produce = ("exec", "-i", CHECKER, "--", "rockoon", "produce", TOPIC, "--key-field", "id")
    deployment.kubectl(*produce, stdin="\n".join(lines))
    if len(read(deployment)) != KEYS * VERSIONS:
        raise Failed(f"{TOPIC} has {len(read(deployment))} messages before the compaction")
    last = run_job(deployment, "rockoon-compact")
    if not is_compacted(read(deployment)):
        raise Failed(f"the leader serves {read(deployment)[:200]} after the compaction:\n{last}")
    do.delete_leader(deployment, LOG, force=True)
    deployment.roll_out()
    served = (is_compacted(read(deployment)) for _ in iter(int, 1))
    wait_for("the next leader serves the compacted topic", served, COPIED_SECONDS, 0.5)
    return f"{KEYS * VERSIONS} messages of {KEYS} keys, {KEYS} served, also by the next leader"


def read(deployment: Deployment) -> list[Any]:
    """Return the messages of the topic as a client gets them."""
    output = deployment.exec("rockoon", "consume", TOPIC, "--from", "first")
    return [json.loads(line) for line in output.splitlines()]


def is_compacted(messages: list[Any]) -> bool:
    newest = {f"key-{key}": VERSIONS - 1 for key in range(KEYS)}
    return sorted((each["id"], each["version"]) for each in messages) == sorted(newest.items())


def export(deployment: Deployment) -> str:
    """Run the CronJob for the export, and compare its files with the messages.

    Raises:
        Failed: the Job failed, or a message is missing or twice in the files.
    """
    run_job(deployment, "rockoon-export")
    uid = deployment.kubectl("get", "pvc", "rockoon-export", "-o", "jsonpath={.metadata.uid}")
    files = dataset.dataset(STATE / "disks" / f"pvc-{uid}" / "messages", partitioning="hive")
    own = files.to_table(columns=["body"], filter=compute.field("topic") == TOPIC)
    versions = [json.loads(body) for body in own["body"].to_pylist()]
    found = sorted((each["id"], each["version"]) for each in versions)
    if found != sorted((f"key-{k}", v) for k in range(KEYS) for v in range(VERSIONS)):
        raise Failed(f"the export has {len(found)} messages of {TOPIC}: {found[:20]}")
    return f"{files.count_rows():,} messages as Parquet"


def load_test(_: Deployment) -> str:
    """Run the commands of load-tests.md, and check the sum in the last line of the master's log.

    Raises:
        Failed: a command failed, or the numbers do not add up.
    """
    return checked(documents.run_blocks("load-tests"))


def checked(ran: list[Ran]) -> str:
    output = " ".join(" ".join(each.output for each in ran).split())
    found = re.search(CHECKED, output)
    if found is None or "FAULT" in output or "FAILED" in output:
        raise Failed(f"the load test did not end with a sum:\n{output[-2000:]}")
    numbers = [int(each.replace(",", "")) for each in found.groups()]
    acknowledged, sent, stored, copies, _given, _again = numbers
    if not 0 < acknowledged <= stored - copies <= sent:
        raise Failed(f"the last line does not add up: {found[0]}")
    return found[0]


def run_job(deployment: Deployment, name: str) -> str:
    """Create a Job from a CronJob on the node with its image, wait until it has succeeded, and
    return its log.

    Raises:
        Failed: the Job failed, or did not end in time; the text has its log.
    """
    job = f"{name}-now"

    def attempts() -> Iterator[bool]:
        while True:
            (found,) = (
                each
                for each in objects("jobs", deployment.namespace)
                if each["metadata"]["name"] == job
            )
            status = found["status"]
            if status.get("failed"):
                raise Failed(f"{job} failed:\n{log_of(deployment, job)}")
            yield bool(status.get("succeeded"))

    words = ("create", "job", job, f"--from=cronjob/{name}", "--dry-run=client", "-o", "json")
    made: Any = json.loads(deployment.kubectl(*words))
    node = {"kubernetes.io/hostname": deployment.node_of(CHECKER)}
    made["spec"]["template"]["spec"]["nodeSelector"] = node
    deployment.kubectl("create", "-f", "-", stdin=json.dumps(made))
    wait_for(f"{job} succeeds", attempts(), JOB_SECONDS, 0.5)
    return log_of(deployment, job)


def log_of(deployment: Deployment, job: str) -> str:
    return deployment.kubectl("logs", f"job/{job}", "--tail=50")


STEPS: dict[str, Callable[[Deployment], str]] = {
    "Spark's image in one node": give_spark,
    "compaction by rockoon-compact": compaction,
    "export by rockoon-export": export,
    "commands of load-tests.md": load_test,
}
