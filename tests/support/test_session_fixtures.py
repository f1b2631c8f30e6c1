"""Session fixtures of a directory end with its tests (support/session_fixtures.py)."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def first():
    print("first begins")
    yield
    print("first ends")

@pytest.fixture(scope="session")
def second(first):
    print("second begins")
    yield
    print("second ends")
"""
TEST = """
def test_one(second): print("{0} 1")
def test_two(second): print("{0} 2")
"""
PLUGIN = """
from support.session_fixtures import SessionFixtures

def pytest_configure(config): config.pluginmanager.register(SessionFixtures())
"""


def test_a_directory_s_fixtures_end_before_the_tests_of_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text(PLUGIN)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text(CONFTEST)
        (tmp_path / name / f"test_{name}.py").write_text(TEST.format(name))
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "--import-mode=importlib", "-p", "no:logging"],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    begin, end = ["first begins", "second begins"], ["second ends", "first ends"]
    said = [line.lstrip(".") for line in run.stdout.splitlines() if line.strip(".")]
    wanted = [*begin, "a 1", "a 2", *end, *begin, "b 1", "b 2", *end]
    assert [line for line in said if "passed" not in line] == wanted
