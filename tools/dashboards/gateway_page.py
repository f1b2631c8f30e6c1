"""The gateway: RocketMQ's 5.x clients, and what becomes of their calls."""

from tools.dashboards.expressions import GATEWAY, last, quantile, rate
from tools.dashboards.panels import Dashboard, Panel, Query, Row

GATEWAYS = Dashboard(
    "rockoon-gateway",
    "Rockoon: gateway",
    [
        Row(
            "Clients",
            [
                Panel(
                    "Clients by language",
                    "short",
                    [
                        Query(
                            last("rockoon_gateway_clients", GATEWAY, "client_type, language"),
                            "{{language}} {{client_type}}",
                        )
                    ],
                    "That have called within `client_seconds_max`, or have a Telemetry stream.",
                    stacked=True,
                ),
                Panel(
                    "Telemetry streams",
                    "short",
                    [
                        Query(
                            last("rockoon_gateway_telemetry_streams", GATEWAY, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "One for each client that can be asked about its transactions. A gateway with "
                    "many more than others keeps its connections: load balancers move none.",
                ),
                Panel(
                    "Connections closed",
                    "cps",
                    [
                        Query(
                            rate("rockoon_connections_closed_total", GATEWAY, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Beyond `connections_per_address_max`. All clients behind a proxy are one.",
                ),
            ],
        ),
        Row(
            "Messages",
            [
                Panel(
                    "Messages in",
                    "cps",
                    [
                        Query(
                            rate(
                                "rockoon_gateway_messages_in_total", GATEWAY, "topic, message_type"
                            ),
                            "{{topic}} {{message_type}}",
                        )
                    ],
                    "Stored for clients.",
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Messages out",
                    "cps",
                    [
                        Query(
                            rate(
                                "rockoon_gateway_messages_out_total",
                                GATEWAY,
                                "topic, consumer_group",
                            ),
                            "{{consumer_group}} {{topic}}",
                        )
                    ],
                    "Handed to clients, those that come again too.",
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Receivers that wait",
                    "short",
                    [
                        Query(
                            last("rockoon_gateway_parked_receivers", GATEWAY, "consumer_group"),
                            "{{consumer_group}}",
                        )
                    ],
                    "For messages of their group. Beside messages that are ready: trouble.",
                ),
                Panel(
                    "On its way to brokers",
                    "bytes",
                    [
                        Query(
                            last("rockoon_gateway_buffered_bytes", GATEWAY, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Near `buffer_bytes_max` sends are refused.",
                ),
            ],
        ),
        Row(
            "Calls",
            [
                Panel(
                    "Gateway calls by method",
                    "cps",
                    [
                        Query(
                            rate("rocketmq_rpc_latency_count", GATEWAY, "request_code"),
                            "{{request_code}}",
                        )
                    ],
                    "That have one answer.",
                    stacked=True,
                ),
                Panel(
                    "Gateway calls, p99",
                    "ms",
                    [
                        Query(
                            quantile(0.99, "rocketmq_rpc_latency", GATEWAY, "request_code"),
                            "{{request_code}}",
                        )
                    ],
                    "Clients give a send up after three seconds.",
                ),
                Panel(
                    "Refusals",
                    "cps",
                    [
                        Query(
                            rate("rockoon_gateway_refusals_total", GATEWAY, "request_code, code"),
                            "{{request_code}} {{code}}",
                        )
                    ],
                    "Answers with another code than OK. Late acknowledgements are "
                    "`invalid_receipt_handle`.",
                    stacked=True,
                ),
                Panel(
                    "Signatures refused",
                    "cps",
                    [
                        Query(
                            rate("rockoon_gateway_unauthorized_total", GATEWAY, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Calls that are signed by no key in force: of these no client has a name.",
                    width=12,
                ),
                Panel(
                    "Checks of transactions",
                    "cps",
                    [
                        Query(
                            rate("rockoon_gateway_transaction_checks_total", GATEWAY, "node_id"),
                            "{{node_id}}",
                        )
                    ],
                    "Producers that are asked what became of a half message. Many: they end none.",
                    width=12,
                ),
            ],
        ),
    ],
    [
        ("cluster", "rockoon_gateway_telemetry_streams"),
        ("node_id", "rockoon_gateway_telemetry_streams"),
    ],
)
