"""Metrics of the gateway."""

from collections import Counter
from collections.abc import Iterable

from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import Telemetry
from rockoon_gateway.signatures import Signatures
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType
from rockoon_runtime.telemetry.metrics import Measurement, counter, gauge

CLIENTS = gauge("rockoon_gateway_clients", "Clients that are connected", "client_type", "language")
STREAMS = gauge("rockoon_gateway_telemetry_streams", "Open Telemetry streams")
UNAUTHORIZED = counter(
    "rockoon_gateway_unauthorized_total", "Calls refused because of their signature"
)
TABLE = (CLIENTS, STREAMS, UNAUTHORIZED)


class GatewayMetrics:
    """Measures one gateway.

    Args:
        presence, telemetry, signatures: its parts.
    """

    def __init__(self, presence: Presence, telemetry: Telemetry, signatures: Signatures) -> None:
        self._presence = presence
        self._telemetry = telemetry
        self._signatures = signatures

    async def measure(self) -> Iterable[Measurement]:
        """All values now."""
        kinds = Counter((each.client_type, each.language) for each in self._presence)
        return [
            *(
                CLIENTS.at(count, ClientType.Name(client_type).lower(), language.lower())
                for (client_type, language), count in kinds.items()
            ),
            STREAMS.at(len(self._telemetry)),
            UNAUTHORIZED.at(self._signatures.refused),
        ]
