"""The command line itself: help, version, typos, and what is said when there is no cluster."""

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from rockoon.local.ports import choose_port
from rockoon_format import kernel


def test_help_names_every_command(rockoon: Any) -> None:
    shown = rockoon("--help").out
    for command in ("up", "status", "topic", "group", "produce", "consume", "offsets"):
        assert f"\n  {command} " in shown
    assert "reset" in rockoon("offsets", "--help").out


def test_version(rockoon: Any) -> None:
    shown = f"rockoon {version('rockoon')} (kernel: {kernel.name()})\n"
    assert rockoon("--version").out == shown


@pytest.mark.parametrize(
    ("installed", "cause"),
    [
        ("None", "rockoon-kernel is not installed"),
        (
            "types.SimpleNamespace(INTERFACE=-1)",
            "the installed rockoon-kernel is of another version",
        ),
    ],
)
def test_version_without_the_compiled_kernel_names_the_way_to_it(
    installed: str, cause: str
) -> None:
    program = (
        f"import sys, types; sys.modules['rockoon_kernel'] = {installed}\n"
        "sys.argv = ['rockoon', '--version']\n"
        "from rockoon.cli.app import run_command_line\n"
        "sys.exit(run_command_line())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    first, advice = ran.stdout.splitlines()
    assert first == f"rockoon {version('rockoon')} (kernel: numpy)"
    assert advice.startswith(f"{cause}, so NumPy")
    assert advice.endswith("run: pip install --upgrade 'rockoon[local]'")


def test_help_loads_neither_grpc_nor_numpy() -> None:
    program = (
        "import sys; sys.argv = ['rockoon', '--help']\n"
        "from rockoon.cli.app import run_command_line\n"
        "run_command_line()\n"
        "heavy = {'grpc', 'numpy', 'google.protobuf', 'asyncio', 'uvloop', 'email', 'rich'}\n"
        "heavy &= sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["topik", "list"], "topic"),
        (["topic", "creat", "x"], "create"),
        (["offsets", "rest"], "reset"),
        (["topic", "create", "x", "--queus", "2"], "--queues"),
    ],
)
def test_a_typo_gets_a_suggestion(rockoon: Any, typed: list[str], meant: str) -> None:
    assert meant in rockoon.misused(*typed)


@pytest.mark.parametrize("arguments", [["topic", "list"], ["produce", "orders"], ["status"]])
def test_without_a_cluster_the_way_to_one_is_shown(rockoon: Any, arguments: list[str]) -> None:
    nowhere = f"127.0.0.1:{choose_port()}"
    ran = rockoon(*arguments, "--nameservers", nowhere, status=1)
    assert ran.out == ""
    assert f"rockoon: no nameserver answers at {nowhere}" in ran.err
    assert "`rockoon up`" in ran.err


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("topik", 2)])
def test_the_installed_command_is_the_one_tested_here(rockoon: Any, word: str, status: int) -> None:
    ended = subprocess.run([*rockoon.program, word], capture_output=True, timeout=60, check=False)
    assert ended.returncode == status


def test_an_address_that_is_none_is_refused(rockoon: Any) -> None:
    assert "'nonsense' is not of the form host:port" in rockoon.fails(
        "topic", "list", "--nameservers", "nonsense"
    )
