"""The cluster on several hosts: packets vanish between some of them for some time.

The rules are in `verdict.py`; `make hosts` does the same for every pair, with the default settings
and for longer.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hosts.network import why_not

ROOT = Path(__file__).resolve().parents[2]
# As with the defaults, in less time.
QUICK = {
    "nameserver": {"node_lease_seconds": 2},
    "offset": {"heartbeat_seconds": 0.4, "lease_seconds": 2.0, "handover_seconds_max": 2.0},
}


@pytest.fixture(scope="module", autouse=True)
def _hosts_are_possible() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)


def go_through(directory: Path, cuts: Sequence[str], settings: object, *pace: str) -> None:
    """Run and check `hosts`; it ends with this process, and with it all its processes."""
    chosen = [argument for cut in cuts for argument in ("--cut", cut)]
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "hosts", "--with-stdin", "--keep", str(directory)),
            *("--settings", json.dumps(settings), *chosen, *pace),
        ],
        cwd=ROOT / "tests",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        said = running.stdout.read()
        print(said)
        assert running.wait() == 0, said


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_members_that_lose_the_offset_service_let_others_go_on_and_come_back(
    tmp_path: Path,
) -> None:
    cuts = ["clients ✕ offset service", "one broker ✕ everybody"]
    pace = ("--copies=1", "--before-seconds=0", "--cut-seconds=4", "--calm-seconds=1")
    go_through(tmp_path, cuts, QUICK, *pace)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("copies", [1, 3])
def test_every_pair_is_cut_and_every_process_hurt(tmp_path: Path, copies: int) -> None:
    go_through(tmp_path, [], {}, f"--copies={copies}")
