"""How tests are shared out when several processes run them, and by which chance they go."""

import signal
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from support.seeds import fresh_seeds

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fresh" if fresh_seeds() else "same")


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would every process of ours."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def needs_spark(file: str) -> bool:
    """Whether tests of a file, by its path from the root, share the session of tests/spark."""
    return file.startswith("tests/spark/") and "spark: SparkSession" in (ROOT / file).read_text()


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def is_random(item: pytest.Item) -> bool:
    """Whether chance plays a part: Hypothesis', or a seed's that stands in the test's name."""
    if not isinstance(item, pytest.Function):
        return False
    seeded = hasattr(item, "callspec") and "seed" in item.callspec.params
    return seeded or hypothesis.is_hypothesis_test(item.function)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that one process has to run, one after another, begin first: nobody waits for them."""
    for item in items:
        if is_random(item):
            item.add_marker("random")
    items.sort(key=lambda item: not needs_spark(file_of(item.nodeid)))


class ByFile(LoadScopeScheduling):
    """The tests of one file run in one process, so that they share its clusters; so do all that
    share the Spark session, which takes seconds to start and a gigabyte."""

    def _split_scope(self, nodeid: str) -> str:
        file = file_of(nodeid)
        return "tests/spark" if needs_spark(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)
