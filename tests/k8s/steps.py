"""The steps of a run, in their order."""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from k8s import documents, images, jobs, outside, policies, scaler
from k8s import operations as do
from k8s.cluster import kubectl, set_dns_age
from k8s.deployment import (
    CHECKER,
    Deployment,
    administer,
    dev,
    make_secrets,
    production,
)
from k8s.shell import Failed
from k8s.stage import NEWCOMER_SECONDS_MAX, Report, Row, Stage

FIRST_SECONDS = 120.0
# Access key of deploy.md.
KEY = "client"
QUIET_SECONDS = 5.0
DEFAULT_DNS = 5.0
# Kubelets measure pods every 10 to 15 s.
IDLE_SECONDS = 10.0
# From the end of the dev overlay's nameserver until its successor answers.
ONLY_NAMESERVER_SECONDS_MAX = 5.0


@dataclass(frozen=True)
class Options:
    """What a run does.

    Args:
        only: names of steps; empty: all.
        dns: ages of DNS answers for the restarts, in seconds.
        days: minutes of random operations; 0: the steps instead.
        seed: of random operations.
        former: tag of the images of a former commit; empty: none.
    """

    only: Sequence[str]
    dns: Sequence[float]
    days: float
    seed: int
    former: str = ""

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only


class Beside:
    """Runs parts without bounds for silences in a thread, while the main thread continues."""

    def __init__(self, options: Options, report: Report) -> None:
        self._options = options
        self._report = report
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._running: list[Future[None]] = []

    def attempt(self, part: Callable[..., None], *arguments: object) -> None:
        """Run a part now; the next parts are still tried if it fails."""
        try:
            part(self._options, self._report, *arguments)
        except Failed as failure:
            name = part.__name__
            self._report.add(Row(name, "ended early", None, 0.0, faults=(str(failure),)))

    def begin(self, part: Callable[..., None], *arguments: object) -> None:
        self._running.append(self._pool.submit(self.attempt, part, *arguments))

    def wait(self) -> None:
        """Wait until all parts have ended."""
        while self._running:
            self._running.pop().result()


def run_all(options: Options, report: Report) -> None:
    beside = Beside(options, report)
    try:
        for part in (run_dev, run_production):
            beside.attempt(part, beside)
    finally:
        beside.wait()
    beside.attempt(run_helm_production)


def run_dev(options: Options, report: Report, beside: Beside) -> None:
    """The dev overlay: one copy of each log, two brokers."""
    if not any(map(options.wants, ("dev", "outside", *DEV_STEPS))):
        return
    deployment = dev()
    try:
        start(deployment, "dev", documents.TRIAL, options, report)
        run_stage(Stage(deployment, "dev", report), options, DEV_STEPS)
    except BaseException:
        deployment.delete()
        raise
    beside.begin(end_dev, deployment)


def end_dev(options: Options, report: Report, deployment: Deployment) -> None:
    """Clients outside of the cluster; the removal of the dev overlay."""
    try:
        if options.wants("outside") and not options.days:
            for step, action in OUTSIDE_STEPS.items():
                report.measured("dev", step, partial(action, deployment))
        report.measured("dev", "end of the trial", documents.remove_trial)
    finally:
        deployment.delete()


def run_production(options: Options, report: Report, beside: Beside) -> None:
    """The production overlay with copies, offset-copies, TLS and access keys."""
    wanted = any(map(options.wants, ("production", "jobs", "pages", *PRODUCTION_STEPS)))
    deployment = production()
    try:
        if wanted:
            start(deployment, "production", documents.PRODUCTION, options, report)
        beside.wait()
        if wanted:
            run_stage(Stage(deployment, "production", report), options, PRODUCTION_STEPS)
            set_dns_age(DEFAULT_DNS)
        if wanted and not options.days:
            # Spark's jobs would not fit beside the request of the checker.
            deployment.create_checker(cpu=None)
            deployment.create_client()
            run_steps(deployment, "jobs", jobs.STEPS, options, report)
        if options.wants("helm") and not options.days:
            beside.begin(run_helm)
        if wanted and not options.days:
            run_steps(deployment, "pages", PAGE_STEPS, options, report)
    finally:
        deployment.delete()


def run_steps(
    deployment: Deployment,
    name: str,
    steps: Mapping[str, Callable[[Deployment], str]],
    options: Options,
    report: Report,
) -> None:
    """Run steps without load if they are chosen by this name."""
    if options.wants(name):
        for step, action in steps.items():
            report.measured("production", step, partial(action, deployment))


def run_helm(_: Options, report: Report) -> None:
    """The Helm chart with its default values."""
    deployment = dev()
    try:
        for step, action in HELM_STEPS.items():
            report.measured("helm", step, partial(action, deployment))
    finally:
        deployment.delete()


def run_helm_production(options: Options, report: Report) -> None:
    """The Helm chart with the values of the production overlay."""
    if options.days or not options.wants("helm"):
        return
    try:
        report.measured("helm", "other commands of helm.md", documents.run_helm_production)
    finally:
        production().delete()


