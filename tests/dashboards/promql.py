"""Metrics and labels that an expression of PromQL uses, compared with the existing ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

import rockoon_broker.metrics
import rockoon_gateway.metrics
import rockoon_nameserver.metrics
import rockoon_offset.metrics
import rockoon_runtime.frontend
from rockoon_runtime.error_guard import RPC_LATENCY
from rockoon_runtime.telemetry.metrics import Metric, MetricKind
from rockoon_runtime.telemetry.prometheus import names_on_page
from rockoon_runtime.tls import CERTIFICATE_LEFT
from rockoon_spark.commands import outcomes

# Prometheus adds the first two to each series.
OF_SCRAPES = frozenset({"job", "instance"})
OF_SERVICES = frozenset({"cluster", "node_type", "node_id"})


def metrics_of_services() -> list[Metric]:
    tables = (
        rockoon_broker.metrics.TABLE,
        rockoon_offset.metrics.TABLE,
        rockoon_nameserver.metrics.TABLE,
        rockoon_gateway.metrics.TABLE,
        rockoon_runtime.frontend.TABLE,
    )
    return [
        RPC_LATENCY,
        CERTIFICATE_LEFT,
        *(metric for table in tables for metric in table),
    ]


def labels_by_name() -> Mapping[str, frozenset[str]]:
    """Return every name of our metrics in Prometheus, and all its labels."""
    found: dict[str, frozenset[str]] = {
        "up": OF_SCRAPES,
        "process_resident_memory_bytes": OF_SCRAPES,
        "process_cpu_seconds_total": OF_SCRAPES,
    }
    found |= {gauge.name: OF_SCRAPES | {"command", "target"} for gauge in outcomes.TABLE}
    # Of kube-state-metrics, which one rule needs.
    found["kube_cronjob_status_last_successful_time"] = OF_SCRAPES | {"namespace", "cronjob"}
    for metric in metrics_of_services():
        own = OF_SCRAPES | OF_SERVICES | set(metric.labels)
        for name in names_on_page(metric):
            if metric.kind is MetricKind.HISTOGRAM:
                names = {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
            else:
                names = {name: own}
            for each, labels in names.items():
                found[each] = found.get(each, frozenset()) | labels
    return found


def parsed(expression: str) -> Any:
    """Parse an expression of a dashboard, with a range instead of Grafana's variable.

    Raises:
        ValueError: it is invalid.
    """
    return promql.parse(expression.replace("$__rate_interval", "5m"))


def selectors(expression: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """Return each used metric, and the labels that select its series."""
    for each in parts(expression):
        if isinstance(each, promql.VectorSelector):
            yield each.name, frozenset(matcher.name for matcher in each.matchers.matchers)


def parts(expression: Any) -> Iterator[Any]:
    """Return an expression and all expressions within it."""
    yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from parts(inner)
    if isinstance(expression, promql.Call):
        for argument in expression.args:
            yield from parts(argument)


def labels_left(expression: Any, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the possible labels of the series of a result.

    Raises:
        AssertionError: it is grouped by a label that does not exist.
    """
    if isinstance(expression, promql.VectorSelector):
        return known[expression.name]
    if isinstance(expression, promql.AggregateExpr):
        inner = labels_left(expression.expr, known)
        by = expression.modifier
        if by is None:
            # topk and bottomk leave series as they are.
            return inner if str(expression.op) in ("topk", "bottomk") else frozenset()
        assert frozenset(by.labels) <= inner, f"{by.labels} of {sorted(inner)}"
        return frozenset(by.labels)
    if isinstance(expression, promql.BinaryExpr):
        return labels_left(expression.lhs, known) | labels_left(expression.rhs, known)
    if isinstance(expression, promql.Call):
        every = [labels_left(argument, known) for argument in expression.args]
        left: frozenset[str] = frozenset().union(*every)
        return left - {"le"} if expression.func.name == "histogram_quantile" else left
    inner = getattr(expression, "expr", None) or getattr(expression, "vector_selector", None)
    return frozenset() if inner is None else labels_left(inner, known)
