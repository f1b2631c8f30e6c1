"""Lite topics that clients of gateways read, so that each gateway receives for each client. Pure.

They are kept in memory: clients repeat them every half minute, and gateways know the lite topics of
their clients. A change replaces the whole state, and names the version that it was made to. If two
gateways change the same state, the second change is refused, and its gateway gets the new state.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from rockoon_offset.in_flight.holders import ClientName

# Names of all clients together: about 100 MB.
NAMES_MAX = 500_000


class LiteSet(NamedTuple):
    """The lite topics of one client.

    Attributes:
        version: of the state, unique in the service.
        client_version: see `LiteSubscription` on the wire.
        lost: lite topics that this state lost to another client.
    """

    client: ClientName
    parent: str
    lite_topics: tuple[str, ...]
    version: int
    client_version: int = 0
    lost: tuple[str, ...] = ()


class LiteChange(NamedTuple):
    """A state that a gateway has, or wants.

    Attributes:
        wanted: its version is that of the state which the gateway had before.
        is_known, is_exclusive, claimed: as on the wire.
    """

    wanted: LiteSet
    is_known: bool = False
    is_exclusive: bool = False
    claimed: frozenset[str] = frozenset()


class LiteSets:
    """Those of all clients.

    Args:
        version: every new state has a higher one than this.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._sets: dict[ClientName, LiteSet] = {}
        # Clients whose state is of after the start, in the order of the versions.
        self._changed: OrderedDict[ClientName, None] = OrderedDict()
        self._of_group: dict[str, dict[ClientName, None]] = {}
        self._names = 0

    @property
    def version(self) -> int:
        """The highest one that was given."""
        return self._version

    def find(self, client: ClientName) -> LiteSet | None:
        return self._sets.get(client)

    def change(self, change: LiteChange) -> bool:
        """Make a change; False if the state is another one than its gateway knows."""
        wanted = change.wanted
        present = self._sets.get(wanted.client)
        if present is not None and present.version > wanted.version:
            return False
        if change.is_known:
            # The clock of the process that gave it may be ahead.
            self._version = max(self._version, wanted.version)
            self._put(wanted)
            return True
        if change.is_exclusive:
            wanted = self._divided(change, present)
        self._put_new(wanted)
        return True

    def _divided(self, change: LiteChange, present: LiteSet | None) -> LiteSet:
        """Remove lite topics of other clients from a state; other clients lose claimed ones."""
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
        """States that were made after the start and are later than a version, the latest first."""
        for name in reversed(self._changed):
            state = self._sets[name]
            if state.version <= version:
                return
            yield state

    def forget(self, client: ClientName) -> None:
        """A client has gone."""
        gone = self._sets.pop(client, None)
        self._changed.pop(client, None)
        if gone is not None:
            self._names -= len(gone.lite_topics)
            of_group = self._of_group[client.group]
            del of_group[client]
            if not of_group:
                del self._of_group[client.group]

    def _put(self, state: LiteSet) -> None:
        self.forget(state.client)
        if self._names + len(state.lite_topics) > NAMES_MAX:
            # Its gateway has it all the same.
            return
        self._names += len(state.lite_topics)
        self._sets[state.client] = state
        self._of_group.setdefault(state.client.group, {})[state.client] = None

    def _put_new(self, state: LiteSet) -> None:
        self._version += 1
        self._put(state._replace(version=self._version))
        if state.client in self._sets:
            self._changed[state.client] = None