def start(
    deployment: Deployment, name: str, section: str, options: Options, report: Report
) -> None:
    """Install Rockoon by the commands of deploy.md.

    Raises:
        Failed: a command failed.
    """
    began = time.monotonic()
    ran = documents.install(section)
    deployment.roll_out()
    seconds = time.monotonic() - began
    report.add(Row(name, "commands of deploy.md", None, seconds, note=f"{len(ran)} blocks"))
    applied = documents.applied_seconds(ran)
    report.add(Row(name, "apply until all pods are ready", None, applied))
    deployment.create_checker()
    report.measured(name, "first message", lambda: do.first_message(deployment, FIRST_SECONDS))
    if options.wants(name):
        report.measured(name, "idle pods", lambda: idle_pods(deployment))


def run_stage(
    stage: Stage, options: Options, steps: dict[str, Callable[[Stage, Options], None]]
) -> None:
    """Run the chosen steps under one load."""
    chosen = [step for name, step in steps.items() if options.wants(name)]
    if options.days:
        chosen = [random_days]
    if not chosen:
        return
    set_age(stage, DEFAULT_DNS)
    stage.load.start()
    for step in chosen:
        step(stage, options)
    stage.finish()


def set_age(stage: Stage, seconds: float) -> None:
    set_dns_age(seconds)
    stage.dns = seconds


def quiet(stage: Stage, _: Options) -> None:
    stage.step("nothing happens", lambda: time.sleep(QUIET_SECONDS))


def services(stage: Stage, _: Options) -> None:
    for workload in stage.deployment.workloads:
        name = workload.partition("/")[2]
        stage.step(f"restart {name}", partial(do.restart, stage.deployment, workload))


def restarts(stage: Stage, options: Options) -> None:
    """Restart everything at each age of DNS answers."""
    for age in options.dns:
        set_age(stage, age)
        stage.step("restart everything", lambda: do.restart_all(stage.deployment))
    set_age(stage, DEFAULT_DNS)


def kills(stage: Stage, options: Options) -> None:
    """Delete pods by force, in an order that the seed decides."""
    chooser = random.Random(options.seed)
    for age in options.dns:
        set_age(stage, age)
        pods = [pod for pod in stage.deployment.pods() if do.is_service(pod)]
        kill(stage, chooser.choice(pods))
    set_age(stage, DEFAULT_DNS)


def kill(stage: Stage, pod: str) -> None:
    # Newcomers and calls for routes wait until the only nameserver has a successor.
    is_only = pod.startswith("rockoon-nameserver") and not stage.deployment.copies
    limit = ONLY_NAMESERVER_SECONDS_MAX if is_only else None
    stage.step(
        f"kill {do.short(pod)}",
        lambda: do.delete_pod(stage.deployment, pod, force=True),
        bound=limit,
        newcomers=limit or NEWCOMER_SECONDS_MAX,
    )


def brokers(stage: Stage, _: Options) -> None:
    topic = f"plain-{stage.load.run}"
    stage.step(
        "brokers 2, 3, 2, 3, a topic expanded", lambda: do.scale_brokers(stage.deployment, topic)
    )


def settings(stage: Stage, _: Options) -> None:
    stage.step("a setting of brokers changed", lambda: do.change_settings(stage.deployment))


def etcd(stage: Stage, _: Options) -> None:
    pod = f"{stage.deployment.etcd.partition('/')[2]}-0"
    stage.step(
        f"kill {pod}",
        lambda: do.delete_pod(stage.deployment, pod, force=True),
    )


def leaders(stage: Stage, options: Options) -> None:
    """Delete the leaders of both logs, with and without time to transfer."""
    for log in ("rockoon-broker", "rockoon-offset"):
        for force in (False, True):
            word = "kill" if force else "delete"
            stage.step(
                f"{word} the leader of {log}",
                partial(do.delete_leader, stage.deployment, log, force),
            )


def drain(stage: Stage, _: Options) -> None:
    node = do.node_to_drain(stage.deployment)
    stage.step("drain a node", lambda: do.drain(stage.deployment, node))


def node(stage: Stage, _: Options) -> None:
    name = do.node_to_drain(stage.deployment)
    stage.step("replace a node and its disks", lambda: do.replace_node(stage.deployment, name))


def disk(stage: Stage, _: Options) -> None:
    pod = stage.deployment.leader("rockoon-broker")
    stage.step("the leader loses its disk", lambda: do.replace_disk(stage.deployment, pod))


def certificates(stage: Stage, _: Options) -> None:
    stage.step("renew all certificates", lambda: make_secrets("--rotate", "certificates"))


def access_key(stage: Stage, _: Options) -> None:
    words = ("--rotate", "key", KEY)
    stage.step("rotate an access key", lambda: administer(stage.deployment, *words))


def cluster_secret(stage: Stage, _: Options) -> None:
    stage.step("rotate the cluster secret", lambda: make_secrets("--rotate", "cluster"))


