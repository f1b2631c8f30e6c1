"""Metrics of the gateway."""

from collections import Counter
from collections.abc import Iterable, Mapping

from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import Telemetry
from rockoon_gateway.producing.transactions import Transactions
from rockoon_gateway.signatures import Signatures
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType, MessageType
from rockoon_runtime.telemetry.metrics import Measurement, counter, gauge

CLIENTS = gauge("rockoon_gateway_clients", "Clients that are connected", "client_type", "language")
STREAMS = gauge("rockoon_gateway_telemetry_streams", "Open Telemetry streams")
UNAUTHORIZED = counter(
    "rockoon_gateway_unauthorized_total", "Calls refused because of their signature"
)
MESSAGES_IN = counter(
    "rockoon_gateway_messages_in_total", "Messages stored for clients", "topic", "message_type"
)
CHECKS = counter(
    "rockoon_gateway_transaction_checks_total", "Checks of transactions that were sent to a client"
)
TABLE = (CLIENTS, STREAMS, UNAUTHORIZED, MESSAGES_IN, CHECKS)


class GatewayMetrics:
    """Measures one gateway.

    Args:
        presence, telemetry, signatures, transactions: its parts.
        stored: messages by topic and type.
    """

    def __init__(
        self,
        presence: Presence,
        telemetry: Telemetry,
        signatures: Signatures,
        stored: Mapping[tuple[str, MessageType], int],
        transactions: Transactions,
    ) -> None:
        self._stored = stored
        self._transactions = transactions
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
            CHECKS.at(self._transactions.checks),
            *(
                MESSAGES_IN.at(count, topic, MessageType.Name(kind).lower())
                for (topic, kind), count in self._stored.items()
            ),
        ]
