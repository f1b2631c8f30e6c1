"""Pods of an overlay run here, as processes: their settings, their files, ports of this machine.

A pod has the settings of the manifests, except for places: mounted files are in a directory, and an
address is one of 127.0.0.1. Certificates are still compared with the manifests' names.
"""

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from deploy.manifests import POD_IP, ROOT, Document, Overlay, build, name_of, pod_of, service_of
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon.local.authority import Authority
from rockoon.local.directory import choose_port
from rockoon.local.node_maker import MODULES
from rockoon.local.process import Node, NodeKind
from rockoon_core.signature import CLUSTER_KEY_ID, AccessKey, new_secret
from support.etcd import EtcdServer
from support.waiting import DEADLINE_SECONDS

SECONDS_MAX = 60.0
HERE = "127.0.0.1"
# In the order in which they need each other.
ORDER = ("nameserver", "broker", "offset", "gateway")
# The keys of a Secret that cert-manager writes, and those that the manifests mount.
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
# Secret with which RocketMQ's clients sign, in the form that a gateway reads.
CLIENT_SECRETS, CLIENT_SECRETS_FILE = "rockoon-gateway-clients", "client-secrets"
# Secret with which services sign their own calls.
CLUSTER_SECRET, CLUSTER_SECRET_FILE = "rockoon-cluster", "cluster-secret"


def secret_mounts(workload: Document, container: Document) -> dict[str, str]:
    """Return where a container finds its Secrets: mount path to the Secret's name."""
    volumes = {each["name"]: each for each in pod_of(workload)["spec"].get("volumes", [])}
    return {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in container.get("volumeMounts", [])
        if "secret" in volumes.get(mount["name"], {})
    }


def certificates() -> dict[str, tuple[str, list[str]]]:
    """Return the requests to cert-manager: the Secret's name to common name and DNS names."""
    return {
        each["spec"]["secretName"]: (each["spec"]["commonName"], each["spec"].get("dnsNames", []))
        for each in build(ROOT / "cert-manager").of_kind("Certificate")
    }


class Secrets:
    """The Secrets of an overlay with TLS, as a directory each.

    Args:
        directory: for them and their authorities.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = Authority(directory / "authority")
        # The operator of etcd has a separate authority.
        self.etcd_authority = Authority(directory / "etcd-authority")

    @property
    def cluster_key(self) -> AccessKey:
        """The access key of the services."""
        secret = (self.directory(CLUSTER_SECRET) / CLUSTER_SECRET_FILE).read_text()
        return AccessKey(CLUSTER_KEY_ID, secret)

    def directory(self, secret: str) -> Path:
        """Return one Secret's files, created at the first call."""
        place = self._directory / secret
        if secret == CLIENT_SECRETS and not place.exists():
            place.mkdir()
            (place / CLIENT_SECRETS_FILE).touch()
        if secret == CLUSTER_SECRET and not place.exists():
            place.mkdir()
            (place / CLUSTER_SECRET_FILE).write_text(new_secret())
        if not place.exists():
            place.mkdir()
            authority = self.authority
            common_name, names = certificates().get(secret, (secret, []))
            if secret == "rockoon-etcd-client-tls":
                authority = self.etcd_authority
            # Replicas call each other at addresses of this machine. Callers of a gateway name the
            # host that they expect.
            hosts = names if secret == "rockoon-gateway-tls" else [*names, HERE]
            issued = authority.issue(common_name, hosts=hosts)
            for name, path in (
                (CERTIFICATE, issued.certificate),
                (KEY, issued.key),
                (CA, authority.ca),
            ):
                (place / name).write_bytes(path.read_bytes())
        return place


@dataclass(frozen=True, slots=True)
class Pod:
    """The first pod of a workload, running.

    Attributes:
        container: the container that runs.
        node: its process.
        places: address in the manifests to address here, as this pod has them.
        advertised: the addresses that it registers.
    """

    container: Document
    node: Node
    places: Mapping[str, str]
    advertised: str

    def probed(self, probe: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        """Return the replies to the node's kubelet."""
        asked = self.container[probe]["grpc"]
        address = self.places[f"0.0.0.0:{asked['port']}"]
        with grpc.insecure_channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service=asked.get("service", ""))
            return (
                health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_SECONDS).status
            )


@contextmanager
def running(
    overlay: Overlay, directory: Path, *, advertised_here: bool = False
) -> Iterator[tuple[dict[str, Pod], Secrets]]:
    """Run the first pod of each workload, of a log with copies all, with an etcd; yields them by
    name, and the first of each service by that.

    overlay: name of the overlay.
        overlay: which.
        directory: an empty directory for all files.
        advertised_here: brokers and the offset service register their addresses here, so that
            clients can call them; otherwise those of the manifests, which have no names here.
    """
    secrets = Secrets(directory)
    services = sorted(overlay.services(), key=lambda each: ORDER.index(service_of(each[1])))
    nameserver = overlay.settings(*services[0]).value
    with ExitStack() as stack:
        etcd_directory = directory / "etcd"
        etcd_directory.mkdir()
        flags = etcd_flags(secrets, nameserver.etcd) if nameserver.etcd_tls == "on" else []
        etcd = stack.enter_context(EtcdServer(etcd_directory, tls_flags=flags))
        shared = dict.fromkeys(nameserver.etcd, etcd.endpoint)
        pods: dict[str, Pod] = {}
        for workload, container in services:
            made = [
                started(
                    *(overlay, workload, container, index, shared, directory, secrets, stack),
                    advertised_here=advertised_here,
                )
                for index in range(copies_of(overlay, workload, container))
            ]
            for pod in made:
                pod.node.wait_ready(time.monotonic() + SECONDS_MAX)
            pods.setdefault(service_of(container), made[0])
            pods |= {pod.node.name: pod for pod in made}
            shared[f"{name_of(workload)}:{port_of(container)}"] = made[0].node.address
        yield pods, secrets


