"""The script that makes the Secrets of the production overlay without cert-manager."""

import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from deploy.manifests import ROOT, Overlay, build, containers
from deploy.pods import certificates, secret_mounts

from rockoon.testing.disposable import DisposableCluster
from rockoon_core.secret_files import read_secrets
from support.waiting import DEADLINE_SECONDS

SCRIPT = ROOT / "make_secrets.py"
FAKE = Path(__file__).with_name("fake_kubectl.py")
AUTHORITIES = {"rockoon-authority", "rockoon-etcd-authority"}
# Access keys are created in the running cluster.
ACCESS_KEYS = {"rockoon-client-access", "rockoon-access-client"}


def made(*arguments: str, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """Run the script; returns its output, and its error output if it fails."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env=dict(os.environ) | dict(environment or {}),
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*.*")}


def names_in(certificate: Path) -> list[str]:
    command = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(certificate)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = shown.replace(",", " ").split()
    return [each.removeprefix("DNS:") for each in words if each.startswith("DNS:")]


def signed_by(certificate: Path, authority: Path) -> bool:
    command = ["openssl", "verify", "-x509_strict", "-CAfile", str(authority), str(certificate)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Secrets as files, which tests do not change."""
    place = tmp_path_factory.mktemp("made") / "secrets"
    made("--output", str(place))
    return place


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    """Secrets as files, which tests may change."""
    return shutil.copytree(folder, tmp_path / "secrets")


def test_every_secret_that_the_manifests_mount_is_made(folder: Path) -> None:
    overlays = [build(ROOT / "overlays/production"), build(ROOT / "examples/etcd3")]
    mounted = {
        secret
        for overlay in overlays
        for workload in [*overlay.workloads, *overlay.jobs]
        for container in containers(workload)
        for secret in secret_mounts(workload, container).values()
    }
    for example in ROOT.glob("examples/*.yaml"):
        pod = yaml.safe_load(example.read_text())
        volumes = pod["spec"]["volumes"]
        mounted |= {each["secret"]["secretName"] for each in volumes if "secret" in each}
    assert {each.name for each in folder.iterdir()} == (mounted - ACCESS_KEYS) | AUTHORITIES
    assert read_secrets(folder / "rockoon-cluster/cluster-secret")
    assert (folder / "rockoon-gateway-clients/client-secrets").read_bytes() == b""


def test_certificates_have_the_names_that_cert_manager_would_be_asked_for(folder: Path) -> None:
    asked = certificates()
    for secret in asked.keys() - AUTHORITIES:
        assert names_in(folder / secret / "tls.crt") == asked[secret][1], secret


def test_each_certificate_is_signed_by_its_authority_alone(folder: Path) -> None:
    """A client of the cluster is no client of etcd."""
    of_etcd = {"etcd-tls", "rockoon-etcd-client-tls"}
    for certificate in folder.glob("*-tls/tls.crt"):
        secret = certificate.parent.name
        for authority in AUTHORITIES:
            expected = (secret in of_etcd) == (authority == "rockoon-etcd-authority")
            assert signed_by(certificate, folder / authority / "ca.crt") == expected, secret
        authority = "rockoon-etcd-authority" if secret in of_etcd else "rockoon-authority"
        ca = (folder / authority / "ca.crt").read_bytes()
        assert (folder / secret / "ca.crt").read_bytes() == ca


def test_files_are_readable_by_their_owner_only(folder: Path) -> None:
    for each in folder.rglob("*"):
        assert each.stat().st_mode & 0o077 == 0, each


def test_a_second_run_keeps_all_files(place: Path) -> None:
    before = files(place)
    said = made("--output", str(place))
    assert files(place) == before
    assert said.count("kept") == len(said.splitlines())


def test_a_name_is_added_to_its_certificate_alone_and_stays(place: Path) -> None:
    before = files(place)
    more = ("--brokers", "4", "--log", "b", "--name", "rockoon-gateway-tls=mq.example.org")
    made("--output", str(place), *more)
    changed = {
        name.partition("/")[0] for name, content in files(place).items() if before[name] != content
    }
    assert changed == {"rockoon-broker-tls", "rockoon-gateway-tls"}
    made("--output", str(place), "--rotate", "certificates")
    brokers = names_in(place / "rockoon-broker-tls/tls.crt")
    assert "rockoon-broker-3.rockoon-broker.rockoon.svc" in brokers
    assert "rockoon-broker-b.rockoon-broker-b.rockoon.svc" in brokers
    assert "mq.example.org" in names_in(place / "rockoon-gateway-tls/tls.crt")


def test_rotated_certificates_have_new_keys_and_the_same_authority(place: Path) -> None:
    before = files(place)
    made("--output", str(place), "--rotate", "certificates")
    after = files(place)
    assert after.keys() == before.keys()
    for name in before:
        rotated = "-tls/tls." in name
        assert (after[name] != before[name]) == rotated, name


def test_certificates_that_expire_soon_are_renewed(place: Path) -> None:
    made("--output", str(place), "--rotate", "certificates", "--days", "20")
    said = made("--output", str(place))
    assert said.count("renewed") == len(list(place.glob("*-tls")))
    assert "renewed" not in made("--output", str(place))


def test_in_each_round_every_service_accepts_the_secret_that_signs(place: Path) -> None:
    """A service has the file of this round, or of the one before or after it."""
    file = place / "rockoon-cluster/cluster-secret"
    rounds = [read_secrets(file)]
    for _ in range(3):
        made("--output", str(place), "--rotate", "cluster")
        rounds.append(read_secrets(file))
    assert [len(each) for each in rounds] == [1, 2, 2, 1]
    for one, next_one in pairwise(rounds):
        assert one[0] in next_one
        assert next_one[0] in one
    assert rounds[-1] != rounds[0]
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_rotation_that_was_begun_by_hand_is_not_continued(place: Path) -> None:
    file = place / "rockoon-cluster/cluster-secret"
    file.write_text(file.read_text() + "\n" + "x" * 32)
    said = made("--output", str(place), "--rotate", "cluster", status=1)
    assert "a replacement by hand has begun" in said
    assert len(read_secrets(file)) == 2


def test_a_certificate_without_its_authority_is_not_mixed_with_a_new_one(place: Path) -> None:
    for each in (place / "rockoon-authority").iterdir():
        each.unlink()
    (place / "rockoon-authority").rmdir()
    before = files(place)
    assert "restore rockoon-authority" in made("--output", str(place), status=1)
    assert files(place) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--rotate", "certificate"), "expected certificates, cluster or key NAME"),
        (("--rotate", "key"), "expected certificates, cluster or key NAME"),
        (("--rotate", "cluster"), "no Secret rockoon-cluster: run this script without --rotate"),
        (("--rotate", "certificates"), "no certificates yet"),
        (("--rotat", "cluster"), "unrecognized arguments: --rotat"),
        (("--key", "jobs"), "--key needs at least one --allow"),
        (("--allow", "cluster=read"), "--allow is for --key"),
        (("--key", "jobs", "--allow", "cluster=read", "--rotate", "key", "jobs"), "--rotate key"),
        (("--name", "rockoon-brokre-tls=x"), "no such certificate; there are rockoon-nameserver"),
        (("--brokers", "0"), "at least 1"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path / "secrets"), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize(
    ("arguments", "program"), [((), "kubectl"), (("--output", "secrets"), "openssl")]
)
def test_a_program_that_is_missing_is_named(
    arguments: tuple[str, ...], program: str, tmp_path: Path
) -> None:
    said = made(*arguments, status=1, environment={"PATH": str(tmp_path), "KUBECTL": "kubectl"})
    assert f"there is no program '{program}'" in said


class FakeCluster:
    """A namespace behind a fake kubectl.

    Args:
        state: an empty directory.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        (state / "namespace").write_text("rockoon")
        (state / "history").touch()
        self.environment = {
            "KUBECTL": shlex.join([sys.executable, str(FAKE), str(state)]),
            "PYTHONPATH": str(FAKE.parents[1]),
        }

    def secret(self, name: str) -> dict[str, bytes]:
        data = json.loads((self.state / "secrets" / f"{name}.json").read_text())["data"]
        return {key: base64.b64decode(content) for key, content in data.items()}

    def run_pods(self, overlay: Overlay) -> None:
        """Let the first pod of each workload run; its container is `main`."""
        pods = []
        for workload in overlay.workloads:
            template = workload["spec"]["template"]
            template["metadata"]["name"] = workload["metadata"]["name"]
            template["spec"]["containers"][0]["name"] = "main"
            pods.append(template | {"status": {"phase": "Running"}})
        (self.state / "pods.json").write_text(json.dumps({"items": pods}))


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path)


def test_secrets_are_created_in_the_cluster_once(cluster: FakeCluster) -> None:
    made(environment=cluster.environment)
    written = (cluster.state / "history").read_text()
    said = made(environment=cluster.environment)
    assert said.count("kept") == len(said.splitlines())
    assert (cluster.state / "history").read_text() == written
    before = cluster.secret("rockoon-broker-tls")
    made("--rotate", "certificates", environment=cluster.environment)
    after = cluster.secret("rockoon-broker-tls")
    assert (after["tls.key"] != before["tls.key"], after["ca.crt"]) == (True, before["ca.crt"])


def test_a_missing_namespace_is_named_with_the_command_that_creates_it(
    cluster: FakeCluster,
) -> None:
    said = made("--namespace", "rokoon", status=1, environment=cluster.environment)
    assert "there is no namespace rokoon: `kubectl apply -f" in said


def test_the_cluster_secret_is_replaced_in_rounds_that_wait_for_all_pods(
    cluster: FakeCluster,
) -> None:
    made(environment=cluster.environment)
    cluster.run_pods(build(ROOT / "overlays/production"))
    made("--rotate", "cluster", environment=cluster.environment)
    lines = (cluster.state / "history").read_text().splitlines()
    written = [json.loads(each) for each in lines if "rockoon-cluster" in each]
    rounds = [
        base64.b64decode(each["rockoon-cluster"]["cluster-secret"]).decode().split()
        for each in written
    ]
    assert [len(each) for each in rounds] == [1, 2, 2, 1]
    assert rounds[3] == [rounds[1][1]]
    # The pods of the four services had read the file of each round before the next round.
    for service in ("nameserver", "broker", "offset", "gateway"):
        read = (cluster.state / f"rockoon-{service}.read").read_bytes()
        assert read.decode().split() == rounds[2]


def test_a_pod_that_does_not_read_the_secret_ends_the_rotation(cluster: FakeCluster) -> None:
    made(environment=cluster.environment)
    cluster.run_pods(build(ROOT / "overlays/production"))
    before = cluster.secret("rockoon-cluster")
    said = made("--rotate", "cluster", "--wait", "0", status=1, environment=cluster.environment)
    assert "rockoon-broker/main" in said
    assert "run this command again" in said
    assert cluster.secret("rockoon-cluster") == before


def test_a_missing_pod_of_the_administrator_is_named_with_its_manifest(
    cluster: FakeCluster,
) -> None:
    said = made("--rotate", "key", "jobs", status=1, environment=cluster.environment)
    assert 'pods "rockoon-admin" not found' in said
    assert "examples/admin.yaml" in said


@pytest.fixture(scope="module")
def signed() -> Iterator[dict[str, str]]:
    """Environment of an administrator's commands in a running cluster with access keys."""
    with DisposableCluster(access=True, single=True) as running:
        key = running.access
        assert key is not None
        yield {
            "ROCKOON": str(Path(sys.executable).with_name("rockoon")),
            "ROCKOON_NAMESERVERS": running.nameservers[0],
            "ROCKOON_ACCESS_KEY": key.id,
            "ROCKOON_ACCESS_SECRET": key.secret,
        }


def test_an_access_key_is_created_in_the_cluster_and_rotated(
    signed: dict[str, str], tmp_path: Path
) -> None:
    create = ("--output", str(tmp_path), "--key", "jobs", "--allow", "cluster=read")
    secret = ("--secret", "rockoon-client-access")
    place = tmp_path / "rockoon-client-access"

    def status() -> int:
        """Exit status of a command that signs with the Secret."""
        own = {
            "ROCKOON_ACCESS_KEY": (place / "key").read_text(),
            "ROCKOON_ACCESS_SECRET": (place / "secret").read_text(),
        }
        command = [*shlex.split(signed["ROCKOON"]), "status"]
        return subprocess.run(
            command, env=os.environ | signed | own, capture_output=True
        ).returncode

    made(*create, *secret, environment=signed)
    assert status() == 0
    first = (place / "secret").read_bytes()
    assert "kept" in made(*create, *secret, environment=signed)
    assert (place / "secret").read_bytes() == first
    said = made(
        *("--output", str(tmp_path), "--key", "ops", "--allow", "cluster=read"),
        *secret,
        status=1,
        environment=signed,
    )
    assert "has another key, 'jobs'" in said
    rotate = ("--output", str(tmp_path), "--rotate", "key", "jobs")
    assert "renewed" in made(*rotate, *secret, environment=signed)
    assert (place / "secret").read_bytes() != first
    assert status() == 0
    # A key of the cluster whose Secret was deleted is not created again.
    for each in place.iterdir():
        each.unlink()
    place.rmdir()
    assert "jobs" in made(*create, *secret, status=1, environment=signed)
    assert "created" in made(*rotate, *secret, environment=signed)
    assert status() == 0
