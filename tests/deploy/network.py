"""Connections that NetworkPolicies allow.

By the API's documentation, policies of a pod add up, a pod without a policy for a direction is open
in it, and a connection must be allowed on both sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.manifests import Document, Overlay, containers, pod_of


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a connection.

    Attributes:
        labels: of the pod; empty for other peers.
        namespace: of the pod; empty for other peers.
        ports: of its containers, name to number.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)


def place_of(workload: Document, namespace: str) -> Place:
    """Return the pods of a workload or a job."""
    ports = {
        each["name"]: each["containerPort"]
        for container in containers(workload)
        for each in container.get("ports", [])
    }
    return Place(pod_of(workload)["metadata"]["labels"], namespace, ports)


def lets_through(overlay: Overlay, source: Place, target: Place, port: int) -> bool:
    """Return whether a TCP connection is possible."""
    policies = overlay.of_kind("NetworkPolicy")
    out = directed(overlay, policies, "Egress", source, target, target, port)
    return out and directed(overlay, policies, "Ingress", target, source, target, port)


def directed(
    overlay: Overlay,
    policies: list[Document],
    direction: str,
    here: Place,
    there: Place,
    target: Place,
    port: int,
) -> bool:
    rules, closed = [], False
    for policy in policies:
        spec = policy["spec"]
        ours = here.namespace == overlay.namespace and selects(spec["podSelector"], here.labels)
        if ours and direction in spec["policyTypes"]:
            closed = True
            rules += spec.get(direction.lower(), [])
    sides = {"Ingress": "from", "Egress": "to"}
    return not closed or any(
        allows(overlay, rule, rule.get(sides[direction]), there, target, port) for rule in rules
    )


def allows(
    overlay: Overlay,
    rule: Document,
    peers: list[Document] | None,
    there: Place,
    target: Place,
    port: int,
) -> bool:
    wanted = rule.get("ports")
    numbers = [
        target.ports.get(str(each["port"]), each["port"])
        for each in wanted or []
        if each.get("protocol", "TCP") == "TCP"
    ]
    if wanted is not None and port not in numbers:
        return False
    return not peers or any(is_peer(overlay, peer, there) for peer in peers)


def is_peer(overlay: Overlay, peer: Document, there: Place) -> bool:
    if "ipBlock" in peer:
        return True
    if not there.namespace:
        return False
    # Namespaces differ by name only: no policy of ours selects them by labels.
    assert peer.get("namespaceSelector", {}) == {}
    if "namespaceSelector" not in peer and there.namespace != overlay.namespace:
        return False
    return selects(peer.get("podSelector", {}), there.labels)


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects a pod."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
