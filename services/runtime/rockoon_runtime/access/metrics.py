"""Metrics of access keys, if access is on."""

from collections.abc import Iterable

from rockoon_runtime.access.gate import Gate
from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, counter, gauge

REFUSED = counter(
    "rockoon_access_refused_total", "Calls refused because of access keys, by reason", "reason"
)
KEYS = gauge("rockoon_access_keys", "Access keys that this service knows; -1 before it knows any")
TABLE = (REFUSED, KEYS)


def with_access(
    table: Iterable[Metric], measure: Measure, gate: Gate | None
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and those of its gate if it has one."""
    if gate is None:
        return table, measure

    async def measured() -> Iterable[Measurement]:
        refused = (REFUSED.at(count, reason) for reason, count in gate.refusals.counts.items())
        known = KEYS.at(len(gate.keys) if gate.keys.loaded else -1)
        return [*await measure(), *refused, known]

    return (*table, *TABLE), measured
