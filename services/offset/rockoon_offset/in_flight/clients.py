"""Table of the clients that gateways report, so that each gateway can list a group's clients. Pure.

No decision depends on this table: a report extends messages even if the table has no room for its
client. The table is kept in memory; after a restart of the service, gateways report all clients
again.

Lite sets, the lite topics of a client, are shared so that any gateway can receive for any client.
A change replaces the whole set and names the version that it is based on. If two gateways change
the same set, the second change is refused, and its gateway gets the new set.
"""

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon_offset.in_flight.receivers import Heard
from rockoon_offset.in_flight.window import ClientName
from rockoon_proto.v1.in_flight_pb2 import ClientDetails

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
        """Apply a gateway's change of a lite set; False if the gateway's set is out of date."""
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


# Bounds on clients of all groups, clients of one group, and gateways of one client. Beyond a bound,
# the entry that was reported least recently is removed.
CLIENTS_MAX = 100_000
GROUP_CLIENTS_MAX = 20_000
GATEWAYS_MAX = 8
# Sum over all clients; beyond it a client is listed without details.
DETAILS_BYTES_MAX = 64 << 20
# Lite topic names in one reply; the next reply has the rest.
ANSWER_NAMES_MAX = 50_000


class Gateway(NamedTuple):
    """A gateway that reports clients: its display name, and a random name of its process."""

    name: str
    process: str


class ReportedClient(NamedTuple):
    """One client in a gateway's report."""

    heard: Heard
    # Only for display, returned unchanged.
    details: ClientDetails
    lite_version: int = 0


@dataclass(slots=True)
class KnownClient:
    """A client that called a gateway within the lease.

    Attributes:
        heard_by: process of the gateway that heard the client last.
        gateways: gateway process → epoch ms of its last report, the latest report last.
        is_gone: the client said goodbye. The entry stays, because another gateway may still report
            an earlier call of the client.
    """

    name: ClientName
    details: ClientDetails
    gateway: str
    heard_at_ms: int
    heard_by: str = ""
    gateways: dict[str, int] = field(default_factory=dict)
    is_gone: bool = False
    lite: LiteSet | None = None


@dataclass(slots=True)
class Answer:
    """Content of a ReportClientsReply, the reply to a gateway's report."""

    service_id: str
    lite_to: int
    lite: dict[ClientName, LiteSet] = field(default_factory=dict)
    lite_versions: list[int] = field(default_factory=list)
    lite_wanted: list[ClientName] = field(default_factory=list)


