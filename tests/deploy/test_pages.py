"""Pages about Kubernetes: their commands run in order, and their kustomizations are built.

Without a cluster, stand-ins for kubectl and helm keep the objects, and the `rockoon` commands call
clusters on this machine. If KUBECTL is set to a command, `test_a_cluster_runs_the_pages` runs all
pages there.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
from deploy.chart import HELM, needs_helm
from deploy.fake_helm import __file__ as fake_helm
from deploy.fake_kubectl import __file__ as fake
from deploy.manifests import build, name_of
from deploy.page_runs import REPOSITORY, PageError, blocks, run_page, write_files
from deploy.real_kustomize import by_name, real_builds

from rockoon.testing.disposable import DisposableCluster

OPERATE = REPOSITORY / "docs" / "operate"
# Each continues those before it.
NAMES = ["deploy", "external-access", "load-tests", "scaling", "kubernetes-operations"]
PAGES = [OPERATE / f"{name}.md" for name in NAMES]
CHART_PAGE = OPERATE / "helm.md"
# Of the stand-in; a cluster's are the words of FEATURES.
FEATURES = frozenset({"volume-expansion", "load-balancers", "load-test", "keda"})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """State of a stand-in cluster whose namespaces have clusters on this machine."""
    place = tmp_path / "state"
    place.mkdir()
    (place / "namespace").write_text("")
    known = {}
    with (
        DisposableCluster(access=True, single=True) as dev,
        DisposableCluster(access=True, single=True) as production,
    ):
        for namespace, cluster in (("rockoon-dev", dev), ("rockoon", production)):
            key = cluster.access
            assert key is not None
            known[namespace] = {
                "ROCKOON_NAMESERVERS": cluster.nameservers[0],
                "ROCKOON_ACCESS_KEY": key.id,
                "ROCKOON_ACCESS_SECRET": key.secret,
            }
        (place / "rockoon.json").write_text(json.dumps(known))
        yield place


def stand_in(state: Path) -> tuple[str, dict[str, str]]:
    """Command and environment of the stand-in for kubectl."""
    tests = str(REPOSITORY / "tests")
    return shlex.join([sys.executable, fake, str(state)]), {"PYTHONPATH": tests}


def test_the_commands_of_the_pages_run_in_order(state: Path, tmp_path: Path) -> None:
    command, environment = stand_in(state)
    ran = [
        each
        for page in PAGES
        for each in run_page(
            page, command, environment, workspace=tmp_path / "pages", features=FEATURES
        )
    ]
    shown = [each.output for each in ran if "rockoon consume orders" in each.block.text]
    assert len(shown) == 2
    assert all(each.endswith("one coffee\n") for each in shown)
    last = json.loads((state / "objects.json").read_text())
    assert not [key for key in last if key.startswith("rockoon")], "the last page removes all"


def test_real_kustomize_builds_what_the_pages_apply_or_show(tmp_path: Path) -> None:
    directories = set()
    for page in PAGES:
        write_files(page, tmp_path)
        for block in blocks(page):
            if block.mark.endswith("/kustomization.yaml"):
                directories.add(block.mark.removeprefix("file: ").rpartition("/")[0])
            for line in block.text.splitlines():
                if line.startswith("kubectl apply -k "):
                    directories.add(line.rpartition(" ")[2])
    assert len(directories) > 6
    for directory in sorted(directories):
        ours = build(tmp_path / directory).documents
        for document in ours:
            # Kinds of other projects have no schema here.
            if "cert-manager.io" not in document["apiVersion"]:
                kubernetes_validate.validate(
                    document, kubernetes_validate.latest_version(), strict=True
                )
        for theirs in real_builds(tmp_path / directory):
            assert by_name(ours) == theirs


def test_external_access_changes_no_immutable_field_of_the_production_cluster(
    tmp_path: Path,
) -> None:
    for page in PAGES:
        write_files(page, tmp_path)
    overlays = tmp_path / "deploy/kubernetes/overlays"
    before, after = build(overlays / "mine"), build(overlays / "external")
    for each in before.of_kind("StatefulSet"):
        changed = after.named("StatefulSet", name_of(each))
        for field in ("volumeClaimTemplates", "serviceName", "selector", "podManagementPolicy"):
            assert changed["spec"].get(field) == each["spec"].get(field), (name_of(each), field)


def test_a_command_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```sh\necho before\n```\n\n```sh\nkubectl get pods | cat\necho no\n```\n"
    )
    with pytest.raises(PageError, match=r"page.md, line 8: exit status 3(?s:.*)no pods") as failed:
        run_page(page, "sh -c 'echo no pods; exit 3'")
    assert "\nno\n" not in str(failed.value).partition("no pods")[2]


def test_a_block_that_does_not_end_is_ended(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nsleep 600 | cat\n```\n")
    with pytest.raises(PageError, match="no end after 0 s"):
        run_page(page, "false", seconds_max=0.3)


def test_a_comment_with_a_typo_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- exmple -->\n```sh\ntrue\n```\n")
    with pytest.raises(ValueError, match="exmple"):
        blocks(page)


@needs_helm
def test_the_commands_of_the_chart_s_page_run_in_order(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "namespace").write_text("")
    command, environment = stand_in(state)
    helm = shlex.join([sys.executable, fake_helm, str(state), str(HELM)])
    run_page(CHART_PAGE, command, environment, features=FEATURES, helm=helm)
    last = json.loads((state / "objects.json").read_text())
    assert not [key for key in last if key.startswith("rockoon")], "the page removes all"


on_a_cluster = pytest.mark.skipif("KUBECTL" not in os.environ, reason="KUBECTL names no cluster")


@needs_helm
@on_a_cluster
@pytest.mark.timeout(1200)
def test_a_cluster_runs_the_chart_s_page() -> None:
    features = frozenset(os.environ.get("FEATURES", "").split())
    helm = os.environ.get("HELM", str(HELM))
    for each in run_page(CHART_PAGE, os.environ["KUBECTL"], features=features, helm=helm):
        print(f"{each.seconds:7.1f} s  {each.block.page}, line {each.block.line}")


@on_a_cluster
@pytest.mark.timeout(3600)
def test_a_cluster_runs_the_pages(tmp_path: Path) -> None:
    features = frozenset(os.environ.get("FEATURES", "").split())
    for page in PAGES:
        for each in run_page(
            page, os.environ["KUBECTL"], workspace=tmp_path / "pages", features=features
        ):
            print(f"{each.seconds:7.1f} s  {each.block.page}, line {each.block.line}")
