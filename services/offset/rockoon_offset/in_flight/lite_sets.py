"""Lite topics of gateway clients, shared so that any gateway can receive for any client. Pure.

Lite sets are kept in memory: clients repeat them every half minute, and gateways know those of
their clients. A change replaces the whole set and names the version that it is based on. If two
gateways change the same set, the second change is refused, and its gateway gets the new set.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from rockoon_offset.in_flight.windows import ClientName

# Sum over all clients; about 100 MB.
NAMES_MAX = 500_000


class LiteSet(NamedTuple):
    """The lite topics of one client.

    Attributes:
        version: version of this set, unique in the service.
        client_version: see `LiteSubscription` on the wire.
        lost: lite topics that moved to another client by this version.
    """

    client: ClientName
    parent: str
    lite_topics: tuple[str, ...]
    version: int
    client_version: int = 0
    lost: tuple[str, ...] = ()


class LiteChange(NamedTuple):
    """A lite set in a gateway's report: the version that the gateway has or requests.

    Attributes:
        wanted: the set; its version is that of the set that the gateway had before.
        is_known, is_exclusive, claimed: see `LiteChange` on the wire.
    """

    wanted: LiteSet
    is_known: bool = False
    is_exclusive: bool = False
    claimed: frozenset[str] = frozenset()


class LiteSets:
    """Lite sets of all clients; gateways change and read them.

    Args:
        version: every new set gets a higher version.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._sets: dict[ClientName, LiteSet] = {}
        # Clients whose set was changed after the start, in the order of the versions.
        self._changed: OrderedDict[ClientName, None] = OrderedDict()
        self._of_group: dict[str, dict[ClientName, None]] = {}
        self._names = 0

    @property
    def version(self) -> int:
        """The highest version of any lite set."""
        return self._version

    def find(self, client: ClientName) -> LiteSet | None:
        return self._sets.get(client)

    def change(self, change: LiteChange) -> bool:
        """Apply a gateway's change of a lite set. Returns False if the set has a newer version than
        the gateway knows.
        """
        wanted = change.wanted
        present = self._sets.get(wanted.client)
        if present is not None and present.version > wanted.version:
            return False
        if change.is_known:
            # Versions start from the clock of the service, and a former process's may be ahead.
            self._version = max(self._version, wanted.version)
            self._put(wanted)
            return True
        if change.is_exclusive:
            wanted = self._divided(change, present)
        self._put_new(wanted)
        return True

    def _divided(self, change: LiteChange, present: LiteSet | None) -> LiteSet:
        """Make a set exclusive: claimed lite topics move from other clients to this set; other lite
        topics of other clients are removed from it."""
        wanted = change.wanted
        own = set(present.lite_topics) if present is not None else set()
        others = [
            found
            for each in self._of_group.get(wanted.client.group, {})
            if each != wanted.client and (found := self._sets[each]).parent == wanted.parent
        ]
        refused: set[str] = set()
        for other in others:
            lost = tuple(each for each in other.lite_topics if each in change.claimed)
            refused |= set(other.lite_topics) - change.claimed - own
            if lost:
                kept = tuple(each for each in other.lite_topics if each not in change.claimed)
                self._put_new(other._replace(lite_topics=kept, lost=lost))
        return wanted._replace(
            lite_topics=tuple(each for each in wanted.lite_topics if each not in refused)
        )

    def later_than(self, version: int) -> Iterator[LiteSet]:
        """Yield the lite sets that gateways changed after a version, the latest first."""
        for name in reversed(self._changed):
            state = self._sets[name]
            if state.version <= version:
                return
            yield state

    def remove(self, client: ClientName) -> None:
        removed = self._sets.pop(client, None)
        self._changed.pop(client, None)
        if removed is not None:
            self._names -= len(removed.lite_topics)
            of_group = self._of_group[client.group]
            del of_group[client]
            if not of_group:
                del self._of_group[client.group]

    def _put(self, state: LiteSet) -> None:
        self.remove(state.client)
        if self._names + len(state.lite_topics) > NAMES_MAX:
            # The client's gateway still has the set.
            return
        self._names += len(state.lite_topics)
        self._sets[state.client] = state
        self._of_group.setdefault(state.client.group, {})[state.client] = None

    def _put_new(self, state: LiteSet) -> None:
        self._version += 1
        self._put(state._replace(version=self._version))
        if state.client in self._sets:
            self._changed[state.client] = None
