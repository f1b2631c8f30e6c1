"""Faults of a cluster: hosts between which packets vanish, acts on processes, and the
expectations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hosts.network import Direction, both_ways
from hosts.shape import (
    CLIENTS,
    ETCD_LEADER,
    FOLLOWER,
    LEADER,
    OFFSET,
    OFFSET_FOLLOWERS,
    OTHER_FOLLOWER,
    Shape,
)

# The caller and one member of each group; the other members stay connected.
CUT_CLIENTS = CLIENTS[:2]
# A member of each group, and the pure readers; the sender is not affected.
READER = CLIENTS[1:2]
FOLLOWERS = (FOLLOWER, OTHER_FOLLOWER)
DELAY_MS = 200
LOSS_PERCENT = 5


class Deed(Enum):
    """Acts on processes."""

    KILL = "SIGKILL, and started again"
    STOP = "SIGSTOP, and SIGCONT"
    WIPE = "SIGKILL, and started again with an empty disk"
    POWER = "power cut: what was not synced is lost"


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition, or an act on processes.

    Args:
        name: for people and for the command line.
        directions: in which packets vanish; between hosts or roles (`hosts.shape`).
        stops: kinds of operations that cannot continue; a cut without effect would prove nothing.
        slow: instead of a cut, hosts on a bad wire: DELAY_MS each way, and LOSS_PERCENT lost.
        deed: instead of a cut, the act on the processes on `victims`.
        seconds: duration; None: as the others.
        deposes: another replica must lead afterwards; otherwise nothing was tested.
    """

    name: str
    directions: tuple[Direction, ...] = ()
    stops: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    deed: Deed | None = None
    victims: tuple[str, ...] = ()
    seconds: float | None = None
    deposes: bool = False

    @property
    def hosts(self) -> frozenset[str]:
        """Return the hosts and roles of the cut."""
        return frozenset(host for way in self.directions for host in way).union(self.victims)

    @property
    def from_offset_service(self) -> bool:
        """Return whether a reader, or its broker, is without the offset service."""
        return OFFSET in self.hosts or bool(self.slow)

    @property
    def may_depose(self) -> bool:
        """Return whether others may lead the log while its former leader does not know it."""
        return LEADER in self.hosts

    def directions_now(self, roles: Mapping[str, str]) -> tuple[Direction, ...]:
        """Return the directions between hosts, from the present host of each role."""
        pairs = ((roles.get(one, one), roles.get(to, to)) for one, to in self.directions)
        # A role may belong to a host that is also named.
        return tuple(dict.fromkeys((one, to) for one, to in pairs if one != to))

    def victims_now(self, roles: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(roles.get(each, each) for each in self.victims)


def one_way(some: Iterable[str], others: Iterable[str]) -> tuple[Direction, ...]:
    receivers = tuple(others)
    return tuple((one, other) for one in some for other in receivers)


def ways(
    names: tuple[str, str],
    some: Iterable[str],
    others: Iterable[str],
    stops: tuple[str, ...] = (),
    *,
    deposes: bool = False,
) -> tuple[Cut, ...]:
    """Return cuts of two sides, in both directions and in each one."""
    some, others = tuple(some), tuple(others)
    one, other = names
    return (
        Cut(f"{one} ✕ {other}", both_ways(some, others), stops, deposes=deposes),
        Cut(f"{one} → {other}", one_way(some, others), stops, deposes=deposes),
        Cut(f"{one} ← {other}", one_way(others, some), stops, deposes=deposes),
    )


def of_clients(shape: Shape, broker: str) -> tuple[Cut, ...]:
    nameservers = shape.nameserver_hosts
    return (
        *ways(("clients", broker), CUT_CLIENTS, [LEADER]),
        *ways(("one reader", broker), READER, [LEADER])[: 1 if shape.copies > 1 else 3],
        Cut("clients ✕ one nameserver", both_ways(CUT_CLIENTS, nameservers[:1])),
        Cut("clients ✕ all nameservers", both_ways(CUT_CLIENTS, nameservers), ("route", "change")),
        *ways(("clients", "offset service"), CUT_CLIENTS, [OFFSET], ("commit",)),
    )


def of_services(shape: Shape, broker: str) -> tuple[Cut, ...]:
    nameservers, etcds = shape.nameserver_hosts, shape.etcd_hosts
    return (
        Cut(f"{broker} ✕ one nameserver", both_ways([LEADER], nameservers[:1])),
        *ways((broker, "all nameservers"), [LEADER], nameservers),
        *ways((broker, "offset service"), [LEADER], [OFFSET]),
        Cut("offset service ✕ one nameserver", both_ways([OFFSET], nameservers[:1])),
        *ways(("offset service", "all nameservers"), [OFFSET], nameservers),
        Cut("one nameserver ✕ etcd", both_ways(nameservers[:1], etcds)),
        *ways(("all nameservers", "etcd"), nameservers, etcds, ("change",)),
        Cut(
            f"{broker} ✕ everybody",
            both_ways([LEADER], [*nameservers, OFFSET, *FOLLOWERS[: shape.copies - 1], *CLIENTS]),
            deposes=shape.copies > 1,
        ),
    )


def of_copies(shape: Shape) -> tuple[Cut, ...]:
    """Return cuts between replicas, and between them and the nameservers."""
    nameservers, etcds = shape.nameserver_hosts, shape.etcd_hosts
    rest = [*nameservers, *etcds, *FOLLOWERS, OFFSET]
    minority = [LEADER, *READER]
    return (
        *ways(("leader", "followers"), [LEADER], FOLLOWERS, deposes=True),
        *ways(("leader", "one follower"), [LEADER], [FOLLOWER]),
        Cut("one follower ✕ the other", both_ways([FOLLOWER], [OTHER_FOLLOWER])),
        Cut("clients ✕ one follower", both_ways(CUT_CLIENTS, [FOLLOWER])),
        Cut("followers ✕ all nameservers", both_ways(FOLLOWERS, nameservers)),
        Cut("one follower ✕ everybody", both_ways([FOLLOWER], [LEADER, OTHER_FOLLOWER, *rest[:6]])),
        Cut("leader ✕ all but clients", both_ways([LEADER], rest), deposes=True),
        Cut(
            "leader, one reader ✕ the others",
            both_ways(minority, [*rest, *(each for each in CLIENTS if each not in READER)]),
            deposes=True,
        ),
        Cut("all nameservers ✕ one of etcd", both_ways(nameservers, etcds[:1])),
        *ways(
            ("leader of etcd", "its followers"),
            [ETCD_LEADER],
            etcds,
        ),
    )


def of_processes(shape: Shape) -> tuple[Cut, ...]:
    nameserver = shape.nameserver_hosts[0]
    replicas = (LEADER, *FOLLOWERS)

    def kill(name: str, *victims: str) -> Cut:
        deposes = LEADER in victims
        return Cut(f"{name}: kill -9", deed=Deed.KILL, victims=victims, deposes=deposes)

    def stop(name: str, *victims: str) -> Cut:
        deposes = LEADER in victims
        return Cut(f"{name}: SIGSTOP", deed=Deed.STOP, victims=victims, deposes=deposes)

    return (
        kill("leader", LEADER),
        kill("one follower", FOLLOWER),
        kill("leader and a follower", LEADER, FOLLOWER),
        kill("all three copies", *replicas),
        kill("one nameserver", nameserver),
        kill("leader of etcd", ETCD_LEADER),
        kill("offset service", OFFSET),
        stop("leader", LEADER),
        stop("one follower", FOLLOWER),
        stop("both followers", *FOLLOWERS),
        stop("leader of etcd", ETCD_LEADER),
        stop("offset service", OFFSET),
        Cut("leader: its disk wiped", deed=Deed.WIPE, victims=(LEADER,), deposes=True),
        Cut("one follower: its disk wiped", deed=Deed.WIPE, victims=(FOLLOWER,)),
        Cut("all three copies: power cut", deed=Deed.POWER, victims=replicas, deposes=True),
    )


def slow_clients() -> Cut:
    return Cut(f"clients: {DELAY_MS} ms, {LOSS_PERCENT} % lost", slow=CUT_CLIENTS)


def long_link(seconds: float) -> Cut:
    """Return a cut of one link, longer than all timeouts."""
    name = f"leader ✕ one follower, {seconds:.0f} s"
    return Cut(name, both_ways([LEADER], [FOLLOWER]), seconds=seconds)


def cuts_of(shape: Shape) -> tuple[Cut, ...]:
    """Return all cuts, in the order of a trial."""
    broker = "leader" if shape.copies > 1 else "one broker"
    common = (*of_clients(shape, broker), *of_services(shape, broker))
    if shape.offsets > 1:
        sides = "offset service", "its followers"
        common = (*common, *ways(sides, [OFFSET], OFFSET_FOLLOWERS))
    if shape.copies == 1:
        return (*common, slow_clients())
    return (*common, *of_copies(shape), slow_clients(), *of_processes(shape))


def named(name: str, shape: Shape) -> Cut:
    """Return the cut of this name.

    Raises:
        KeyError: there is none.
    """
    return {cut.name: cut for cut in cuts_of(shape)}[name]
