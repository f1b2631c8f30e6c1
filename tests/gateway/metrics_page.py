"""The metrics page of a gateway that runs here."""

import asyncio
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from support.waiting import DEADLINE_SECONDS


@dataclass(frozen=True)
class MetricsPage:
    """The page at one moment: samples by name, each with its labels."""

    samples: dict[str, list[tuple[dict[str, str], float]]]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's values with these labels; 0 if there is none."""
        return sum(
            value for own, value in self.samples.get(name, []) if labels.items() <= own.items()
        )

    def values_of(self, name: str, label: str) -> set[str]:
        """Return all values of a metric's label."""
        return {own[label] for own, _ in self.samples.get(name, [])}


async def metrics_page(port: int) -> MetricsPage:
    """Read the page once."""

    def read() -> str:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
            text: str = answer.read().decode()
            return text

    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return MetricsPage(found)
