"""Table of the producers that gateways report. Pure; kept in memory, as `clients`."""

from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from rockoon_proto.v1.in_flight_pb2 import ClientDetails

# Bounds on the producers of all gateways. Beyond a bound, the producer that was reported least
# recently is removed.
PRODUCERS_MAX = 100_000
BYTES_MAX = 64 << 20


class ProducerName(NamedTuple):
    """Id of a producer, and its access key. Empty key: calls are not signed."""

    client_id: str
    key_id: str


class KnownProducer(NamedTuple):
    """A producer as a gateway has reported it.

    Attributes:
        gateway: display name of the gateway.
        heard_at_ms: time of its last call, epoch milliseconds.
    """

    name: ProducerName
    details: ClientDetails
    gateway: str
    heard_at_ms: int
    topics: tuple[str, ...]
    goodbye: bool = False

    @property
    def bytes(self) -> int:
        return int(self.details.ByteSize()) + sum(map(len, self.topics))


class KnownProducers:
    """Producers of all gateways.

    Args:
        lease_ms: how long a producer is listed after its last call to a gateway.
        bytes_max: bound on details and topics of all producers.
    """

    def __init__(self, lease_ms: int, bytes_max: int = BYTES_MAX) -> None:
        self._lease_ms = lease_ms
        self._bytes_left = bytes_max
        # In the order of the last report.
        self._producers: OrderedDict[ProducerName, KnownProducer] = OrderedDict()

    def report(self, reports: Iterable[KnownProducer], now_ms: int) -> None:
        """Apply a gateway's report, and remove producers that no gateway has reported lately.

        A report of an earlier call at another gateway changes nothing.
        """
        for report in reports:
            known = self._producers.get(report.name)
            if known is not None and known.heard_at_ms > report.heard_at_ms:
                continue
            if known is not None:
                self._remove(report.name)
            if not report.goodbye:
                self._producers[report.name] = report
                self._bytes_left -= report.bytes
        while self._producers and self._is_over(next(iter(self._producers.values())), now_ms):
            self._remove(next(iter(self._producers)))

    def of_topic(self, topic: str, now_ms: int) -> list[KnownProducer]:
        """Return a topic's (empty: all) producers within their lease, sorted by name."""
        heard_from_ms = now_ms - self._lease_ms
        # Chosen before they are sorted: with 100,000 producers, a sort takes 0.3 s.
        found = (
            producer
            for producer in self._producers.values()
            if producer.heard_at_ms >= heard_from_ms and (not topic or topic in producer.topics)
        )
        return sorted(found, key=attrgetter("name"))

    def _is_over(self, first: KnownProducer, now_ms: int) -> bool:
        return (
            len(self._producers) > PRODUCERS_MAX
            or self._bytes_left < 0
            or now_ms - first.heard_at_ms > self._lease_ms
        )

    def _remove(self, name: ProducerName) -> None:
        self._bytes_left += self._producers.pop(name).bytes
