"""Scenarios with a restart share one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.shared_restart import SharedRestart


def test_scenarios_share_one_restart_although_one_ends_before_it() -> None:
    events: list[str] = []
    shared = SharedRestart(lambda: events.append("restart"), 3)

    def played(name: str, *, restarts: bool) -> None:
        try:
            if restarts:
                events.append(f"{name} asks")
                shared.ask()
                events.append(f"{name} goes on")
        finally:
            shared.leave()

    with ThreadPoolExecutor(3) as pool:
        for done in [
            pool.submit(played, name, restarts=restarts)
            for name, restarts in (("a", True), ("b", True), ("failed", False))
        ]:
            done.result(10)
    assert sorted(events[:2]) == ["a asks", "b asks"]
    assert events[2] == "restart"
    assert sorted(events[3:]) == ["a goes on", "b goes on"]


def test_a_scenario_may_ask_again() -> None:
    restarts: list[int] = []
    shared = SharedRestart(lambda: restarts.append(1), 1)
    shared.ask()
    shared.ask()
    shared.leave()
    assert len(restarts) == 2


def test_a_failed_restart_blocks_no_scenario() -> None:
    def fail() -> None:
        raise OSError("the port is in use")

    shared = SharedRestart(fail, 1)
    with pytest.raises(OSError, match="in use"):
        shared.ask()
    shared.leave()
