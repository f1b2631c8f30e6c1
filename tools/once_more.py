"""A pytest plugin of `make test`: repeats a few failed tests, each in a new process.

A few of thousands of tests may fail because the tests share the machine's processors. To keep this
from failing the whole run, the plugin repeats up to TESTS_MAX failed tests after all tests have
ended. If all repeated tests pass, the run passes, and the summary lists them as "unsteady" below
their failures. More failures, an import error of a test module, a crashed process, and a
test that fails twice still fail the run.
"""

import subprocess
import sys

import pytest

TESTS_MAX = 3
FAILURES = ("failed", "error")
SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[SESSION] = session


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Runs after the failures were printed, before the short summary and the closing line."""
    stats = terminalreporter.stats
    failures = [report for kind in FAILURES for report in stats.get(kind, ())]
    names = list(dict.fromkeys(report.nodeid for report in failures))
    if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= TESTS_MAX:
        return
    # With --maxfail, some tests did not run.
    if config.getoption("maxfail") or not all(map(of_a_test, failures)):
        return
    terminalreporter.section("once more, alone")
    again = {name: run_alone(name, config) for name in names}
    for name, answer in again.items():
        if answer is None:
            line = f"unsteady: {name}: failed in company, passed alone"
            terminalreporter.write_line(line, yellow=True, bold=True)
        else:
            terminalreporter.write_line(answer)
    if any(again.values()):
        return
    known = {report.nodeid for report in stats.get("passed", ())}
    for kind in FAILURES:
        for report in stats.pop(kind, ()):
            # A test that failed during teardown is already counted as passed.
            if report.nodeid not in known:
                known.add(report.nodeid)
                stats.setdefault("passed", []).append(report)
    config.stash[SESSION].exitstatus = pytest.ExitCode.OK


def of_a_test(report: object) -> bool:
    """True if a test failed, False for an import error of its module or a crash of its process."""
    return isinstance(report, pytest.TestReport) and report.when in ("setup", "call", "teardown")


def run_alone(name: str, config: pytest.Config) -> str | None:
    """Run one test in a new process; returns pytest's output, None if the test passed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", name]
    run = subprocess.run(
        command,
        cwd=config.rootpath,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    passed = run.returncode == 0 and " 1 passed" in run.stdout.rstrip().rpartition("\n")[2]
    return None if passed else run.stdout + run.stderr
