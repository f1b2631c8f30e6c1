"""Metrics of the gateway."""

from collections import Counter
from collections.abc import Iterable, Mapping

from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import Telemetry
from rockoon_gateway.codes import enum_name
from rockoon_gateway.consuming.consuming import Consuming
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
MESSAGES_OUT = counter("rockoon_gateway_messages_out_total", "Messages handed to clients", "topic")
PARKED = gauge("rockoon_gateway_parked_receivers", "Receivers that wait for messages")
RENEWED = gauge(
    "rockoon_gateway_renewed_messages", "Messages of push consumers whose time is lengthened"
)
CHECKS = counter(
    "rockoon_gateway_transaction_checks_total", "Checks of transactions that were sent to a client"
)
TABLE = (CLIENTS, STREAMS, UNAUTHORIZED, MESSAGES_IN, MESSAGES_OUT, PARKED, RENEWED, CHECKS)


class GatewayMetrics:
    """Measures one gateway.

    Args:
        presence, telemetry, signatures, transactions: its parts.
        stored: messages by topic and type.
        consuming: its part.
    """

    def __init__(
        self,
        presence: Presence,
        telemetry: Telemetry,
        signatures: Signatures,
        stored: Mapping[tuple[str, MessageType], int],
        transactions: Transactions,
        consuming: Consuming,
    ) -> None:
        self._consuming = consuming
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
                CLIENTS.at(count, enum_name(ClientType, client_type).lower(), language.lower())
                for (client_type, language), count in kinds.items()
            ),
            STREAMS.at(len(self._telemetry)),
            UNAUTHORIZED.at(self._signatures.refused),
            CHECKS.at(self._transactions.checks),
            PARKED.at(self._consuming.parked),
            RENEWED.at(len(self._consuming.renewer)),
            *(MESSAGES_OUT.at(n, topic) for topic, n in self._consuming.delivered.items()),
            *(
                MESSAGES_IN.at(count, topic, MessageType.Name(kind).lower())
                for (topic, kind), count in self._stored.items()
            ),
        ]
