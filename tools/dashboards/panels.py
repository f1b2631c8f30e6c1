"""Dashboards in Grafana's JSON, from what is particular to each: titles, expressions and units.

Written for schema version 39 (Grafana 10.4); later Grafanas read it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24


@dataclass(frozen=True)
class Query:
    """An expression in PromQL and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: what is shown.
        unit: in Grafana's terms.
        queries: its lines.
        doc: what a reader should make of it.
        kind: "timeseries", "stat" (the last value alone) or "bargauge" (one bar for each line).
        stacked: lines lie on one another.
        width: of 24 columns.
        limits: values from which on the colour is another: (yellow, red).
    """

    title: str
    unit: str
    queries: Sequence[Query]
    doc: str
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8
    limits: tuple[float, float] | None = None

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8


@dataclass(frozen=True)
class Row:
    """Panels under a headline."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dashboard:
    """A page.

    Attributes:
        uid: by which others link to it, and its file's name.
        title: as listed.
        rows: what is on it.
        variables: names of labels that can be chosen, each with a metric that has it.
    """

    uid: str
    title: str
    rows: Sequence[Row]
    variables: Sequence[tuple[str, str]]

    def as_json(self) -> dict[str, Any]:
        """The whole page as Grafana imports it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["rockoon"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards",
                    "title": "Rockoon",
                    "tags": ["rockoon"],
                    "asDropdown": True,
                    "keepTime": True,
                    "includeVars": True,
                }
            ],
            "templating": {"list": [_source(), *map(_variable, self.variables)]},
            "panels": self._laid_out(),
        }

    def _laid_out(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        top = 0
        for row in self.rows:
            place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
            found.append(
                {
                    "id": len(found) + 1,
                    "type": "row",
                    "title": row.title,
                    "gridPos": place,
                    "collapsed": False,
                    "panels": [],
                }
            )
            top += 1
            left = height = 0
            for panel in row.panels:
                if left + panel.width > COLUMNS:
                    top, left, height = top + height, 0, 0
                place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
                found.append(_panel(panel, len(found) + 1, place))
                left, height = left + panel.width, max(height, panel.height)
            top += height
        return found


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _variable(variable: tuple[str, str]) -> dict[str, Any]:
    label, metric = variable
    return {
        "name": label,
        "label": label.replace("_", " ").capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limits is not None:
        colors = zip(("yellow", "red"), panel.limits, strict=True)
        # Where little is bad, the colours come in the other order.
        if panel.limits[0] > panel.limits[1]:
            yellow, red = panel.limits
            steps = [
                {"color": "red", "value": None},
                {"color": "yellow", "value": red},
                {"color": "green", "value": yellow},
            ]
        else:
            steps += [{"color": color, "value": value} for color, value in colors]
    custom = {
        "lineWidth": 1,
        "fillOpacity": 20 if panel.stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind != "timeseries":
        custom = {}
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "orientation": "horizontal",
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.doc,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": custom,
                "color": {"mode": "thresholds" if panel.limits else "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
