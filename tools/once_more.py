"""A pytest plugin of `make test`: what failed in company runs once more, alone.

A few of thousands of tests may fail because others share the machine's processors, and a whole run
would be lost by one. So up to TESTS_MAX that failed run again when all others have ended, each in a
process of its own. Where all of them pass, the run is green, and names each under "unsteady", below
what it failed by. More failures, a module that cannot be collected and a process that crashed are
as bad as ever, as is one that fails twice.
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
    """Failures have been printed by now; the short summary and the closing line come next."""
    stats = terminalreporter.stats
    failures = [report for kind in FAILURES for report in stats.get(kind, ())]
    names = list(dict.fromkeys(report.nodeid for report in failures))
    if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= TESTS_MAX:
        return
    # With --maxfail there are tests that did not run at all.
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
            # One that failed while it was torn down has been counted.
            if report.nodeid not in known:
                known.add(report.nodeid)
                stats.setdefault("passed", []).append(report)
    config.stash[SESSION].exitstatus = pytest.ExitCode.OK


def of_a_test(report: object) -> bool:
    """Whether a test failed, rather than its module, or the process that ran it."""
    return isinstance(report, pytest.TestReport) and report.when in ("setup", "call", "teardown")


def run_alone(name: str, config: pytest.Config) -> str | None:
    """Run one test in a new process; what pytest says about it, None if it passed."""
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
