"""Telemetry of one service: metrics, traces and log lines, as its settings say."""

import asyncio
import atexit
import contextlib
import datetime
import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rockoon_core.repeated_lines import RepeatFilter
from rockoon_core.valid_text import redacted
from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measure, Metric, Snapshots

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger(__name__)


LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


# Without slots: a class can inherit from one class with slots only, and services inherit several.
@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """The telemetry settings of a service; a base class of its settings."""

    log_level: str = setting(
        "info",
        "least important log lines that are written: info, warning or error; audit lines always",
        choices=tuple(LOG_LEVELS),
        live=True,
    )
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
        measure: returns their values; runs on the loop that enters this object.

    Raises:
        SettingsError: on entering, if a package is missing or an address is not valid.
        ListenError: on entering, if the page cannot listen on the address.

    Attributes:
        tracer: continues the traces of callers; None if no spans are exported.
        tracer_provider: tracer provider of this tracer and of further ones.
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
        self.tracer_provider: TracerProvider | None = None

    async def __aenter__(self) -> "Telemetry":
        settings = self._settings
        snapshots = Snapshots(self._table, self._measure, self._labels)
        if settings.metrics_listen:
            from rockoon_runtime.telemetry.prometheus import PrometheusPage

            page = self._page.enter_context(PrometheusPage(settings.metrics_listen, snapshots))
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
        self.tracer_provider = tracers
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


# Attributes of every record; further ones were passed as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats records as JSON objects, one per line.

    A line in a span has its `trace_id` and `span_id` as in OpenTelemetry, so that it leads to its
    trace.

    Args:
        constants: fields of every line, for example service and node.
        span: returns the fields of the current span; empty outside any span.
    """

    def __init__(self, constants: Mapping[str, str], span: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._constants = dict(constants)
        self._span = span

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="microseconds"),
            "level": record.levelname,
            **self._constants,
            "logger": record.name,
            "message": record.getMessage(),
            **self._span(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        line |= {
            name: value
            for name, value in vars(record).items()
            if name not in _OWN and name not in line
        }
        return json.dumps(line, ensure_ascii=False, default=str)


def span_fields() -> Mapping[str, str]:
    """Ids of the current span; empty outside any span, or if nothing is traced."""
    # Code that creates spans has imported it. A log line must not import it.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def set_up_logging(
    service: str,
    log_format: str,
    node: str,
    file: TextIO | None = None,
    log_level: str = "info",
) -> None:
    """Write this process's log lines to a file or to standard error, with repeats suppressed.

    Args:
        service: for example "broker".
        log_format: "text" or "json".
        node: name in every line; for a replica its own name (`CopySettings.process_name`).
        file: None means standard error.
        log_level: one of LOG_LEVELS.
    """
    handler = logging.StreamHandler(file or sys.stderr)
    if log_format == "json":
        origin = {"service": service, "node": node, "host": socket.gethostname()}
        handler.setFormatter(JsonLines(origin, span_fields))
    else:
        where = f"{service} {node}".strip().replace("%", "%%")
        line = f"%(asctime)s %(levelname)s {where} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(line))
    repeated = RepeatFilter(handler.handle, reports_late=True)
    handler.addFilter(repeated)
    atexit.register(repeated.report)
    logging.basicConfig(level=LOG_LEVELS[log_level], handlers=[handler])
