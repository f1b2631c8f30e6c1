"""The versions of PySpark with which the package works."""

import re

from pyspark.version import __version__ as installed

FIRST, END = (4, 3), (4, 4)
"""The first supported version, and the first one after the supported ones; as in pyproject.toml."""


class SparkUnsupported(Exception):
    """The package does not work with the installed PySpark."""


def check_spark(version: str = installed) -> None:
    """Check that a version of PySpark is supported; by default the installed one.

    Earlier versions lack classes of streams, or return rows of one query to another one.

    Raises:
        SparkUnsupported: it is not.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not FIRST <= numbers < END:
        first, end = (".".join(map(str, each)) for each in (FIRST, END))
        raise SparkUnsupported(
            f"rockoon-spark does not work with PySpark {version}:"
            f" `pip install 'pyspark>={first},<{end}'`"
        )
