"""The page about metrics names each that there is, and the settings."""

import dataclasses
from pathlib import Path

import pytest

import rockoon_broker.metrics
import rockoon_gateway.metrics
import rockoon_nameserver.metrics
import rockoon_offset.metrics
import rockoon_runtime.access.gate
import rockoon_runtime.frontend
from rockoon_runtime.error_guard import RPC_LATENCY
from rockoon_runtime.telemetry.metrics import Metric
from rockoon_runtime.telemetry.telemetry import TelemetrySettings
from rockoon_runtime.tls import CERTIFICATE_LEFT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "observability.md"
TABLES = (
    rockoon_broker.metrics.TABLE,
    rockoon_offset.metrics.TABLE,
    rockoon_nameserver.metrics.TABLE,
    rockoon_gateway.metrics.TABLE,
    (RPC_LATENCY, CERTIFICATE_LEFT),
    rockoon_runtime.frontend.TABLE,
    rockoon_runtime.access.gate.TABLE,
)


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_a_line_for_every_metric(table: tuple[Metric, ...]) -> None:
    lines = PAGE.read_text().splitlines()
    for metric in table:
        wanted = f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.doc} |"
        assert wanted in lines


@pytest.mark.parametrize("table", TABLES)
def test_names_and_labels_are_what_prometheus_allows(table: tuple[Metric, ...]) -> None:
    names = [metric.name for metric in table]
    assert len(set(names)) == len(names)
    for metric in table:
        assert metric.name.startswith(("rocketmq_", "rockoon_"))
        assert all(label.isidentifier() and label.islower() for label in metric.labels)


def test_the_page_names_every_setting() -> None:
    text = PAGE.read_text()
    for field in dataclasses.fields(TelemetrySettings):
        assert f"`{field.name}`" in text
