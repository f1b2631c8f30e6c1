"""Numbers of processes of each kind, and their hosts. Pure."""

import string
from collections.abc import Mapping
from dataclasses import dataclass

# The first calls and reads; the second and third have members of groups, and the second reads too.
CLIENTS = ("client-a", "client-b", "client-c")
LOG = "broker-a"
OFFSET_LOG = "offset"

# Roles of hosts; `HostsCluster.roles` returns the present ones.
LEADER, FOLLOWER, OTHER_FOLLOWER = "the leader", "a follower", "the other follower"
OFFSET = "the offset service"
OFFSET_FOLLOWERS = ("a follower of the offset service", "its other follower")
ETCD_LEADER = "the leader of etcd"


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster. With copies a log has this number of replicas, each on its own host."""

    etcds: int = 3
    nameservers: int = 3
    logs: int = 1
    copies: int = 3
    offsets: int = 3

    @property
    def etcd_hosts(self) -> tuple[str, ...]:
        return lettered("etcd", self.etcds)

    @property
    def nameserver_hosts(self) -> tuple[str, ...]:
        return lettered("nameserver", self.nameservers)

    @property
    def broker_logs(self) -> Mapping[str, tuple[str, ...]]:
        """Return log → the hosts of its copies."""
        return {log: copies_of(log, self.copies) for log in lettered("broker", self.logs)}

    @property
    def broker_hosts(self) -> tuple[str, ...]:
        return tuple(host for hosts in self.broker_logs.values() for host in hosts)

    @property
    def offset_hosts(self) -> tuple[str, ...]:
        return copies_of(OFFSET_LOG, self.offsets)

    @property
    def servers(self) -> tuple[str, ...]:
        return (
            *self.etcd_hosts,
            *self.nameserver_hosts,
            *self.broker_hosts,
            *self.offset_hosts,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        return (*self.servers, *CLIENTS)

    def words(self) -> str:
        """Return a description for people."""
        brokers = "broker" if self.copies == 1 else "replica"
        of_what = "" if self.copies == 1 else f"of {counted(self.logs, 'log')}"
        of_offsets = "" if self.offsets == 1 else "of the offset service"
        parts = [
            counted(self.etcds, "member", "of etcd"),
            counted(self.nameservers, "nameserver"),
            counted(len(self.broker_hosts), brokers, of_what),
            counted(self.offsets, "offset service" if self.offsets == 1 else "replica", of_offsets),
            counted(len(CLIENTS), "client"),
        ]
        return ", ".join(parts)


THREE_COPIES = Shape()
ONE_COPY = Shape(etcds=1, nameservers=2, logs=2, copies=1, offsets=1)


def lettered(kind: str, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}-{letter}" for letter in string.ascii_lowercase[:count])


def copies_of(log: str, copies: int) -> tuple[str, ...]:
    return (log,) if copies == 1 else tuple(f"{log}-{number}" for number in range(copies))


def counted(count: int, thing: str, more: str = "") -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    plural = "" if count == 1 else "s"
    return f"{words[count] if count < len(words) else count} {thing}{plural} {more}".strip()
