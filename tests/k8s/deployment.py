"""Rockoon on the test cluster: the dev overlay, and production with copies, TLS and access keys."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from k8s.cluster import kubectl, kubectl_words, objects
from k8s.shell import ROOT, STATE, Failed, run, wait_for

DEV = "rockoon-dev"
PRODUCTION = "rockoon"
READY_SECONDS = 180.0
DELETED_SECONDS = 120.0
CHECKER, CLIENT = "checker", "client"
# With the 50 m of the example pod, the checker would wait for processors while pods start.
CHECKER_CPU = "500m"
ADMIN = "rockoon-admin"
EXAMPLES = ROOT / "deploy" / "kubernetes" / "examples"
SECRETS_SECONDS = 400.0
SERVICES = (
    "deployment/rockoon-nameserver",
    "statefulset/rockoon-broker",
    "statefulset/rockoon-offset",
    "deployment/rockoon-gateway",
)


@dataclass
class Deployment:
    """A cluster of Rockoon in its namespace."""

    namespace: str
    etcd: str
    """Workload of etcd."""
    lone: str
    """Broker or log that has the only queue of the checker's topic `lone`."""
    copies: bool
    folder: Path = field(default_factory=lambda: STATE / "manifests")
    """Manifests, keys and certificates; not in the repository."""
    has_checker: bool = False

    @property
    def workloads(self) -> Sequence[str]:
        return (*SERVICES, self.etcd)

    def kubectl(
        self, *words: object, stdin: str | bytes | None = None, seconds: float = 300
    ) -> str:
        return kubectl("-n", self.namespace, *words, stdin=stdin, seconds=seconds)

    def exec(self, *words: object, pod: str = CHECKER, seconds: float = 120) -> str:
        return self.kubectl("exec", pod, "--", *words, seconds=seconds)

    def put(self, content: str | bytes, path: str, pod: str = CHECKER) -> None:
        """Write a file in a pod."""
        script = f"cat > {path}.new && mv {path}.new {path}"
        self.kubectl("exec", "-i", pod, "--", "sh", "-c", script, stdin=content)

    def copy_manifests(self) -> Path:
        """Copy deploy/ and return its overlays: the harness adds overlays there."""
        target = self.folder / "deploy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(ROOT / "deploy", target)
        return target / "kubernetes" / "overlays"

    def roll_out(self, seconds: float = READY_SECONDS) -> None:
        """Wait until all workloads have their new pods, and `rockoon status` reports no problem.

        Raises:
            Failed: something is not ready in time.
        """
        deadline = time.monotonic() + seconds
        while incomplete := self._incomplete():
            if time.monotonic() > deadline:
                raise Failed(f"{', '.join(incomplete)}: not complete after {seconds:.0f} s")
            for workload in incomplete:
                left = max(1.0, deadline - time.monotonic())
                words = ("rollout", "status", workload, f"--timeout={left:.0f}s")
                self.kubectl(*words, seconds=left + 10)
        if self.has_checker:
            left = max(10.0, deadline - time.monotonic())
            wait_for("`rockoon status` is healthy", self._status_attempts(), left, 0.5)

    def _incomplete(self) -> list[str]:
        """Return the workloads that wait for pods."""
        found: Any = json.loads(self.kubectl("get", *self.workloads, "-o", "json"))["items"]
        return [
            f"{each['kind'].lower()}/{each['metadata']['name']}"
            for each in found
            if not is_complete(each)
        ]

    def _status_attempts(self) -> Iterator[bool]:
        while True:
            try:
                first = self.exec("rockoon", "status", seconds=30).partition("\n")[0]
            except Failed:
                yield False
            else:
                yield first.endswith(": healthy") or ": healthy" in first

    def create_checker(self, cpu: str | None = CHECKER_CPU) -> None:
        """Create the pod of the checker, an example pod of a client, and wait until it runs.

        Args:
            cpu: its request; None: that of the example.
        """
        pod: Any = yaml.safe_load(self._example.read_text())
        pod["metadata"]["name"] = CHECKER
        if cpu:
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
        # A node with the client of deploy.md, which no workload creates again, cannot be drained.
        self.kubectl("delete", "pod", CLIENT, CHECKER, "--ignore-not-found")
        self.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{CHECKER}", "--timeout=60s")
        self.has_checker = True

    def create_client(self) -> None:
        """Create the client of deploy.md again."""
        self.kubectl("apply", "-f", self._example)
        self.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=60s")

    @property
    def _example(self) -> Path:
        return EXAMPLES / ("client-production.yaml" if self.copies else "client.yaml")

    def pods(self, prefix: str = "") -> list[str]:
        names = (each["metadata"]["name"] for each in objects("pods", self.namespace))
        return sorted(name for name in names if name.startswith(prefix))

    def node_of(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")

    def leader(self, log: str) -> str:
        """Return the pod that leads a log.

        Raises:
            Failed: the log has no leader.
        """
        for line in self.exec("rockoon", "log", "describe", log).splitlines():
            words = line.split()
            if "leader" in line:
                found = [word for word in words if word.startswith("rockoon-")]
                if found:
                    return found[0].rstrip(",")
        raise Failed(f"log {log} has no leader")

    def delete(self) -> None:
        """Delete the namespace with all its disks, and production's PriorityClass."""
        kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")
        if self.copies:
            kubectl("delete", "priorityclass", PRODUCTION, "--ignore-not-found")

        def attempts() -> Iterator[bool]:
            while True:
                yield not kubectl("get", "namespace", self.namespace, "--ignore-not-found").strip()

        wait_for(f"namespace {self.namespace} is deleted", attempts(), DELETED_SECONDS, 1)


def is_complete(workload: Any) -> bool:
    """Return whether all pods of a Deployment or StatefulSet are new and ready."""
    wanted, status = workload["spec"]["replicas"], workload["status"]
    counts = ("replicas", "updatedReplicas", "readyReplicas")
    is_observed = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    return is_observed and all(status.get(each, 0) == wanted for each in counts)


def dev() -> Deployment:
    return Deployment(DEV, "statefulset/rockoon-etcd", "rockoon-broker-0", copies=False)


def production() -> Deployment:
    return Deployment(PRODUCTION, "statefulset/etcd", "rockoon-broker", copies=True)


def administer(deployment: Deployment, *words: str) -> None:
    """Run the script for Secrets with the pod of an administrator, which exists for this time."""
    deployment.kubectl("apply", "-f", EXAMPLES / "admin.yaml")
    deployment.kubectl("wait", "--for=condition=Ready", f"pod/{ADMIN}", "--timeout=120s")
    try:
        make_secrets(*words)
    finally:
        deployment.kubectl("delete", "pod", ADMIN, "--wait=false")


def make_secrets(*words: str) -> str:
    """Run the script for the Secrets of the production overlay, and return its output."""
    script = ROOT / "deploy" / "kubernetes" / "make_secrets.py"
    own = shlex.join(kubectl_words())
    return run(sys.executable, script, *words, seconds=SECRETS_SECONDS, KUBECTL=own)
