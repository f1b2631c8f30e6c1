"""Metrics of the gateway."""

from collections import Counter
from collections.abc import Iterable

from rockoon_gateway.calls import SeriesCounts
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import TelemetryStreams
from rockoon_gateway.consuming.consuming import Consuming
from rockoon_gateway.producing.sending import Sending
from rockoon_gateway.producing.transactions import GatewayTransactions
from rockoon_gateway.signatures import Signatures
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType
from rockoon_runtime.telemetry.metrics import Measurement, counter, gauge

# x-mq-language is free text, and the client type of settings any number: unknown values become
# OTHER, because each value is a series for as long as Prometheus keeps data. The words are those of
# the official clients; Node.js sends HTTP, because RocketMQ's proxy does not know its name.
LANGUAGES = {
    **{name: name for name in ("java", "go", "python", "rust", "dotnet", "cpp", "php", "ruby")},
    "http": "node_js",
    "node_js": "node_js",
    "golang": "go",
    "dot_net": "dotnet",
}
CLIENT_TYPES = {value: name.lower() for name, value in ClientType.items()}
OTHER = "other"

CLIENTS = gauge("rockoon_gateway_clients", "Clients that are connected", "client_type", "language")
STREAMS = gauge("rockoon_gateway_telemetry_streams", "Open Telemetry streams")
UNAUTHORIZED = counter(
    "rockoon_gateway_unauthorized_total", "Calls refused because of their signature"
)
REFUSALS = counter(
    "rockoon_gateway_refusals_total",
    "Calls that were answered with another code than OK",
    "request_code",
    "code",
)
MESSAGES_IN = counter(
    "rockoon_gateway_messages_in_total", "Messages stored for clients", "topic", "message_type"
)
MESSAGES_OUT = counter(
    "rockoon_gateway_messages_out_total", "Messages sent to clients", "topic", "consumer_group"
)
PARKED = gauge(
    "rockoon_gateway_parked_receivers", "Receivers that wait for messages", "consumer_group"
)
BUFFERED = gauge(
    "rockoon_gateway_buffered_bytes",
    "Bytes of messages on their way to brokers, of buffer_bytes_max",
)
CHECKS = counter(
    "rockoon_gateway_transaction_checks_total", "Checks of transactions that were sent to a client"
)
TABLE = (
    *(CLIENTS, STREAMS, UNAUTHORIZED, REFUSALS, MESSAGES_IN, MESSAGES_OUT, PARKED, BUFFERED),
    CHECKS,
)


class GatewayMetrics:
    """Measures the metrics of a gateway; `refused`: calls by method and code."""

    def __init__(
        self,
        presence: Presence,
        telemetry: TelemetryStreams,
        signatures: Signatures,
        sending: Sending,
        transactions: GatewayTransactions,
        consuming: Consuming,
        refused: SeriesCounts,
    ) -> None:
        self._presence = presence
        self._telemetry = telemetry
        self._signatures = signatures
        self._sending = sending
        self._transactions = transactions
        self._consuming = consuming
        self._refused = refused

    async def measure(self) -> Iterable[Measurement]:
        """Return the present values of all metrics."""
        kinds = Counter(
            (
                CLIENT_TYPES[each.client_type],
                LANGUAGES.get(each.language.lower(), OTHER),
            )
            for each in self._presence
        )
        return [
            *(CLIENTS.at(count, *labels) for labels, count in kinds.items()),
            STREAMS.at(len(self._telemetry)),
            UNAUTHORIZED.at(self._signatures.refused),
            *(REFUSALS.at(count, *labels) for labels, count in self._refused),
            *(MESSAGES_IN.at(count, *labels) for labels, count in self._sending.stored),
            *(MESSAGES_OUT.at(count, *labels) for labels, count in self._consuming.delivered),
            *(
                PARKED.at(count, group)
                for group, count in self._consuming.waiting_receivers.items()
            ),
            BUFFERED.at(self._sending.buffered_bytes),
            CHECKS.at(self._transactions.checks),
        ]
