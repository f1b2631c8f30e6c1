"""Checks of names in requests, and of nodes that register. Pure; no request to etcd."""

from collections.abc import Iterable, Mapping

from rockoon_core.errors import GroupNotFound, TopicNotFound, WrongCluster
from rockoon_core.protocol import PROTOCOL
from rockoon_format.names import group_fault, topic_fault
from rockoon_proto.v1.nameserver_pb2 import Node, RegisterNodeRequest


def refuse_impossible_topic(name: str) -> None:
    """Raises TopicNotFound for an invalid topic name, which must not become part of a key."""
    if topic_fault(name):
        raise TopicNotFound(topic=name)


def refuse_impossible_group(name: str) -> None:
    """Raises GroupNotFound for an invalid group name, which must not become part of a key."""
    if group_fault(name):
        raise GroupNotFound(group=name)


# With both in one cluster, one node would accept calls without a key that another node refuses.
# "optional" is the step between them.
APART = {'"off"', '"on"'}


class Fingerprints:
    """Compares settings of a registering node with those of its cluster's nodes."""

    def __init__(self, cluster: str, nameserver: str, settings: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._nameserver = nameserver
        self._settings = settings

    def check(self, request: RegisterNodeRequest, cluster_id: int, level: int) -> None:
        """Refuse the registration of a node whose cluster, protocol, level or settings differ from
        this cluster's. Nodes that are already registered stay.

        Args:
            cluster_id: the cluster's identity; 0 while unknown.

        Raises:
            WrongCluster: the node has the store of another cluster, speaks a protocol that this
                nameserver does not know, lacks the feature level of the cluster, or differs in a
                setting that must be equal.
        """
        if request.lease_id:
            return
        name = request.node.name
        if 0 not in (request.cluster_id, cluster_id) and request.cluster_id != cluster_id:
            self._refuse(
                f"the store of {name!r} belongs to cluster {request.cluster_id:016x}, this one is "
                f"{cluster_id:016x}"
            )
        if request.protocol > PROTOCOL:
            self._refuse(
                f"{name!r} speaks protocol {request.protocol}, and nameserver "
                f"{self._nameserver!r} only {PROTOCOL}: upgrade the nameservers first"
            )
        if request.node.level < level:
            self._refuse(
                f"{name!r} is of a former version: it supports feature level {request.node.level}, "
                f"and the upgrade of the cluster to level {level} is finished. Start a version "
                f"that supports level {level}"
            )
        here = self._settings.get("access", "")
        there = request.node.shared_settings.get("access", "")
        if {here, there} == APART:
            self._refuse(
                f"{name!r} has access = {there}, and nameserver {self._nameserver!r} {here}: it "
                "has to be the same everywhere"
            )

    def differences(self, node: Node, nodes: Iterable[Node]) -> list[str]:
        """Return a sentence for each setting of a node that should be equal and is not.

        It is compared with this nameserver, and with the first other node of its kind.
        """
        others = [
            each
            for each in nodes
            if each.kind == node.kind and each.name != node.name and each.shared_settings
        ]
        compared: list[tuple[str, Mapping[str, str]]] = [
            (f"nameserver {self._nameserver!r}", self._settings),
            *((repr(each.name), each.shared_settings) for each in others[:1]),
        ]
        return [
            f"{setting} = {value}, and {there[setting]} at {name}"
            for name, there in compared
            for setting, value in sorted(node.shared_settings.items())
            if setting in there and there[setting] != value
        ]

    def _refuse(self, reason: str) -> None:
        raise WrongCluster(reason, cluster=self._cluster, wanted=self._cluster)