def copies_of(overlay: Overlay, workload: Document, container: Document) -> int:
    """Return the number of pods that a workload needs to serve."""
    return int(getattr(overlay.settings(workload, container).value, "copies", 1))


def port_of(container: Document) -> int:
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "grpc"]
    return int(port)


def etcd_flags(secrets: Secrets, endpoints: tuple[str, ...]) -> list[str]:
    """An etcd that is called by the names in the settings, and requires certificates."""
    hosts = [each.rpartition(":")[0] for each in endpoints]
    own = secrets.etcd_authority.issue("etcd", hosts=hosts)
    return [
        f"--cert-file={own.certificate}",
        f"--key-file={own.key}",
        "--client-cert-auth",
        f"--trusted-ca-file={secrets.etcd_authority.ca}",
    ]


def started(
    overlay: Overlay,
    workload: Document,
    container: Document,
    index: int,
    shared: Mapping[str, str],
    directory: Path,
    secrets: Secrets,
    stack: ExitStack,
    *,
    advertised_here: bool,
) -> Pod:
    service = service_of(container)
    settings = overlay.settings(workload, container, index).value
    ports: set[int] = set()
    for _ in container["ports"]:
        ports.add(choose_port(ports))
    here = [f"127.0.0.1:{port}" for port in ports]
    listened = [f"0.0.0.0:{each['containerPort']}" for each in container["ports"]]
    own = dict(zip(listened, here, strict=True))
    root = directory / f"{name_of(workload)}-{index}"
    root.mkdir()
    of_pod = {each.replace("0.0.0.0", POD_IP): real for each, real in own.items()}
    places = own | of_pod | shared | mounts(workload, container, root, secrets)

    def placed(text: str) -> str:
        for place, real in places.items():
            text = text.replace(place, real)
        return text

    for path, content in overlay.files(workload, container).items():
        (root / path.lstrip("/")).parent.mkdir(exist_ok=True)
        (root / path.lstrip("/")).write_text(placed(content))
    environment = {
        name: placed(value)
        for name, value in overlay.environment(workload, container, index).items()
    }
    is_called = advertised_here or copies_of(overlay, workload, container) > 1
    if is_called and service in ("broker", "offset"):
        # By other replicas, or a gateway, and addresses here have no names.
        environment[f"ROCKOON_{service.upper()}_ADVERTISE"] = own[f"0.0.0.0:{port_of(container)}"]
    if service == "nameserver":
        # Production refuses the one that comes along.
        environment["ROCKOON_NAMESERVER_ETCD_VERSION_CHECK"] = "warn"
    # Addresses here have no names: each is held to the name that the manifests call it by.
    if settings.tls != "off" and service in ("broker", "offset") and not is_called:
        called = settings.nameservers[0].rpartition(":")[0]
        environment[f"ROCKOON_{service.upper()}_TLS_SERVER_NAME"] = called
    if service == "nameserver" and settings.etcd_tls == "on":
        called = settings.etcd[0].rpartition(":")[0]
        environment["ROCKOON_NAMESERVER_ETCD_TLS_SERVER_NAME"] = called
    kind = NodeKind(service)
    arguments = [placed(each) for each in container["args"]]
    node = Node(
        f"{name_of(workload)}-{index}",
        kind,
        int(own[f"0.0.0.0:{port_of(container)}"].rpartition(":")[2]),
        [sys.executable, "-m", MODULES[kind], "--stop-with-parent", *arguments],
        root / "log",
        environment=environment,
        on_unexpected_end=lambda _: None,
    )
    node.launch()
    stack.callback(end, node)
    return Pod(container, node, own, getattr(settings, "advertise", ""))


def mounts(workload: Document, container: Document, root: Path, secrets: Secrets) -> dict[str, str]:
    """Where each mounted directory is here."""
    found = {
        f"{path}/": f"{secrets.directory(secret)}/"
        for path, secret in secret_mounts(workload, container).items()
    }
    for mount in container["volumeMounts"]:
        path = mount["mountPath"]
        if f"{path}/" not in found:
            found[f"{path}/"] = f"{root}{path}/"
    return found


def end(node: Node) -> None:
    node.signal(signal.SIGTERM)
    if node.wait_ended(SECONDS_MAX) is None:
        node.signal(signal.SIGKILL)
        node.wait_ended(SECONDS_MAX)