def upgrade(stage: Stage, options: Options) -> None:
    """Replace all services by those of a former commit, and back."""
    if not options.former:
        return
    for word, tag in (("back to a former commit", options.former), ("upgrade", images.TAG)):
        stage.step(word, partial(do.set_images, stage.deployment, tag))


def restart_with_policies(stage: Stage, _: Options) -> None:
    """Enforce NetworkPolicies, and restart everything.

    Newcomers are not judged: while kube-router replaces its rules after a change of pods, it
    rejects new connections.
    """
    with policies.enforced():
        stage.report.measured(
            stage.name, "NetworkPolicies", partial(policies.check, stage.deployment)
        )
        action = partial(do.restart_all, stage.deployment)
        stage.step("restart everything, NetworkPolicies", action, newcomers=None)


def random_days(stage: Stage, options: Options) -> None:
    """Run random operations, none twice in succession, until the time is over."""
    chooser = random.Random(options.seed)
    print(f"{stage.name}: random operations, SEED={options.seed}", flush=True)
    steps = PRODUCTION_DAYS if stage.deployment.copies else DEV_DAYS
    # Half of the time for each overlay.
    deadline = time.monotonic() + options.days * 30
    last = None
    while time.monotonic() < deadline:
        set_age(stage, chooser.choice(list(options.dns)))
        last = chooser.choice([each for each in steps if each is not last])
        last(stage, Options((), [stage.dns], 0, chooser.randrange(1 << 30)))


DEV_STEPS: dict[str, Callable[[Stage, Options], None]] = {
    "dev-quiet": quiet,
    "dev-services": services,
    "dev-restarts": restarts,
    "dev-kills": kills,
    "dev-etcd": etcd,
    "dev-settings": settings,
    "dev-brokers": brokers,
    "dev-upgrade": upgrade,
}
PRODUCTION_STEPS: dict[str, Callable[[Stage, Options], None]] = {
    "quiet": quiet,
    "services": services,
    "restarts": restarts,
    "kills": kills,
    "leaders": leaders,
    "etcd": etcd,
    "drain": drain,
    "node": node,
    "disk": disk,
    "certificates": certificates,
    "access-key": access_key,
    "cluster-secret": cluster_secret,
    "upgrade": upgrade,
    "policies": restart_with_policies,
}
DEV_DAYS = (restarts, kills, etcd, settings)
PRODUCTION_DAYS = (restarts, kills, leaders, etcd, drain, node, disk, certificates, cluster_secret)


OUTSIDE_STEPS: dict[str, Callable[[Deployment], str]] = {
    "external access added": outside.open_to_outside,
    "SDK outside of the cluster": outside.sdk_outside,
    "official client at the balancer": outside.official_client_outside,
    "official client, port-forward": outside.official_client_forwarded,
    "consumers scaled by KEDA's protocol": scaler.scale_consumers,
}
# The last page removes the cluster.
PAGE_STEPS: dict[str, Callable[[Deployment], str]] = {
    "commands of external-access.md": partial(documents.run_page, "external-access"),
    "SDK outside of the cluster": outside.sdk_outside_with_copies,
    "commands of scaling.md": documents.run_scaling,
    "commands of kubernetes-operations.md": partial(documents.run_page, "kubernetes-operations"),
}
HELM_STEPS: dict[str, Callable[[Deployment], str]] = {
    "objects for Prometheus' operator": documents.apply_monitoring,
    "install until the first message": documents.install_chart,
    "trial of helm.md": documents.run_helm_trial,
}
NAMES = frozenset(
    ("dev", "outside", "production", "jobs", "pages", "helm", *DEV_STEPS, *PRODUCTION_STEPS)
)


def idle_pods(deployment: Deployment) -> str:
    """Return the memory and processor time of each kind of pod after a pause, as text."""
    time.sleep(IDLE_SECONDS)
    highest: dict[str, tuple[float, float]] = {}
    for pod, usage in idle_usage(deployment).items():
        kind = "-".join(pod.split("-")[: 2 if pod.startswith("rockoon-") else 1])
        before = highest.get(kind, (0.0, 0.0))
        highest[kind] = (max(before[0], usage[0]), max(before[1], usage[1]))
    return ", ".join(
        f"{kind} {cpu:.0f} m {memory:.0f} MiB" for kind, (cpu, memory) in sorted(highest.items())
    )


def idle_usage(deployment: Deployment) -> dict[str, tuple[float, float]]:
    """Return processor time in thousandths of a core and memory in MiB of each pod."""
    found: dict[str, tuple[float, float]] = {}
    names: Any = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    for each in names:
        path = f"/api/v1/nodes/{each['metadata']['name']}/proxy/stats/summary"
        summary: Any = json.loads(kubectl("get", "--raw", path))
        for pod in summary["pods"]:
            reference = pod["podRef"]
            if reference["namespace"] == deployment.namespace and reference["name"] != CHECKER:
                cpu = pod.get("cpu", {}).get("usageNanoCores", 0) / 1e6
                memory = pod.get("memory", {}).get("workingSetBytes", 0) / (1 << 20)
                found[reference["name"]] = (cpu, memory)
    return found
