"""The example manifests: pods of clients and administrators, and an etcd of three members."""

import http.client
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import ROOT, Document, Overlay, build, containers, name_of, pod_of
from deploy.network import Place, lets_through, place_of
from deploy.pods import certificates, secret_mounts
from deploy.test_manifests import LEAST_KUBERNETES, RESTRICTED_VOLUMES

from rockoon.local.directory import choose_port
from rockoon.net import access, tls
from support.etcd import etcd_binary
from support.waiting import wait_until

MEMBERS = [f"etcd-{index}" for index in range(3)]
PODS = {"client": "rockoon-dev", "client-production": "rockoon", "admin": "rockoon"}
CALLED = {"rockoon-nameserver": 9876, "rockoon-broker": 10911, "rockoon-offset": 10912}


def example(name: str) -> Document:
    """The pod of an example, as the only pod of a workload."""
    pod = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    kubernetes_validate.validate(pod, LEAST_KUBERNETES, strict=True)
    return {"kind": "Pod", "metadata": pod["metadata"], "spec": {"template": pod}}


@pytest.fixture(scope="module")
def production() -> Overlay:
    """The production overlay and its etcd."""
    parts = [build(ROOT / "overlays/production"), build(ROOT / "examples/etcd3")]
    return Overlay([document for part in parts for document in part.documents])


@pytest.fixture(scope="module")
def etcd(production: Overlay) -> Document:
    return production.named("StatefulSet", "etcd")


