"""Dashboards use existing metrics: expressions, metrics, labels and units."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards.promql import labels_by_name, labels_left, metrics_of_services, parsed, selectors
from deploy.manifests import ROOT, build, pod_of

import rockoon_runtime.frontend
from rockoon_runtime.telemetry.metrics import Metric
from rockoon_runtime.telemetry.prometheus import names_on_page

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "deploy/grafana").glob("*.json"))
PROMETHEUS = REPOSITORY / "deploy/prometheus/prometheus.yml"
UNITS = {"none", "short", "bytes", "Bps", "cps", "s", "ms", "percentunit"}
KNOWN = labels_by_name()

# By the end of a metric's name; the test also checks rates.
UNIT_OF_NAME = (
    ("_bytes", "bytes"),
    ("_seconds", "s"),
    ("_seconds_max", "s"),
    ("_ratio", "percentunit"),
    ("_latency", "ms"),
    ("_reserve_time", "ms"),
)


def dashboard(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in page["panels"] if panel["type"] != "row"]


def test_there_is_a_page_for_each_part() -> None:
    assert [path.stem for path in FILES] == [
        f"rockoon-{part}"
        for part in ("broker", "cluster", "gateway", "groups", "offset", "spark", "topics")
    ]
    assert [dashboard(path)["uid"] for path in FILES] == [path.stem for path in FILES]


@pytest.mark.parametrize("metric", rockoon_runtime.frontend.TABLE, ids=lambda each: each.name)
def test_the_page_of_the_cluster_shows_connections_that_services_close(metric: Metric) -> None:
    page = dashboard(REPOSITORY / "deploy/grafana/rockoon-cluster.json")
    expressions = [target["expr"] for panel in panels(page) for target in panel["targets"]]
    assert any(metric.name in expression for expression in expressions)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_expression_asks_for_metrics_and_labels_that_there_are(path: Path) -> None:
    page = dashboard(path)
    variables = {each["name"]: each for each in page["templating"]["list"]}
    for panel in panels(page):
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            expression = parsed(target["expr"])
            for name, chosen in selectors(expression):
                assert name in KNOWN, f"{panel['title']}: {name}"
                assert chosen <= KNOWN[name], f"{panel['title']}: {chosen} of {name}"
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            left = labels_left(expression, KNOWN)
            assert shown <= left, f"{panel['title']}: {shown} of {sorted(left)}"
            # Two lines with one name could not be distinguished.
            assert left <= shown | {"job"}, f"{panel['title']}: {sorted(left)} and {shown}"
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables.keys(), panel["title"]
    for name, variable in variables.items():
        if variable["type"] == "query":
            metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])[
                0
            ]
            assert label == name
            assert label in KNOWN[metric]
            assert any(f"${name}" in t["expr"] for p in panels(page) for t in p["targets"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_has_the_unit_of_what_it_shows(path: Path) -> None:
    for panel in panels(dashboard(path)):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS, panel["title"]
        for target in panel["targets"]:
            (first, _), *_ = selectors(parsed(target["expr"]))
            is_rate = "rate(" in target["expr"] and "histogram_quantile" not in target["expr"]
            if "/" in target["expr"] or first.startswith("process_cpu"):
                assert unit in ("s", "percentunit")
            elif "time()" in target["expr"]:
                assert unit == "s"
            elif is_rate:
                is_bytes = "throughput" in first or "bytes" in first
                assert unit == ("Bps" if is_bytes else "cps"), panel["title"]
            else:
                name = first.removesuffix("_total").removesuffix("_bucket")
                name = re.sub(r"_min_offset_bytes$|_message_size$", "_bytes", name)
                name = name.replace("_request_milliseconds", "_latency")
                wanted = next((unit for end, unit in UNIT_OF_NAME if name.endswith(end)), None)
                assert unit == wanted or (wanted is None and unit in ("none", "short")), panel[
                    "title"
                ]


def test_no_two_panels_are_the_same_and_none_lie_on_one_another() -> None:
    asked: dict[str, str] = {}
    for path in FILES:
        page = dashboard(path)
        titles = [panel["title"] for panel in panels(page)]
        assert len(set(titles)) == len(titles)
        covered: set[tuple[int, int]] = set()
        for panel in page["panels"]:
            place = panel["gridPos"]
            own = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert max(x for x, _ in own) < 24
            assert not own & covered, panel["title"]
            covered |= own
        for panel in panels(page):
            assert panel["description"], panel["title"]
            where = f"{path.stem}: {panel['title']}"
            expressions = "; ".join(sorted(target["expr"] for target in panel["targets"]))
            assert expressions not in asked, f"{where} is {asked.get(expressions)}"
            asked[expressions] = where


def test_everything_that_services_measure_is_on_a_page() -> None:
    asked = {
        name
        for path in FILES
        for panel in panels(dashboard(path))
        for target in panel["targets"]
        for name, _ in selectors(parsed(target["expr"]))
    }
    # The first five are useful only to alerts, or beside other metrics.
    passed_over = {
        "rockoon_tls_certificate_left_seconds",
        "rocketmq_broker_permission",
        "rockoon_etcd_reachable",
        "rockoon_etcd_keys",
        "rockoon_recovery_clean",
        "rocketmq_producer_connections",
        "rocketmq_storage_size",
        "rocketmq_timer_dequeue_total",
    }
    missing = {
        metric.name
        for metric in metrics_of_services()
        if not {f"{name}{end}" for name in names_on_page(metric) for end in ("", "_bucket")} & asked
    }
    assert missing == passed_over


def test_production_has_them_and_its_pods_are_found() -> None:
    production = build(ROOT / "overlays/production")
    maps = [
        each
        for each in production.of_kind("ConfigMap")
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    assert {name for each in maps for name in each["data"]} == {path.name for path in FILES}
    for each in maps:
        # `kubectl apply` keeps a copy of each object in an annotation, and those are bounded.
        assert len(json.dumps(each)) < 256 << 10
    (rules,) = [m for m in production.of_kind("ConfigMap") if "rockoon-alerts.yml" in m["data"]]
    assert rules["metadata"]["name"] == "rockoon-alerts"
    (job,) = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    asked = job["relabel_configs"][0]
    assert asked["source_labels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    assert job["job_name"] == "rockoon", "alerts go by it"
    for workload, container in production.services():
        metadata = pod_of(workload)["metadata"]
        port = metadata["annotations"]["prometheus.io/port"]
        assert metadata["annotations"]["prometheus.io/scrape"] == "true"
        name = metadata["labels"]["app.kubernetes.io/component"]
        assert re.fullmatch(asked["regex"], name)
        assert {"name": "metrics", "containerPort": int(port)} in container["ports"]
