"""Load tests on Kubernetes: the component in an overlay, and the image's tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
from deploy.manifests import ROOT, Overlay, build, containers, name_of, pod_of, service_of
from deploy.network import Place, lets_through, place_of
from deploy.pages import kustomizations
from deploy.real_kustomize import build_as_real

from load.options import parser
from load.run import plan_of

PAGE = "operate/load-tests.md"
NAMES = {"rockoon-load-master", "rockoon-load-worker"}
REPOSITORY = ROOT.parents[1]


@pytest.fixture(params=["dev", "production"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Overlay:
    """A cluster, and beside it the load test's overlay for it, as it is on the page."""
    dev, production = kustomizations(PAGE, tmp_path)
    written = build_as_real(dev if request.param == "dev" else production)
    cluster = build(ROOT / "overlays" / request.param)
    for document in written.documents:
        assert document["metadata"]["namespace"] == cluster.namespace
    return Overlay(cluster.documents + written.documents)


def test_the_api_takes_it(overlay: Overlay) -> None:
    version = kubernetes_validate.latest_version()
    ours = [each for each in overlay.documents if name_of(each).startswith("rockoon-load")]
    assert {each["kind"] for each in ours} == {
        "ConfigMap", "Job", "NetworkPolicy", "PersistentVolumeClaim", "Service"
    }  # fmt: skip
    assert len(ours) == 6
    for document in ours:
        kubernetes_validate.validate(document, version, strict=True)


def test_master_and_workers_are_told_what_there_is(overlay: Overlay) -> None:
    jobs = {name_of(job): job for job in overlay.jobs if name_of(job) in NAMES}
    assert jobs.keys() == NAMES
    services = {
        f"{name_of(each)}:{port['port']}"
        for each in overlay.of_kind("Service")
        for port in each["spec"]["ports"]
    }
    (master,) = containers(jobs["rockoon-load-master"])
    (worker,) = containers(jobs["rockoon-load-worker"])
    (source,) = master["envFrom"]
    environment = overlay.named("ConfigMap", source["configMapRef"]["name"])["data"]
    options = parser(environment).parse_args(master["args"])
    plan = plan_of(options, options.endpoint)
    assert options.endpoint in services
    # The page overrides both for the dev overlay, and the minutes for production.
    expected = ("produce", 600) if overlay.namespace == "rockoon-dev" else ("mixed", 30)
    assert (plan.scenario, plan.seconds) == expected
    known = {f"LOAD_{name}".upper() for name in vars(options)}
    assert environment.keys() <= known
    assert options.port == master["ports"][0]["containerPort"]
    assert str(options.dir) in {mount["mountPath"] for mount in master["volumeMounts"]}

    told = parser({}).parse_args(worker["args"])
    assert f"{told.host}:{told.port}" in services
    spec = jobs["rockoon-load-worker"]["spec"]
    assert spec["parallelism"] == spec["completions"] == plan.workers


def test_its_pods_are_as_careful_as_the_services(overlay: Overlay) -> None:
    for job in overlay.jobs:
        if name_of(job) not in NAMES:
            continue
        pod = pod_of(job)["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert pod["enableServiceLinks"] is False
        for container in containers(job):
            assert service_of(container) == "load-test"
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"].keys() == {"memory"}
            written = overlay.environment(job, container)["MPLCONFIGDIR"]
            assert written in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_it_shows_a_certificate_where_the_cluster_wants_one(overlay: Overlay) -> None:
    is_encrypted = any("tls" in name_of(each) for each in overlay.documents) or any(
        volume["name"] == "tls"
        for workload in overlay.workloads
        for volume in pod_of(workload)["spec"].get("volumes", [])
    )
    for job in overlay.jobs:
        if name_of(job) in NAMES:
            (container,) = containers(job)
            names = {each["name"] for each in container["env"]}
            assert ("ROCKOON_TLS_CERTIFICATE" in names) is is_encrypted
            assert ("ROCKOON_ACCESS_SECRET_FILE" in names) is is_encrypted


def test_workers_alone_call_the_master_and_both_the_cluster(overlay: Overlay) -> None:
    places = {name_of(job): place_of(job, overlay.namespace) for job in overlay.jobs}
    master, worker = places["rockoon-load-master"], places["rockoon-load-worker"]
    stranger = Place({"rockoon-client": "true"}, overlay.namespace)
    assert lets_through(overlay, worker, master, 5557)
    assert not lets_through(overlay, stranger, master, 5557)
    (broker,) = [each for each in overlay.workloads if name_of(each) == "rockoon-broker"]
    for place in (master, worker):
        assert lets_through(overlay, place, place_of(broker, overlay.namespace), 10911)


def test_the_tree_of_the_image_is_enough_for_all_of_its_processes(tmp_path: Path) -> None:
    """The image has the SDK and tests/load, and nothing else of this repository."""
    shutil.copytree(REPOSITORY / "tests/load", tmp_path / "load")
    script = (
        "import sys, load.__main__, load.master, load.worker, load.auditor, load.run, load.plot\n"
        "foreign = {'support', 'rockoon_broker', 'rockoon_offset', 'rockoon_nameserver'}\n"
        "assert not foreign & set(sys.modules), foreign & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)},
        check=True,
    )