class KnownClients:
    """Table of the clients that gateways report. Gateways read it to list the clients of a group.

    Args:
        lease_ms: how long a client stays after its last call to a gateway.
        now_ms: start of the service, epoch milliseconds; versions of lite sets are higher.
        details_bytes_max: bound on the details of all clients together.
    """

    def __init__(
        self, lease_ms: int, now_ms: int, details_bytes_max: int = DETAILS_BYTES_MAX
    ) -> None:
        self._details_bytes_left = details_bytes_max
        self._lease_ms = lease_ms
        self._service_id = secrets.token_hex(8)
        # Both in the order of the last report.
        self._clients: OrderedDict[ClientName, KnownClient] = OrderedDict()
        self._of_group: dict[str, OrderedDict[ClientName, None]] = {}
        self._lite = LiteSets(now_ms)

    def __len__(self) -> int:
        return len(self._clients)

    def of_group(self, group: str, now_ms: int) -> Iterator[KnownClient]:
        """Return the clients of a group that called a gateway within the lease, sorted by name."""
        for name in sorted(self._of_group.get(group, ())):
            client = self._clients[name]
            if not client.is_gone and now_ms - client.heard_at_ms <= self._lease_ms:
                client.lite = self._lite.find(name)
                yield client

    def report(
        self,
        gateway: Gateway,
        reports: Sequence[ReportedClient],
        changes: Iterable[LiteChange | None],
        lite_since: int,
        now_ms: int,
    ) -> Answer:
        """Apply a gateway's report; see ReportClients.

        Args:
            gateway: the reporting gateway.
            reports: clients that called it.
            changes: new lite sets; None for an invalid change.
            lite_since: `lite_to` of the last reply to this gateway.
            now_ms: current time, epoch milliseconds.
        """
        answer = Answer(self._service_id, 0)
        for report in reports:
            self._update(gateway, report, now_ms)
        self._expire(now_ms)
        for change in changes:
            self._change(change, answer)
        for report in reports:
            self._compare(report, answer)
        self._later(gateway, lite_since, answer)
        return answer

    def _update(self, gateway: Gateway, report: ReportedClient, now_ms: int) -> None:
        name = report.heard.client
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = KnownClient(name, ClientDetails(), gateway.name, 0)
        self._clients.move_to_end(name)
        of_group = self._of_group.setdefault(name.group, OrderedDict())
        of_group[name] = None
        of_group.move_to_end(name)
        if len(of_group) > GROUP_CLIENTS_MAX:
            self._remove(next(iter(of_group)))
        # A gateway reports in order. Its times are not in order if a report was delayed.
        heard_at_ms = report.heard.heard_at_ms
        if heard_at_ms >= client.heard_at_ms or client.heard_by == gateway.process:
            client.heard_at_ms = max(heard_at_ms, client.heard_at_ms)
            client.heard_by = gateway.process
            client.is_gone = report.heard.goodbye
            client.gateway = gateway.name
            self._set_details(client, ClientDetails() if client.is_gone else report.details)
        client.gateways.pop(gateway.process, None)
        client.gateways[gateway.process] = now_ms
        if len(client.gateways) > GATEWAYS_MAX:
            del client.gateways[next(iter(client.gateways))]
        if client.is_gone:
            self._lite.remove(name)

    def _set_details(self, client: KnownClient, details: ClientDetails) -> None:
        """Replace the display details of a client, or remove them if there is no room."""
        room = self._details_bytes_left + client.details.ByteSize()
        client.details = details if details.ByteSize() <= room else ClientDetails()
        self._details_bytes_left = room - client.details.ByteSize()

    def _change(self, change: LiteChange | None, answer: Answer) -> None:
        name = change.wanted.client if change is not None else None
        client = self._clients.get(name) if name is not None else None
        if change is None or name is None or client is None or client.is_gone:
            # A valid change comes with a report of its client, or after one.
            answer.lite_versions.append(0)
            return
        is_made = self._lite.change(change)
        present = self._lite.find(name)
        answer.lite_versions.append(present.version if is_made and present is not None else 0)
        if present is not None and not (
            is_made and present.lite_topics == change.wanted.lite_topics
        ):
            answer.lite[name] = present

    def _compare(self, report: ReportedClient, answer: Answer) -> None:
        name = report.heard.client
        present = self._lite.find(name)
        version = present.version if present is not None else 0
        is_own_change = version > 0 and version in answer.lite_versions
        if report.heard.goodbye or name in answer.lite or is_own_change:
            return
        if version < report.lite_version:
            answer.lite_wanted.append(name)
        elif present is not None and version > report.lite_version:
            answer.lite[name] = present

    def _later(self, gateway: Gateway, since: int, answer: Answer) -> None:
        """Add the lite sets that other gateways changed and whose clients call this gateway."""
        answer.lite_to = self._lite.version
        later = [
            each
            for each in self._lite.later_than(since)
            if gateway.process in self._clients[each.client].gateways
            and each.version not in answer.lite_versions
        ]
        names = 0
        for each in reversed(later):
            names += len(each.lite_topics)
            if names > ANSWER_NAMES_MAX and each.version > since + 1:
                answer.lite_to = each.version - 1
                return
            answer.lite[each.client] = each

    def _expire(self, now_ms: int) -> None:
        """Remove clients not reported for a lease, and the oldest ones beyond `CLIENTS_MAX`."""
        while self._clients:
            name, client = next(iter(self._clients.items()))
            reported_ms = next(reversed(client.gateways.values()))
            if len(self._clients) <= CLIENTS_MAX and now_ms - reported_ms <= self._lease_ms:
                return
            self._remove(name)

    def _remove(self, name: ClientName) -> None:
        self._details_bytes_left += self._clients.pop(name).details.ByteSize()
        self._lite.remove(name)
        of_group = self._of_group[name.group]
        del of_group[name]
        if not of_group:
            del self._of_group[name.group]
