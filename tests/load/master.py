"""The master process of Locust: gives the order to spawn, and collects the workers' reports.

SIGINT ends the run early: the measurements until then are still written.

Writes into the results' directory: Locust's CSV files (`load_*.csv`) and report (`report.html`),
the `ledger` for the auditor, and `measured.json`, from which the profile is made.
"""

import argparse
import json
import logging
import signal
import time
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.event import Events
from locust.html import get_html_report
from locust.stats import PERCENTILES_TO_REPORT, StatsCSVFileWriter, stats_history

from load import ledger
from load.histogram import Histogram
from load.ledger import Kind
from load.plan import Plan
from load.scenarios import SCENARIOS
from load.shapes import SHAPES
from load.users import USERS
from load.worker import LAST_REPORT_TAKEN, REPORT

log = logging.getLogger(__name__)

WORKERS_SECONDS_MAX = 600.0
"""Their machines may have to fetch an image first."""
STOP_SECONDS_MAX = 60.0
LAST_REPORTS_SECONDS_MAX = 60.0
"""A worker that Locust reports as missing may still be alive, on a busy machine."""
LOOK_SECONDS = 0.1
LAST_ROW_SECONDS = 1.2
"""Locust's CSV writer has a turn every second."""


class Master:
    """Lives for one run.

    Args:
        plan: plan of the run.
        directory: directory of the results.
        port: port for the workers, on every interface.
    """

    def __init__(self, plan: Plan, directory: Path, port: int) -> None:
        self._plan = plan
        self._directory = directory
        scenario = SCENARIOS[plan.scenario]
        users = [USERS[name] for name in scenario.users]
        for each in users:
            each.weight = scenario.users[each.__name__]
        shape = SHAPES[plan.shape](plan.users, plan.seconds)
        gevent.signal_handler(signal.SIGINT, shape.stop)
        self._environment = Environment(
            user_classes=users,
            shape_class=shape,
            events=Events(),
            host=plan.endpoint,
            stop_timeout=STOP_SECONDS_MAX,
            parsed_options=argparse.Namespace(
                plan=plan.to_json(),
                headless=False,
                enable_rebalancing=False,
                stop_timeout=STOP_SECONDS_MAX,
                web_base_path="",
            ),
            locustfile=f"scenario {plan.scenario}",
        )
        self._runner = self._environment.create_master_runner("*", port)
        self._runner.register_message(REPORT, self._take_report)
        self._ledger = (directory / "ledger").open("ab", buffering=0)
        self._totals: dict[str, Histogram] = {}
        self._bytes: dict[str, int] = {}
        # By interval since the first report.
        self._intervals: dict[int, dict[str, Histogram]] = {}
        self._rows: list[dict[str, Any]] = []
        self._failures = 0
        # By worker, since its first user.
        self._cpu_seconds: dict[str, float] = {}
        # By worker, whether its last report has arrived.
        self._has_last_report: dict[str, bool] = {}

    def run(self) -> None:
        """Execute the run.

        Raises:
            TimeoutError: too few workers connected.
        """
        self._write_groups()
        self._wait_workers()
        csv = StatsCSVFileWriter(
            self._environment, PERCENTILES_TO_REPORT, str(self._directory / "load"), True
        )
        writing = gevent.spawn(csv.stats_writer)
        history = gevent.spawn(stats_history, self._runner)
        began = time.time_ns() / 1e9
        self._runner.start_shape()
        while self._runner.shape_greenlet is not None:
            gevent.sleep(LOOK_SECONDS)
        ended = time.time_ns() / 1e9
        lost = self._wait_last_reports()
        gevent.sleep(LAST_ROW_SECONDS)
        gevent.killall([writing, history])
        csv.close_files()
        report = get_html_report(self._environment, show_download_link=False)
        (self._directory / "report.html").write_text(report)
        self._ledger.write(ledger.encode(Kind.END))
        self._write_measured(began, ended, lost)
        self._runner.quit()

    def _write_groups(self) -> None:
        for group in self._plan.group_names:
            name = "\n".join([group, *self._plan.topic_names])
            self._ledger.write(ledger.encode(Kind.GROUP, name))

    def _wait_workers(self) -> None:
        deadline = time.monotonic() + WORKERS_SECONDS_MAX
        while self._runner.worker_count < self._plan.workers:
            if time.monotonic() > deadline:
                found = self._runner.worker_count
                raise TimeoutError(f"{found} of {self._plan.workers} workers came")
            gevent.sleep(LOOK_SECONDS)

    def _wait_last_reports(self) -> list[str]:
        """Wait for the last report of each worker; return the workers that did not send it.

        Locust does not wait for a worker whose heartbeats are late, but the ledger has to be
        complete.
        """
        deadline = time.monotonic() + LAST_REPORTS_SECONDS_MAX
        log.info("users have stopped; waiting for the last report of each worker")
        while lost := [name for name, has in self._has_last_report.items() if not has]:
            if time.monotonic() > deadline:
                break
            gevent.sleep(LOOK_SECONDS)
        return lost

    def _take_report(self, msg: Any, **_: Any) -> None:
        self._has_last_report.setdefault(msg.node_id, False)
        if msg.data["is_last"]:
            self._has_last_report[msg.node_id] = True
            self._runner.send_message(LAST_REPORT_TAKEN, client_id=msg.node_id)
        self._ledger.write(msg.data["ledger"])
        interval = self._interval()
        for name, raw in msg.data["latencies"].items():
            found = Histogram.from_bytes(raw)
            for totals in (self._totals, interval):
                totals.setdefault(name, Histogram()).add_all([found])
        for name, count in msg.data["bytes"].items():
            self._bytes[name] = self._bytes.get(name, 0) + count
        self._failures += msg.data["failures"]
        self._cpu_seconds[msg.node_id] = msg.data["cpu_seconds"]

    def _interval(self) -> dict[str, Histogram]:
        """Return histograms of the present interval; earlier ones become rows, which use less
        memory."""
        now = int(time.monotonic() / self._plan.interval_seconds)
        if now not in self._intervals:
            self._write_rows()
        return self._intervals.setdefault(now, {})

    def _write_rows(self) -> None:
        for number, found in sorted(self._intervals.items()):
            row: dict[str, Any] = {"second": number * self._plan.interval_seconds}
            for name, each in found.items():
                levels = {f"p{level}": each.percentile_ms(level) for level in (50, 99)}
                row[name] = {"count": len(each), **levels}
            self._rows.append(row)
        self._intervals.clear()

    def _write_measured(self, began: float, ended: float, lost: list[str]) -> None:
        operations = {
            name: {
                "count": len(histogram),
                "bytes": self._bytes.get(name, 0),
                "latency_ms": histogram.summary(),
            }
            for name, histogram in sorted(self._totals.items())
        }
        self._write_rows()
        began_at = time.monotonic() - (time.time_ns() / 1e9 - began)
        timeline = [{**row, "second": round(row["second"] - began_at, 1)} for row in self._rows]
        measured = {
            "began_s": began,
            "ended_s": ended,
            "operations": operations,
            "failures": self._failures,
            "exceptions": {each["msg"]: each["count"] for each in self._runner.exceptions.values()}
            | {f"worker {name} did not send its last report": 1 for name in lost},
            "workers_cpu_seconds": sum(self._cpu_seconds.values()),
            "interval_seconds": self._plan.interval_seconds,
            "timeline": timeline,
        }
        (self._directory / "measured.json").write_text(json.dumps(measured, indent=1))