def test_the_api_takes_every_manifest_and_namespaces_that_restrict_pods_too(
    production: Overlay, etcd: Document
) -> None:
    for version in (LEAST_KUBERNETES, kubernetes_validate.latest_version()):
        for document in production.documents:
            kubernetes_validate.validate(document, version, strict=True)
    for workload in [etcd, *map(example, PODS)]:
        pod = pod_of(workload)["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert all(volume.keys() - {"name"} <= RESTRICTED_VOLUMES for volume in pod["volumes"])
        for container in containers(workload):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", PODS)
def test_a_client_may_call_the_cluster_by_a_name_in_its_certificate(name: str) -> None:
    workload = example(name)
    overlay = build(ROOT / "overlays" / ("dev" if name == "client" else "production"))
    for target, port in CALLED.items():
        place = place_of(
            overlay.named(
                "Deployment" if target == "rockoon-nameserver" else "StatefulSet", target
            ),
            overlay.namespace,
        )
        # From its own namespace, and from another one.
        for namespace in (overlay.namespace, "shop"):
            assert lets_through(overlay, place_of(workload, namespace), place, port)
    (container,) = containers(workload)
    environment = overlay.environment(workload, container)
    host = environment["ROCKOON_NAMESERVERS"].removesuffix(":9876")
    assert host == f"rockoon-nameserver.{overlay.namespace}.svc"
    if name == "client":
        return
    assert host in certificates()["rockoon-nameserver-tls"][1]
    settings = tls.from_environment(environment)
    assert settings is not None
    mounted = {secret: path for path, secret in secret_mounts(workload, container).items()}
    own = mounted.pop("rockoon-client-tls")
    named = (str(settings.ca), str(settings.certificate), str(settings.key))
    assert named == (f"{own}/ca.crt", f"{own}/tls.crt", f"{own}/tls.key")
    ((secret, path),) = mounted.items()
    file = {"rockoon-access-client": "secret", "rockoon-cluster": "cluster-secret"}[secret]
    assert environment["ROCKOON_ACCESS_SECRET_FILE"] == f"{path}/{file}"


def test_the_administrator_signs_with_the_key_of_services(tmp_path: Path) -> None:
    workload = example("admin")
    (container,) = containers(workload)
    file = tmp_path / "cluster-secret"
    file.write_text("x" * 32)
    variables = {each["name"]: each["value"] for each in container["env"]}
    key = access.from_environment(variables | {"ROCKOON_ACCESS_SECRET_FILE": str(file)})
    assert key is not None
    assert key.id == "rockoon"


def test_etcd_is_called_by_nameservers_and_its_members_only(
    production: Overlay, etcd: Document
) -> None:
    place = place_of(etcd, production.namespace)
    callers = {
        name_of(each): place_of(each, production.namespace) for each in production.workloads
    } | {
        "client": place_of(example("client-production"), production.namespace),
        "Prometheus": Place({"rockoon-monitoring": "true"}, "monitoring"),
        "outside": Place(),
    }
    ports = {"client": {"etcd", "rockoon-nameserver"}, "peer": {"etcd"}, "metrics": {"Prometheus"}}
    for port, expected in ports.items():
        found = {
            name
            for name, caller in callers.items()
            if lets_through(production, caller, place, place.ports[port])
        }
        assert found == expected, port


def test_nameservers_call_the_members_that_there_are(production: Overlay, etcd: Document) -> None:
    ((workload, container),) = [
        each for each in production.services() if name_of(each[0]) == "rockoon-nameserver"
    ]
    service = production.named("Service", etcd["spec"]["serviceName"])
    called = production.settings(workload, container).value.etcd
    assert list(called) == [f"{member}.{name_of(service)}:2379" for member in MEMBERS]
    assert etcd["spec"]["replicas"] == len(MEMBERS)
    (member,) = containers(etcd)
    (cluster,) = [each for each in member["args"] if each.startswith("--initial-cluster=")]
    expected = ",".join(f"{each}=https://{each}.{name_of(service)}:2380" for each in MEMBERS)
    assert cluster == f"--initial-cluster={expected}"


class Members:
    """The members of the manifest, as processes with addresses of this machine.

    Args:
        etcd: the StatefulSet.
        folder: an empty directory.
    """

    def __init__(self, etcd: Document, folder: Path) -> None:
        self.folder = folder
        (container,) = containers(etcd)
        self._arguments: list[str] = container["args"]
        ports: set[int] = set()
        while len(ports) < 3 * len(MEMBERS):
            ports.add(choose_port(ports))
        chosen = iter(ports)
        self.ports = {
            member: {port: next(chosen) for port in (2379, 2380, 2381)} for member in MEMBERS
        }
        self.secrets = folder / "secrets"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        script = [sys.executable, str(ROOT / "make_secrets.py"), "--output", str(self.secrets)]
        subprocess.run(script, check=True, capture_output=True)

    def command(self, member: str) -> list[str]:
        return [etcd_binary(), *(self._here(each, member) for each in self._arguments)]

    def _here(self, argument: str, member: str) -> str:
        text = argument.replace("$(MEMBER)", member).replace("/tls/", f"{self.secrets}/etcd-tls/")
        text = text.replace("/data/", f"{self.folder}/{member}/")
        for port, own in self.ports[member].items():
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{own}")
        for each in MEMBERS:
            for port, own in self.ports[each].items():
                text = text.replace(f"{each}.etcd:{port}", f"127.0.0.1:{own}")
        return text

    def start(self, member: str, **environment: str) -> None:
        with (self.folder / f"{member}.log").open("ab") as log:
            self.processes[member] = subprocess.Popen(
                self.command(member), stdout=log, stderr=log, env=os.environ | environment
            )

    def end(self, member: str) -> None:
        """Kill a member, and delete its disk."""
        process = self.processes.pop(member)
        process.kill()
        process.wait()
        shutil.rmtree(self.folder / member)

    def control(self, *words: str) -> str:
        """Run etcdctl as docs/operate/kubernetes-operations.md does, on the first member."""
        files = self.secrets / "rockoon-etcd-client-tls"
        environment = {
            "ETCDCTL_ENDPOINTS": f"https://localhost:{self.ports[MEMBERS[0]][2379]}",
            "ETCDCTL_CACERT": str(files / "ca.crt"),
            "ETCDCTL_CERT": str(files / "tls.crt"),
            "ETCDCTL_KEY": str(files / "tls.key"),
        }
        command = [etcd_binary("etcdctl"), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return done.stdout

    def adds(self, member: str, peer: str) -> bool:
        """Add a member; etcd refuses until its members have been connected for five seconds."""
        try:
            self.control("member", "add", member, "--peer-urls", peer)
        except subprocess.CalledProcessError as failure:
            assert "unhealthy cluster" in failure.stderr, failure.stderr
            return False
        return True

    def __enter__(self) -> "Members":
        for member in MEMBERS:
            self.start(member)
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.processes):
            self.end(member)

    def healthy(self, member: str) -> bool:
        """Whether the member answers its readiness probe."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[member][2381])
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def answers(self, port: int, secret: str) -> bool:
        """Whether the first member answers a client with the certificate of a Secret."""
        place = self.secrets / secret
        context = ssl.create_default_context(cafile=str(self.secrets / "etcd-tls/ca.crt"))
        context.load_cert_chain(place / "tls.crt", place / "tls.key")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.ports[MEMBERS[0]][port], context=context
        )
        try:
            connection.request("GET", "/version")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def test_three_members_elect_and_accept_certificates_of_their_own_authority(
    etcd: Document, tmp_path: Path
) -> None:
    with Members(etcd, tmp_path) as members:
        for member in MEMBERS:
            wait_until(lambda member=member: members.healthy(member), f"{member} to be healthy")
        assert members.answers(2379, "rockoon-etcd-client-tls")
        assert not members.answers(2379, "rockoon-client-tls"), "another authority"
        assert members.answers(2380, "etcd-tls")
        assert not members.answers(2380, "rockoon-etcd-client-tls"), "a client is no member"
        snapshot = tmp_path / "etcd.snapshot"
        members.control("snapshot", "save", str(snapshot))
        assert snapshot.stat().st_size


def test_a_member_with_a_lost_disk_is_replaced(etcd: Document, tmp_path: Path) -> None:
    ((environment,),) = [
        [each for each in container["env"] if "CLUSTER_STATE" in each["name"]]
        for container in containers(etcd)
    ]
    assert environment["valueFrom"]["configMapKeyRef"]["key"] == "initial-cluster-state"
    with Members(etcd, tmp_path) as members:
        for member in MEMBERS:
            wait_until(lambda member=member: members.healthy(member), f"{member} to be healthy")
        lost = MEMBERS[-1]
        members.end(lost)
        lines = [line.split(", ") for line in members.control("member", "list").splitlines()]
        ((number, *_),) = [words for words in lines if words[2] == lost]
        members.control("member", "remove", number)
        peer = f"https://127.0.0.1:{members.ports[lost][2380]}"
        wait_until(lambda: members.adds(lost, peer), "etcd to accept a new member")
        members.start(lost, **{environment["name"]: "existing"})
        wait_until(lambda: members.healthy(lost), "the new member to be healthy")
        assert members.control("member", "list").count(", started, ") == len(MEMBERS)
