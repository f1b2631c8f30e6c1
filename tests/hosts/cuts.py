"""Between whom packets vanish, and what is expected of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from hosts.cluster import BROKERS, CLIENTS, ETCD, NAMESERVERS, OFFSET
from hosts.network import Direction, both_ways

# The caller and one member of each group; the other members stay connected.
CUT_CLIENTS = CLIENTS[:2]
# A member of each group; who sends is not affected.
READER = CLIENTS[1:2]
BROKER = BROKERS[0]
DELAY_MS = 200
LOSS_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition.

    Args:
        name: for people and for the command line.
        directions: in which packets vanish.
        stops: kinds of operations that cannot go on; a cut without effect would prove nothing.
        slow: instead of a cut, hosts on a bad wire: DELAY_MS each way, and LOSS_PERCENT lost.
    """

    name: str
    directions: tuple[Direction, ...]
    stops: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    @property
    def from_offset_service(self) -> bool:
        """Whether somebody who reads, or what it reads from, is cut from the offset service."""
        hosts = {host for direction in self.directions for host in direction}
        return OFFSET in hosts or bool(self.slow)


def one_way(some: Iterable[str], others: Iterable[str]) -> tuple[Direction, ...]:
    receivers = tuple(others)
    return tuple((one, other) for one in some for other in receivers)


CUTS = (
    Cut("clients ✕ one broker", both_ways(CUT_CLIENTS, [BROKER])),
    Cut("clients → one broker", one_way(CUT_CLIENTS, [BROKER])),
    Cut("clients ← one broker", one_way([BROKER], CUT_CLIENTS)),
    Cut("one reader ✕ one broker", both_ways(READER, [BROKER])),
    Cut("one reader → one broker", one_way(READER, [BROKER])),
    Cut("one reader ← one broker", one_way([BROKER], READER)),
    Cut("clients ✕ one nameserver", both_ways(CUT_CLIENTS, NAMESERVERS[:1])),
    Cut("clients ✕ all nameservers", both_ways(CUT_CLIENTS, NAMESERVERS), ("route", "change")),
    Cut("clients ✕ offset service", both_ways(CUT_CLIENTS, [OFFSET]), ("commit",)),
    Cut("clients → offset service", one_way(CUT_CLIENTS, [OFFSET]), ("commit",)),
    Cut("clients ← offset service", one_way([OFFSET], CUT_CLIENTS), ("commit",)),
    Cut("one broker ✕ one nameserver", both_ways([BROKER], NAMESERVERS[:1])),
    Cut("one broker ✕ all nameservers", both_ways([BROKER], NAMESERVERS)),
    Cut("one broker → all nameservers", one_way([BROKER], NAMESERVERS)),
    Cut("one broker ← all nameservers", one_way(NAMESERVERS, [BROKER])),
    Cut("one broker ✕ offset service", both_ways([BROKER], [OFFSET])),
    Cut("one broker ← offset service", one_way([OFFSET], [BROKER])),
    Cut("offset service ✕ one nameserver", both_ways([OFFSET], NAMESERVERS[:1])),
    Cut("offset service ✕ all nameservers", both_ways([OFFSET], NAMESERVERS)),
    Cut("offset service ← all nameservers", one_way(NAMESERVERS, [OFFSET])),
    Cut("one nameserver ✕ etcd", both_ways(NAMESERVERS[:1], [ETCD])),
    Cut("all nameservers ✕ etcd", both_ways(NAMESERVERS, [ETCD]), ("change",)),
    Cut("all nameservers → etcd", one_way(NAMESERVERS, [ETCD]), ("change",)),
    Cut("all nameservers ← etcd", one_way([ETCD], NAMESERVERS), ("change",)),
    Cut(
        "one broker ✕ everybody",
        both_ways([BROKER], [*NAMESERVERS, OFFSET, *CLIENTS]),
    ),
    Cut(f"clients: {DELAY_MS} ms, {LOSS_PERCENT} % lost", (), slow=CUT_CLIENTS),
)


def named(name: str) -> Cut:
    """The cut of this name.

    Raises:
        KeyError: there is none.
    """
    return {cut.name: cut for cut in CUTS}[name]
