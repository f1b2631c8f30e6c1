"""What a cluster gets from its provider: DNS, disks for claims, addresses of load balancers.

Usage: cloud.py STATE. The file `dns-seconds` of the state's folder has the maximum age of a DNS
answer: 5 for CoreDNS, 30 for NodeLocal DNSCache and kubeadm's Corefile. A negative answer is at
most 5 s old. The program runs in the network of node 0 and imports the standard library only.
"""

import http.client
import ipaddress
import json
import shutil
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ADDRESS = ("10.88.0.1", 53)
API = ("10.88.0.1", 6443)
BALANCER_PREFIX = "10.99.0."
POLL_SECONDS = 0.3
DISKS_SECONDS = 1.0
NEGATIVE_SECONDS_MAX = 5.0
TTL_SECONDS = 5
TYPE_A = 1
DOMAIN = "svc.cluster.local"
PROVISIONER = "rockoon/disks"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


class Api:
    """The API server, with the administrator's certificate."""

    def __init__(self, state: Path) -> None:
        context = ssl.create_default_context(cafile=state / "pki" / "ca.crt")
        context.load_cert_chain(state / "pki" / "admin.crt", state / "pki" / "admin.key")
        self._connection = http.client.HTTPSConnection(*API, context=context, timeout=10)

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Any:
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, path, raw, {"Content-Type": kind})
        reply = self._connection.getresponse()
        data = reply.read()
        if reply.status >= 300:
            raise OSError(f"{method} {path}: {reply.status} {data[:200]!r}")
        return json.loads(data)

    def items(self, path: str) -> list[Any]:
        found: list[Any] = self.call("GET", path)["items"]
        return found


class Names:
    """DNS answers that are as old as a cache's.

    Args:
        age: file with the maximum age of an answer in seconds.
    """

    def __init__(self, age: Path) -> None:
        self._age = age
        self._names: Mapping[str, list[str]] = {}
        self._answers: dict[str, tuple[float, bool, list[str]]] = {}

    def update(self, services: list[Any], slices: list[Any]) -> None:
        """Replace the names by the names of these Services and EndpointSlices."""
        names: dict[str, list[str]] = {}
        for service in services:
            address = service["spec"].get("clusterIP")
            has_address = address not in (None, "", "None")
            names[_domain(service["metadata"])] = [address] if has_address else []
        headless = {name for name, addresses in names.items() if not addresses}
        for each in slices:
            meta = each["metadata"]
            service_name = meta["labels"].get("kubernetes.io/service-name")
            name = f"{service_name}.{meta['namespace']}.{DOMAIN}"
            for endpoint in each.get("endpoints") or []:
                # Services with publishNotReadyAddresses report their pods as ready.
                if endpoint["conditions"].get("ready") is False:
                    continue
                if endpoint.get("hostname"):
                    own = names.setdefault(f"{endpoint['hostname']}.{name}", [])
                    own.extend(endpoint["addresses"])
                if name in headless:
                    names[name].extend(endpoint["addresses"])
        self._names = names

    def look_up(self, name: str) -> tuple[bool, list[str]]:
        """Return whether the name exists, and its addresses."""
        now = time.monotonic()
        found = self._answers.get(name)
        if found is None or found[0] <= now:
            names = self._names
            addresses = names.get(name, [])
            exists = name in names or any(each.endswith("." + name) for each in names)
            # The program is not restarted for another age: a query without a reply costs 5 s.
            age = float(self._age.read_text())
            age = age if addresses else min(age, NEGATIVE_SECONDS_MAX)
            found = self._answers[name] = (now + age, exists, addresses)
        return found[1:]

    def answer(self, question: bytes) -> bytes:
        """Return the reply to a DNS message with one question."""
        (identity,) = struct.unpack("!H", question[:2])
        at, labels = 12, []
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
            at += question[at] + 1
        (kind,) = struct.unpack("!H", question[at + 1 : at + 3])
        exists, addresses = self.look_up(".".join(labels))
        if kind != TYPE_A:
            addresses = []
        flags = 0x8580 | (0 if exists else 3)
        head = struct.pack("!HHHHHH", identity, flags, 1, len(addresses), 0, 0)
        rows = (
            b"\xc0\x0c\x00\x01\x00\x01"
            + struct.pack("!IH", TTL_SECONDS, 4)
            + ipaddress.ip_address(address).packed
            for address in addresses
        )
        return head + question[12 : at + 5] + b"".join(rows)


