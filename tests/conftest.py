"""How tests are shared out when several processes run them, and by which chance they go."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache, partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
from rockoon.local import process
from rockoon.local.etcd import VARIABLE, find_etcd
from rockoon_core.repeated_lines import OF_LIBRARIES
from support.seeds import fresh_seeds
from support.session_fixtures import SessionFixtures
from support.warm_nodes import StartProgram, WarmNodes

ROOT = Path(__file__).parent.parent
# Some images set this variable, and each process would compile each module. `make` removes it, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# `rockoon up` builds an etcd where there is a Go: once, but for minutes. Tests take what there is.
os.environ.setdefault(VARIABLE, str(find_etcd()))
# What takes long and begins late would run alone at the end: these begin first, longest first.
LONG = (
    "tests/spark, first half",
    "tests/spark, second half",
    "tests/cli",
    "tests/hosts/test_hosts.py",
    "tests/cluster/test_kill_under_load.py",
    "tests/cluster/test_rolling_restart.py",
    "tests/load/test_load_run.py",
    "tests/gateway/test_heard_anywhere.py",
    "tests/cluster/test_order.py",
    "tests/cluster/test_delayed_messages.py",
    "tests/local/test_local_cluster.py",
    "tests/gateway/test_pages.py",
    "tests/gateway/test_local_gateway.py",
    "tests/security/test_tls_cluster.py",
    "tests/cluster/test_retries.py",
    "tests/local/test_pytest_plugin.py",
    "tests/demo/test_demo.py",
    "tests/torture/test_group_torture.py",
    "tests/telemetry/test_traces_of_a_cluster.py",
    "tests/transactions/test_kill.py",
)
FIRST_OF_SECOND_HALF = "tests/spark/test_k"
# Nodes of their clusters are new processes, because these tests are about starts or memory.
COLD = (
    "tests/local/test_node.py",
    "tests/local/test_single.py",
    "tests/gateway/test_vanished_clients.py",
    "tests/capacity/",
    "tests/cluster/test_rolling_restart.py",
)

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fresh" if fresh_seeds() else "same")


@pytest.fixture(autouse=True)
def own_log_intervals() -> None:
    """Lines of one test do not suppress those of the next one."""
    OF_LIBRARIES.forget()


@cache
def spark_half(file: str) -> str:
    """Return the half of tests/spark that a file is in; the tests of a half share a Spark session.

    Returns:
        Empty if the file needs no Spark session. Each half needs half of the time.
    """
    if (
        not file.startswith("tests/spark/")
        or "spark: SparkSession" not in (ROOT / file).read_text()
    ):
        return ""
    half = "first" if file < FIRST_OF_SECOND_HALF else "second"
    return f"tests/spark, {half} half"


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def is_random(item: pytest.Item) -> bool:
    """Whether chance plays a part: Hypothesis', or a seed's that stands in the test's name."""
    if not isinstance(item, pytest.Function):
        return False
    seeded = hasattr(item, "callspec") and "seed" in item.callspec.params
    return seeded or hypothesis.is_hypothesis_test(item.function)


def unit_of(nodeid: str) -> str:
    """Return the unit of a test: one process runs the tests of a unit one after another.

    Units are files, because the tests of a file share clusters; halves of tests/spark, because a
    Spark session takes seconds to start and a gigabyte; and tests/cli, whose tests share a cluster.
    """
    file = file_of(nodeid)
    return "tests/cli" if file.startswith("tests/cli/") else spark_half(file) or file


def turn(item: pytest.Item) -> tuple[int, str]:
    unit = unit_of(item.nodeid)
    return LONG.index(unit) if unit in LONG else len(LONG), file_of(item.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would every process of ours.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(SessionFixtures())
    if sys.platform == "linux":
        nodes = WarmNodes(process.start_program)
        process.start_program = partial(start_program, nodes, process.start_program)
        config.add_cleanup(nodes.close)
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args == config.getini("testpaths"):
        config.args[:] = places(worker)


def start_program(warm: WarmNodes, cold: StartProgram, *program: Any) -> Any:
    """Start a node of a local cluster, see `rockoon.local.process.start_program`."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return cold(*program) if test.startswith(COLD) else warm.start(*program)


def places(worker: dict[str, Any]) -> list[str]:
    """Where tests are, in an order of each worker's own. All have to collect everything, and mostly
    they compile; so each compiles some, and finds what others have compiled."""
    found = sorted(str(path) for path in (ROOT / "tests").glob("[a-z]*") if is_place(path))
    first = int(worker["workerid"].removeprefix("gw")) * len(found) // worker["workercount"]
    return found[first:] + found[:first]


def is_place(path: Path) -> bool:
    return path.is_dir() or path.name.startswith("test_")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items live to the end, so the garbage collector neither looks for garbage among
    them while they are made nor later: a third of the time of a collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All processes agree on one order."""
    for item in items:
        if is_random(item):
            item.add_marker("random")
    items.sort(key=turn)


class ByUnit(LoadScopeScheduling):
    """Hands out units, in the order of their tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByUnit:
    # By default those with the most tests begin first.
    config.option.loadscopereorder = False
    return ByUnit(config, log)
