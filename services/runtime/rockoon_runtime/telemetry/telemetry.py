"""Telemetry of one service: exports metrics and traces, as its settings say, while entered."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rockoon_core.valid_text import redacted
from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Metric, Snapshots

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)


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


class Telemetry:
    """Exports a service's metrics while entered, and has its tracer. Does nothing if it is off.

    Args:
        node_type: "broker", "nameserver" or "offset".
        cluster: the cluster's name.
        node_id: the node's name.
        settings: selects the exports.
        table: all metrics of the service.
        measure: returns their values; runs on the loop that enters this object.

    Raises:
        SettingsError: on entering, if a package is missing or an address is not valid.
        ListenError: on entering, if the page cannot listen on the address.
    """

    def __init__(
        self,
        node_type: str,
        cluster: str,
        node_id: str,
        settings: TelemetrySettings,
        table: Iterable[Metric],
        measure: Measure,
    ) -> None:
        self._settings = settings
        self._labels = {"cluster": cluster, "node_type": node_type, "node_id": node_id}
        self._table = tuple(table)
        self._measure = measure
        self._page = contextlib.ExitStack()
        # Providers of the SDK: their shutdown sends the remaining data.
        self._providers: list[Any] = []
        self.tracer: Tracer | None = None
        self.metrics_address = ""

    async def __aenter__(self) -> "Telemetry":
        settings = self._settings
        snapshots = Snapshots(self._table, self._measure, self._labels)
        if settings.metrics_listen:
            from rockoon_runtime.telemetry.prometheus import PrometheusPage

            page = self._page.enter_context(PrometheusPage(settings.metrics_listen, snapshots))
            self.metrics_address = page.address
            log.info("metrics are at http://%s/metrics", page.address)
        if settings.otlp_endpoint:
            self._export(snapshots)
        return self

    def _export(self, snapshots: Snapshots) -> None:
        from rockoon_runtime.telemetry import otlp

        otlp.require_sdk()
        endpoint = self._settings.otlp_endpoint
        meters = otlp.meter_provider(endpoint, self._settings.otlp_interval_seconds, snapshots)
        tracers = otlp.tracer_provider(endpoint, self._labels)
        self._providers += [tracers, meters]
        self.tracer = tracers.get_tracer("rockoon")
        log.info("metrics and traces go to %s", redacted(endpoint))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In threads, because the last export collects its values on this loop.
        await asyncio.to_thread(self._page.close)
        for provider in self._providers:
            await asyncio.to_thread(provider.shutdown)