def _domain(meta: Mapping[str, Any]) -> str:
    return f"{meta['name']}.{meta['namespace']}.{DOMAIN}"


def provide_disks(api: Api, state: Path) -> None:
    """Create a volume for each claim that has a node, and delete the volumes of deleted claims."""
    for claim in api.items("/api/v1/persistentvolumeclaims"):
        meta, spec = claim["metadata"], claim["spec"]
        selected = (meta.get("annotations") or {}).get("volume.kubernetes.io/selected-node")
        is_pending = claim["status"].get("phase") == "Pending"
        path = state / "disks" / f"pvc-{meta['uid']}"
        if (
            is_pending
            and selected
            and spec.get("storageClassName") == "disks"
            and not path.exists()
        ):
            path.mkdir(parents=True)
            api.call("POST", "/api/v1/persistentvolumes", volume(meta, spec, path))
        if claim["status"].get("phase") == "Bound":
            enlarge(api, claim)
    for each in api.items("/api/v1/persistentvolumes"):
        meta = each["metadata"]
        is_ours = (meta.get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
        is_free = each["status"].get("phase") in ("Released", "Failed")
        if is_ours and is_free and not meta.get("deletionTimestamp"):
            shutil.rmtree(each["spec"]["local"]["path"], ignore_errors=True)
            api.call("DELETE", f"/api/v1/persistentvolumes/{meta['name']}")


def enlarge(api: Api, claim: Any) -> None:
    """Grant a larger request; a directory has the size of this machine's disk."""
    wanted = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
    if claim["status"].get("capacity") == wanted:
        return
    kind = "application/merge-patch+json"
    own = f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}"
    api.call("PATCH", own, {"spec": {"capacity": wanted}}, kind)
    meta = claim["metadata"]
    own = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}/status"
    api.call("PATCH", own, {"status": {"capacity": wanted}}, kind)


def volume(meta: Mapping[str, Any], spec: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return a volume in a directory of this machine; all nodes can mount it, as a cloud's disk."""
    on_any_node = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    claim = {key: meta[key] for key in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": path.name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "disks",
            "local": {"path": str(path)},
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **claim},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [on_any_node]}]}
            },
        },
    }


def provide_balancers(api: Api, services: list[Any], given: dict[str, str]) -> None:
    """Assign an address to each Service of type LoadBalancer that has none."""
    for service in services:
        meta, status = service["metadata"], service.get("status") or {}
        is_balancer = service["spec"].get("type") == "LoadBalancer"
        if not is_balancer or (status.get("loadBalancer") or {}).get("ingress"):
            continue
        address = given.setdefault(meta["uid"], f"{BALANCER_PREFIX}{len(given) + 1}")
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}/status"
        ingress = [{"ip": address, "ipMode": "VIP"}]
        patch = {"status": {"loadBalancer": {"ingress": ingress}}}
        api.call("PATCH", path, patch, "application/merge-patch+json")


def follow(state: Path, names: Names) -> None:
    """Poll the API server for ever."""
    api: Api | None = None
    given: dict[str, str] = {}
    disks_at = 0.0
    while True:
        try:
            api = api or Api(state)
            services = api.items("/api/v1/services")
            names.update(services, api.items("/apis/discovery.k8s.io/v1/endpointslices"))
            if time.monotonic() > disks_at:
                disks_at = time.monotonic() + DISKS_SECONDS
                provide_disks(api, state)
                provide_balancers(api, services, given)
        except (OSError, http.client.HTTPException) as failure:
            print(f"the API server does not answer: {failure!r}; polling again", flush=True)
            api = None
        time.sleep(POLL_SECONDS)


def serve_tcp(names: Names) -> None:
    listener = socket.create_server(ADDRESS)
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError, struct.error, IndexError):
            connection.settimeout(2)
            reply = names.answer(connection.recv(4096)[2:])
            connection.sendall(struct.pack("!H", len(reply)) + reply)


def main() -> None:
    state = Path(sys.argv[1])
    names = Names(state / "dns-seconds")
    threading.Thread(target=follow, args=(state, names), daemon=True).start()
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(ADDRESS)
    threading.Thread(target=serve_tcp, args=(names,), daemon=True).start()
    while True:
        question, peer = listener.recvfrom(4096)
        with suppress(OSError, struct.error, IndexError):
            listener.sendto(names.answer(question), peer)


if __name__ == "__main__":
    main()
