"""Telemetry settings of every service; by default all telemetry is off."""

from dataclasses import dataclass

from rockoon_runtime.settings import setting


# Without slots: a class can inherit from one class with slots only, and services inherit several.
@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """The telemetry settings of a service; a base class of its settings."""

    log_format: str = setting(
        "text", "text: a line for people; json: one JSON object a line", choices=("text", "json")
    )
    metrics_listen: str = setting(
        "", "host:port of the Prometheus page /metrics; port 0 selects a free one (empty: none)"
    )
    otlp_endpoint: str = setting(
        "",
        "URL of an OpenTelemetry collector for metrics and traces by gRPC, http://host:4317, or "
        "https:// with TLS (empty: none)",
    )
    otlp_interval_seconds: float = setting(
        30.0, "time between two exports of metrics to it, seconds", minimum=0.1, maximum=3600
    )
