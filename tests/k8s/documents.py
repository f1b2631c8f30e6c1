"""The Helm chart, and the commands of the pages about Kubernetes as they are written."""

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.crds import MODULES, folder
from deploy.page_runs import Block, PageError, Ran
from deploy.page_runs import run_page as run_all

from k8s import operations as do
from k8s.cluster import kubectl, kubectl_words
from k8s.deployment import Deployment
from k8s.node import PKI, Node
from k8s.shell import ROOT, STATE, Failed, run
from support.etcd import etcd_binary

CHART = ROOT / "deploy" / "helm" / "rockoon"
OPERATE = ROOT / "docs" / "operate"
# Sections of deploy.md.
TRIAL, PRODUCTION = "To try it out", "Production, step by step"
FEATURES = frozenset({"load-balancers", "volume-expansion", "load-test", "keda", "etcdctl"})
# API groups of operators, and the kinds that Rockoon's manifests have.
PROMETHEUS, KEDA = "monitoring.coreos.com", "keda.sh"
KINDS = {PROMETHEUS: ("podmonitors", "prometheusrules"), KEDA: ("scaledobjects",)}
FIRST_SECONDS_MAX = 30.0
BLOCK_SECONDS_MAX = 600.0


def helm_program() -> str | None:
    """Return the path of helm, or None if this machine has none."""
    return shutil.which("helm") or shutil.which("helm", path=f"{Path.home()}/go/bin")


def helm_words() -> Sequence[str]:
    """Return the helm command for the cluster.

    Raises:
        Failed: this machine has no helm.
    """
    program = helm_program()
    if program is None:
        raise Failed("there is no helm: `make helm` compiles it")
    return Node(0).network(program, "--kubeconfig", PKI / "admin.kubeconfig")


def apply_definitions(group: str) -> str:
    """Create the CustomResourceDefinitions of an operator.

    Args:
        group: API group of its resources.

    Raises:
        Failed: Go's module cache does not have them.
    """
    place = folder(group)
    if place is None:
        raise Failed(f"{MODULES[group][0]} is not in Go's module cache: `make helm` loads it")
    kinds = KINDS[group]
    for kind in kinds:
        (path,) = place.glob(f"*_{kind}.yaml")
        kubectl("apply", "--server-side", "-f", path)
    for kind in kinds:
        condition = "--for=condition=Established"
        kubectl("wait", condition, f"crd/{kind}.{group}", "--timeout=30s")
    return f"{len(kinds)} definitions"


def apply_monitoring(_: Deployment) -> str:
    """Let the API server check the chart's PodMonitor and PrometheusRule by the definitions of
    Prometheus' operator.

    Raises:
        Failed: an object was refused.
    """
    apply_definitions(PROMETHEUS)
    monitored = ("--set", "monitoring.podMonitor=true", "--set", "monitoring.prometheusRule=true")
    objects = run(*helm_words(), "template", "rockoon", CHART, "--namespace", "default", *monitored)
    own = [each for each in objects.split("\n---\n") if f"apiVersion: {PROMETHEUS}/" in each]
    kubectl("apply", "-f", "-", stdin="\n---\n".join(own))
    created = kubectl("get", "podmonitor,prometheusrule", "-o", "name").split()
    if len(created) < len(KINDS[PROMETHEUS]):
        raise Failed(f"the chart created {created}, not a PodMonitor and a PrometheusRule")
    kubectl("delete", *created)
    return ", ".join(created)


def install_chart(deployment: Deployment) -> str:
    """Install the chart by the first commands of helm.md, and send a first message.

    Raises:
        Failed: a command failed, or the message was acknowledged too late.
    """
    began = time.monotonic()
    run_blocks("helm", is_installation)
    deployment.create_checker()
    do.first_message(deployment, 4 * FIRST_SECONDS_MAX)
    seconds = time.monotonic() - began
    if seconds > FIRST_SECONDS_MAX:
        raise Failed(f"the first message was acknowledged after {seconds:.1f} s")
    return ""


def is_installation(block: Block) -> bool:
    return block.section == TRIAL and block.text.startswith("helm install")


def run_helm_trial(_: Deployment) -> str:
    """Run the commands of the first section of helm.md after the installation."""
    ran = run_blocks("helm", lambda block: block.section == TRIAL and not is_installation(block))
    return f"{len(ran)} blocks of commands"


def run_helm_production() -> str:
    return f"{len(run_blocks('helm', lambda block: block.section != TRIAL))} blocks of commands"


def run_page(name: str, _: Deployment) -> str:
    """Run all commands of a page.

    Raises:
        Failed: a command failed; the text has its page, line and output.
    """
    return f"{len(run_blocks(name))} blocks of commands"


def run_scaling(deployment: Deployment) -> str:
    """Run the commands of scaling.md with KEDA's definitions, but without its operator."""
    apply_definitions(KEDA)
    return run_page("scaling", deployment)


def run_blocks(name: str, chosen: Callable[[Block], bool] = lambda _: True) -> list[Ran]:
    """Run chosen blocks of a page as they are written, in the directory that all pages share.

    Raises:
        Failed: a command failed; the text has its page, line and output.
    """
    workspace = STATE / "pages"
    workspace.mkdir(exist_ok=True)
    try:
        done = run_all(
            OPERATE / f"{name}.md",
            shlex.join(kubectl_words()),
            workspace=workspace,
            features=FEATURES,
            seconds_max=BLOCK_SECONDS_MAX,
            # Pages that run at the same time share one command `helm`.
            helm=shlex.join(helm_words()) if helm_program() or name == "helm" else "helm",
            etcdctl=shlex.join(Node(0).network(etcd_binary("etcdctl"))),
            chosen=chosen,
        )
    except PageError as failure:
        raise Failed(str(failure)) from failure
    for each in done:
        print(f"{each.seconds:8.1f} s  {each.block.page}, line {each.block.line}", flush=True)
    return done


def install(section: str) -> list[Ran]:
    """Run the commands of a section of deploy.md, except the removal at its end."""
    return run_blocks("deploy", lambda block: block.section == section and not is_removal(block))


def remove_trial() -> None:
    run_blocks("deploy", lambda block: block.section == TRIAL and is_removal(block))


def is_removal(block: Block) -> bool:
    return block.text.startswith("kubectl delete")


def applied_seconds(ran: Sequence[Ran]) -> float:
    """Return the duration of the block that applies an overlay and waits for its pods."""
    overlays = "kubectl apply -k deploy/kubernetes/overlays/"
    (found,) = (each.seconds for each in ran if each.block.text.startswith(overlays))
    return found
