"""Settings of telemetry: every service has them, and all of it is off unless they say otherwise."""

from dataclasses import dataclass

from rockoon_runtime.settings import setting


# Without slots: a class can inherit from one class with slots only, and there are other parts.
@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """The part of a service's settings that is about telemetry; to be inherited."""

    log_format: str = setting(
        "text", "text: a line for people; json: one JSON object a line", choices=("text", "json")
    )
    metrics_listen: str = setting(
        "", "host:port on which Prometheus finds /metrics; port 0 takes a free one (empty: none)"
    )
    otlp_endpoint: str = setting(
        "",
        "URL of an OpenTelemetry collector that takes metrics and traces by gRPC, "
        "http://host:4317, or https:// with TLS (empty: none)",
    )
    otlp_interval_seconds: float = setting(
        30.0, "how often metrics are sent there, seconds", minimum=0.1, maximum=3600
    )
