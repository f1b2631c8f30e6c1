"""Leases and leaders of a local cluster, from its etcd."""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rockoon.local import LocalCluster
from support.etcd import etcd_binary

PREFIX = "/rockoon/"
AGAIN_SECONDS = 0.2
SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Registrations:
    """All registered nodes and the leaders of all logs, at one moment.

    Attributes:
        leases: lease of each node, by its name.
        leaders: epoch of each log and name of the node that leads it, by the log's name.
    """

    leases: Mapping[str, int]
    leaders: Mapping[str, tuple[int, str]]

    def lost_since(self, before: "Registrations") -> list[str]:
        """Return leases that were lost and leaders that were deposed since an earlier moment."""
        found = [
            f"{name} lost its lease"
            for name, lease in before.leases.items()
            if self.leases.get(name) != lease
        ]
        for log, (epoch, name) in before.leaders.items():
            now = self.leaders.get(log)
            if now != (epoch, name):
                found.append(f"{name} led log {log} in epoch {epoch}; now: {now}")
        return found


async def registrations(local: LocalCluster) -> Registrations:
    """Read the registrations from etcd.

    Raises:
        RuntimeError: etcd does not reply.
    """
    tls = local.tls
    scheme, flags = ("http", []) if tls is None else ("https", ["--cacert", str(tls.ca)])
    asked = await asyncio.create_subprocess_exec(
        etcd_binary("etcdctl"),
        *("--endpoints", f"{scheme}://{local.node('etcd').address}", *flags),
        *("get", "--prefix", PREFIX, "-w", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    answer, failure = await asked.communicate()
    if asked.returncode:
        raise RuntimeError(f"etcd does not answer: {failure.decode()[-300:]}")
    leases: dict[str, int] = {}
    leaders: dict[str, tuple[int, str]] = {}
    for item in json.loads(answer)["kvs"]:
        _, _, _, folder, *path = base64.b64decode(item["key"]).decode().split("/")
        value: dict[str, Any] = json.loads(base64.b64decode(item.get("value", "")) or "{}")
        if folder in ("nodes", "replicas"):
            leases[value.get("replica") or value["name"]] = item.get("lease", 0)
        elif folder == "logs":
            names = {each["replica_id"]: each["name"] for each in value["replicas"]}
            leader = names.get(value.get("leader", ""), "")
            leaders[path[-1]] = int(value.get("epoch", 0)), leader
    return Registrations(leases, leaders)


async def complete(local: LocalCluster, nodes: int) -> Registrations:
    """Return the registrations, once this number of nodes is registered and all logs are led.

    Raises:
        TimeoutError: they do not become complete.
    """
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            found = await registrations(local)
            if len(found.leases) == nodes and all(name for _, name in found.leaders.values()):
                return found
            await asyncio.sleep(AGAIN_SECONDS)
