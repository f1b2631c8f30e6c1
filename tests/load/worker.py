"""A worker process of Locust: its users, and its reports to the master."""

import argparse
import time
from typing import Any

import gevent
import gevent.event
from locust.env import Environment
from locust.event import Events
from locust.stats import StatsEntry

from load.account import Deltas
from load.plan import Plan
from load.sdk_thread import SdkThread
from load.users import USERS, SdkUser, Session

REPORT = "load-report"
LAST_REPORT_TAKEN = "load-last-report-taken"
REPORT_SECONDS = 0.5
LAST_REPORT_SECONDS_MAX = 60.0


class Worker:
    """Lives for one run.

    Args:
        host, port: address of the master.
    """

    def __init__(self, host: str, port: int) -> None:
        # The master sends the plan of the run with its order to spawn.
        options = argparse.Namespace(web_base_path="")
        self._environment = Environment(
            user_classes=list(USERS.values()), events=Events(), parsed_options=options
        )
        self._environment.events.test_start.add_listener(self._begin)
        self._environment.events.test_stop.add_listener(self._finish)
        self._session: Session | None = None
        self._cpu_began = 0.0
        self._finished = gevent.event.Event()
        self._taken = gevent.event.Event()
        self._runner = self._environment.create_worker_runner(host, port)
        self._runner.register_message(LAST_REPORT_TAKEN, lambda **_: self._taken.set())

    def run(self) -> None:
        """Return when the run is over, or the master is gone."""
        while not self._finished.wait(REPORT_SECONDS) and self._runner.greenlet:
            self._report()
        # Reports that the master does not have when this process ends are lost.
        self._taken.wait(LAST_REPORT_SECONDS_MAX if self._finished.is_set() else 0)
        if self._session is not None:
            self._session.thread.stop()

    def _begin(self, **_: Any) -> None:
        plan = Plan.from_json(self._environment.parsed_options.plan)
        thread = SdkThread(plan.endpoint)
        thread.start()
        self._session = Session(plan, thread, self._runner.worker_index)
        SdkUser.session = self._session
        # The time of imports is no part of the load.
        self._cpu_began = time.process_time()

    def _finish(self, **_: Any) -> None:
        self._finished.set()
        # For this time after its users have stopped, the runner would not read the master's reply.
        self._environment.stop_timeout = 0
        self._report(is_last=True)
        # Locust reports every three seconds; the last report is sent now.
        data: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=data)
        self._runner.send_message("stats", data)

    def _report(self, *, is_last: bool = False) -> None:
        if self._session is None:
            return
        deltas = self._session.account.take()
        self._count(deltas)
        data = {
            "ledger": deltas.ledger,
            "latencies": {name: each.to_bytes() for name, each in deltas.latencies.items()},
            "bytes": dict(deltas.bytes),
            "failures": sum(deltas.failures.values()),
            "cpu_seconds": time.process_time() - self._cpu_began,
            "is_last": is_last,
        }
        self._runner.send_message(REPORT, data)

    def _count(self, deltas: Deltas) -> None:
        """Add it to Locust's statistics."""
        stats = self._environment.stats
        for name, histogram in deltas.latencies.items():
            count = len(histogram)
            if not count:
                continue
            by_ms = histogram.by_ms()
            found = StatsEntry(None, name, "SDK")
            found.last_request_timestamp = found.start_time
            found.num_requests = count
            found.num_reqs_per_sec[int(found.start_time)] = count
            found.total_response_time = sum(ms * times for ms, times in by_ms.items())
            found.total_content_length = deltas.bytes[name]
            found.min_response_time, found.max_response_time = min(by_ms), max(by_ms)
            for ms, times in by_ms.items():
                found.response_times[_rounded(ms)] += times
            stats.get(name, "SDK").extend(found)
            stats.total.extend(found)
        for (name, error), count in deltas.failures.items():
            for _ in range(count):
                stats.log_error("SDK", name, error)


def _rounded(ms: float) -> int:
    """Round as Locust does: two significant digits."""
    digits = len(str(int(ms)))
    return int(round(ms, -max(digits - 2, 0))) if digits > 2 else round(ms)
