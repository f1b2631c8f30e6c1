"""The Helm chart, and the commands of the pages about Kubernetes as they are written."""

import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.crds import MODULES, folder
from deploy.page_runs import PageError, run_page

from k8s import operations as do
from k8s.cluster import kubectl, kubectl_words
from k8s.deployment import Deployment
from k8s.node import PKI, Node
from k8s.shell import ROOT, STATE, Failed, run

CHART = ROOT / "deploy" / "helm" / "rockoon"
OPERATE = ROOT / "docs" / "operate"
# Each page continues the cluster of those before it.
PAGES = ("deploy", "external-access", "kubernetes-operations")
# Images of load tests are not loaded into the nodes; there is no KEDA; disks cannot grow.
FEATURES = frozenset({"load-balancers"})
OPERATOR = "monitoring.coreos.com"
FIRST_SECONDS_MAX = 30.0
BLOCK_SECONDS_MAX = 600.0


def helm_words() -> Sequence[str]:
    """Return the helm command for the cluster.

    Raises:
        Failed: this machine has no helm.
    """
    places = f"{Path.home()}/go/bin"
    program = shutil.which("helm") or shutil.which("helm", path=places)
    if program is None:
        raise Failed("there is no helm: `make helm` compiles it")
    return Node(0).network(program, "--kubeconfig", PKI / "admin.kubeconfig")


def apply_definitions() -> str:
    """Create the CustomResourceDefinitions of Prometheus' operator.

    Raises:
        Failed: Go's module cache does not have them.
    """
    place = folder(OPERATOR)
    if place is None:
        raise Failed(f"{MODULES[OPERATOR][0]} is not in Go's module cache: `make helm` loads it")
    files = [
        path for kind in ("podmonitors", "prometheusrules") for path in place.glob(f"*_{kind}.yaml")
    ]
    for path in files:
        kubectl("apply", "--server-side", "-f", path)
    return f"{len(files)} definitions"


def install_chart(deployment: Deployment) -> str:
    """Install the chart with its default values and send a first message.

    Raises:
        Failed: an object was refused, or the message was acknowledged too late.
    """
    began = time.monotonic()
    options = ("--namespace", deployment.namespace, "--create-namespace")
    monitored = ("--set", "monitoring.podMonitor=true", "--set", "monitoring.prometheusRule=true")
    run(*helm_words(), "install", "rockoon", CHART, *options, *monitored, seconds=120)
    deployment.create_client()
    do.first_message(deployment, 4 * FIRST_SECONDS_MAX)
    seconds = time.monotonic() - began
    kinds = deployment.kubectl("get", "podmonitor,prometheusrule", "-o", "name").split()
    if len(kinds) < 2:
        raise Failed(f"the chart created {kinds}, not a PodMonitor and a PrometheusRule")
    if seconds > FIRST_SECONDS_MAX:
        raise Failed(f"the first message was acknowledged after {seconds:.1f} s")
    return f"{seconds:.1f} s, with PodMonitor and PrometheusRule"


def uninstall_chart(deployment: Deployment) -> str:
    run(*helm_words(), "uninstall", "rockoon", "--namespace", deployment.namespace, seconds=120)
    deployment.delete()
    return ""


def run_pages(names: Sequence[str]) -> str:
    """Run the commands of pages in one workspace, and return a summary.

    Raises:
        Failed: a command failed; the text has its page, line and output.
    """
    workspace = STATE / "pages"
    workspace.mkdir(exist_ok=True)
    blocks = 0
    for name in names:
        try:
            done = run_page(
                OPERATE / f"{name}.md",
                shlex.join(kubectl_words()),
                workspace=workspace,
                features=FEATURES,
                seconds_max=BLOCK_SECONDS_MAX,
                helm=shlex.join(helm_words()),
            )
        except PageError as failure:
            raise Failed(str(failure)) from failure
        for each in done:
            place = f"{each.block.page}, line {each.block.line}"
            print(f"{each.seconds:8.1f} s  {place}", flush=True)
        blocks += len(done)
    return f"{blocks} blocks of commands"
