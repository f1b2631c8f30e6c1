"""`rockoon ... config` and `rockoon apply --prune` while a process does not answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = "127.0.0.1:1"


@pytest.fixture
def killed(cluster: Any) -> Iterator[str]:
    """A broker that is in the routes and does not answer."""
    cluster.kill("broker-b")
    yield "broker-b"
    cluster.start("broker-b")


def test_a_process_that_does_not_answer_is_named(rockoon: Any, killed: str) -> None:
    ran = rockoon("broker", "config", "get", "log_level", status=1)
    assert "broker-a" in ran.out
    assert f"{killed} does not answer" in ran.out
    shown = rockoon("broker", "config", "get", "log_level", "--json", status=1).json
    assert [each["error"] is None for each in shown] == [True, False]
    rockoon("broker", "config", "get", "log_level", "--node", "broker-a")


def test_a_nameserver_that_does_not_answer_is_named(rockoon: Any, cluster: Any) -> None:
    both = f"{cluster.nameservers[0]},{NOBODY}"
    ran = rockoon("nameserver", "config", "get", "log_level", "--nameservers", both, status=1)
    assert f"{NOBODY} does not answer" in ran.out


def test_nothing_is_pruned_if_the_settings_of_a_node_are_unknown(
    rockoon: Any, killed: str, tmp_path: Path
) -> None:
    (tmp_path / "resources.yaml").write_text("owner: config-x")
    for option in ("--plan", "--prune"):
        refused = rockoon("apply", "-f", str(tmp_path), "--prune", option, status=1).err
        assert f"setting of broker {killed}: " in refused
        assert "nothing is applied" in refused
