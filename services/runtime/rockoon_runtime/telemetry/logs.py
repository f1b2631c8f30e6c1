"""Log lines: text for people, or one JSON object a line for machines.

A JSON line has the service, the node, and the span in which it was written, if any: `trace_id` and
`span_id` as in OpenTelemetry, so that a line leads to its trace.
"""

import atexit
import datetime
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from rockoon_core.repeated_lines import RepeatFilter

# Attributes of every record; further ones were passed as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats records as JSON objects.

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


def set_up_logging(service: str, log_format: str, node: str, file: TextIO | None = None) -> None:
    """Write this process's log lines to a file or to standard error, with repeats suppressed.

    Args:
        service: for example "broker".
        log_format: "text" or "json".
        node: name in every line; for a replica its own name (`CopySettings.process_name`).
        file: None means standard error.
    """
    handler = logging.StreamHandler(file or sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines({"service": service, "node": node}, span_fields))
    else:
        where = f"{service} {node}".strip().replace("%", "%%")
        line = f"%(asctime)s %(levelname)s {where} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(line))
    repeated = RepeatFilter(handler.handle, reports_late=True)
    handler.addFilter(repeated)
    atexit.register(repeated.report)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
