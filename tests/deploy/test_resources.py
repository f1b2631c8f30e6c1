"""The page about declarative resources: its commands, and its Job with a local cluster."""

import asyncio
import base64
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.fake_kubectl import __file__ as fake
from deploy.manifests import Overlay, containers, pod_of
from deploy.page_runs import REPOSITORY, run_page
from deploy.real_kustomize import build_as_real

from rockoon.admin.access_keys import Permission
from rockoon.net.access import AccessKey
from rockoon.testing.disposable import DisposableCluster

PAGE = REPOSITORY / "docs/operate/resources.md"
# Of the key `jobs` in docs/operate/deploy.md.
PERMISSIONS = ("cluster=admin", "topic:*=read")
PROGRAM = Path(sys.executable).with_name("rockoon")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(access=True) as cluster:
        yield cluster


def variables(cluster: DisposableCluster, key: AccessKey) -> dict[str, str]:
    return {
        "ROCKOON_NAMESERVERS": cluster.nameservers[0],
        "ROCKOON_ACCESS_KEY": key.id,
        "ROCKOON_ACCESS_SECRET": key.secret,
    }


async def key_of_jobs(cluster: DisposableCluster) -> AccessKey:
    async with cluster.connect() as connection:
        keys = connection.admin.access_keys
        return await keys.create("jobs", map(Permission.parse, PERMISSIONS))


async def objects(cluster: DisposableCluster) -> tuple[dict[str, str], dict[str, str]]:
    """Topics and access keys with their owners."""
    async with cluster.connect() as connection:
        topics = await connection.admin.list_topics()
        keys = await connection.admin.access_keys.list()
    owners = {each.name: each.attributes["rockoon.owner"] for each in topics}
    return owners, {each.id: each.owner for each in keys}


def in_directories(overlay: Overlay, place: Path) -> list[str]:
    """Write the files of the Job below a directory; returns its arguments with these files."""
    job = overlay.named("Job", "rockoon-apply")
    (container,) = containers(job)
    for path, text in overlay.files(job, container).items():
        file = place / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("/secrets/", f"{place}/secrets/"))
    return [f"{place}{each}" if each.startswith("/") else each for each in container["args"]]


def test_the_page_runs_as_written_and_its_job_makes_the_resources(
    cluster: DisposableCluster, tmp_path: Path
) -> None:
    admin = cluster.access
    assert admin is not None
    jobs = asyncio.run(key_of_jobs(cluster))
    state = tmp_path / "state"
    (state / "secrets").mkdir(parents=True)
    (state / "namespace").write_text("rockoon")
    secret = {"key": admin.id, "secret": admin.secret}
    data = {key: base64.b64encode(each.encode()).decode() for key, each in secret.items()}
    (state / "secrets/rockoon-access-client.json").write_text(json.dumps({"data": data}))
    (state / "rockoon.json").write_text(json.dumps({"rockoon": variables(cluster, admin)}))
    client = REPOSITORY / "deploy/kubernetes/examples/client-production.yaml"
    known = {
        "rockoon/Namespace/rockoon": {},
        "rockoon/Pod/client": yaml.safe_load(client.read_text()),
    }
    (state / "objects.json").write_text(json.dumps(known))

    page = tmp_path / "page"
    environment = variables(cluster, admin) | {
        "PYTHONPATH": str(REPOSITORY / "tests"),
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
    }
    ran = run_page(
        PAGE, shlex.join([sys.executable, fake, str(state)]), environment, workspace=page
    )
    shown = [each.output for each in ran if "rockoon apply -f" in each.block.text]
    assert len(shown) == 3
    assert shown[0].splitlines()[-1] == "0 changes to make"
    assert "delete topic prices" in shown[2]

    overlay = build_as_real(page / "deploy/kubernetes/overlays/resources")
    for document in overlay.documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    (mounted,) = [
        each["secret"]["secretName"]
        for each in pod_of(overlay.named("Job", "rockoon-apply"))["spec"]["volumes"]
        if each["name"] == "secrets"
    ]
    assert f"create secret generic {mounted} --from-file payments" in PAGE.read_text()
    place = tmp_path / "container"
    arguments = in_directories(overlay, place)
    (place / "secrets").mkdir()
    (page / "payments").rename(place / "secrets/payments")
    for _ in range(2):
        job = subprocess.run(
            [PROGRAM, *arguments],
            env=os.environ | variables(cluster, jobs),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert job.returncode == 0, job.stderr
    assert job.stdout == "0 changes made\n"
    assert asyncio.run(objects(cluster)) == (
        {"orders": "shop", "payments": "rockoon-resources"},
        {"jobs": "", "payments": "rockoon-resources"},
    )


def test_another_content_is_another_job(tmp_path: Path) -> None:
    """Argo CD and Flux see from the manifest that the Job has to run again."""
    jobs = set()
    for text in ("owner: a\n", "owner: b\n"):
        run_page(
            PAGE, "true", workspace=tmp_path, chosen=lambda block: block.mark.startswith("file:")
        )
        overlay = tmp_path / "deploy/kubernetes/overlays/resources"
        (overlay / "resources.yaml").write_text(text)
        job = build_as_real(overlay).named("Job", "rockoon-apply")
        jobs.add(json.dumps(job, sort_keys=True))
    assert len(jobs) == 2
