"""`make test` forgives a few failures that do not repeat, and only those (tools/once_more.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Of a suite's tests, those that fail in the first run only: they find no trace of an earlier one.
ONCE = """
from pathlib import Path

def fails_once(name):
    trace = Path(__file__).with_name(name)
    if not trace.exists():
        trace.touch()
        raise AssertionError(f"the first time of {name}")
"""


def suite(tests: str, directory: Path, workers: int = 1) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").touch()
    (directory / "test_suite.py").write_text(ONCE + tests)
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "-ra"]
    command += ["-p", "tools.once_more"]
    # Only what is needed: dozens of processes start here.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **plugins, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def closing(run: subprocess.CompletedProcess[str]) -> str:
    return run.stdout.splitlines()[-1].strip("= ").partition(" in ")[0]


def test_what_fails_once_is_named_and_the_run_is_green(tmp_path: Path) -> None:
    tests = """
import pytest

@pytest.fixture
def torn_down():
    yield
    fails_once("teardown")

def test_steady(): pass
@pytest.mark.parametrize("of", ["a b", "c::d/e"])
def test_call(of): fails_once("call " + of[0])
def test_teardown(torn_down): pass
"""
    run = suite(tests, tmp_path)
    assert (run.returncode, closing(run)) == (0, "4 passed"), run.stdout
    assert "the first time of teardown" in run.stdout
    for name in ("test_call[a b]", "test_call[c::d/e]", "test_teardown"):
        said = f"unsteady: test_suite.py::{name}: failed in company, passed alone"
        assert said in run.stdout
    assert "FAILED" not in run.stdout


# One that fails twice is not forgiven, nor what passed beside it.
ALWAYS = """
def test_always(): assert "always" == "never"
def test_once(): fails_once("once")
def test_steady(): pass
"""
FOUR = """
import pytest
@pytest.mark.parametrize("at", "abcd")
def test_one(at): fails_once(at)
"""
UNCOLLECTED = """
fails_once("module")
def test_one(): pass
"""
CRASH = """
import os
def test_one():
    try: fails_once("crash")
    except AssertionError: os._exit(3)
"""
SKIPPED = """
import pytest
def test_one():
    fails_once("skipped")
    pytest.skip()
"""


@pytest.mark.parametrize(
    ("tests", "failed"),
    [
        pytest.param(ALWAYS, "2 failed, 1 passed", id="one_that_always_fails"),
        pytest.param(FOUR, "4 failed", id="four"),
        pytest.param(UNCOLLECTED, "1 error", id="a_module"),
        pytest.param(CRASH, "1 failed", id="a_crash"),
        pytest.param(SKIPPED, "1 failed", id="one_that_is_skipped_alone"),
    ],
)
def test_the_run_stays_red_for(tests: str, failed: str, tmp_path: Path) -> None:
    # Without workers, a crash would end pytest itself, and a failed import has another status.
    run = suite(tests, tmp_path, workers=int(tests in (CRASH, UNCOLLECTED)))
    assert (run.returncode, closing(run)) == (1, failed), run.stdout
