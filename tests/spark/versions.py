"""`make spark-versions`: tests/spark with the oldest and the newest declared PySpark.

pip finds the released versions, and installs those that the environment does not have into
.compare. The newest version before the declared ones is refused with a sentence.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import version

from packaging.version import Version
from spark.test_spark_version import declared

from bench.compare.programs import CACHE, ROOT, is_made, mark, run

# A program creates a DataFrame in its own session.
REFUSED = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.read.format("rockoon").option("path", "/").load()
"""


def released() -> list[Version]:
    """Return the released versions of PySpark, ascending."""
    said = run([sys.executable, "-m", "pip", "index", "versions", "pyspark"])
    (line,) = re.findall(r"^Available versions: (.*)$", said, re.MULTILINE)
    return sorted(map(Version, line.split(", ")))


def environment_of(wanted: Version) -> dict[str, str]:
    """Return variables with which Python finds a version before the installed one."""
    paths = [str(ROOT / "spark")]
    if wanted != Version(version("pyspark")):
        folder = CACHE / f"pyspark-{wanted}"
        requirement = f"pyspark=={wanted}"
        if not is_made(folder / "requirement", requirement.encode()):
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            run(["rm", "-rf", folder])
            run([*pip, "--target", folder, requirement])
            mark(folder / "requirement", requirement.encode())
        paths.insert(0, str(folder))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def result_of(wanted: Version) -> tuple[str, bool]:
    """Return the last line of pytest for tests/spark, and whether no test failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/spark"]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment_of(wanted), stdout=subprocess.PIPE, text=True
    )
    if ended.returncode:
        print(ended.stdout)
    return ended.stdout.strip().splitlines()[-1], not ended.returncode


def refusal_of(wanted: Version) -> str:
    """Return the sentence with which a version is refused, or "" if it is accepted."""
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env=environment_of(wanted) | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"rockoon-spark does not work with .*", ended.stderr)
    return found[-1] if ended.returncode and found else ""


def main() -> int:
    every, range_ = released(), declared().specifier
    inside = [each for each in every if each in range_]
    status = 0
    for wanted in sorted({inside[0], inside[-1]}):
        sentence, passed = result_of(wanted)
        print(f"PySpark {wanted}: {sentence}", flush=True)
        status |= not passed
    before = max(each for each in every if each < inside[0])
    sentence = refusal_of(before)
    print(f"PySpark {before}: {sentence or 'not refused'}")
    return status | (not sentence)


if __name__ == "__main__":
    raise SystemExit(main())
