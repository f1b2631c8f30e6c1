"""HTTP/2 layers beside each other: the raw peers, the former layer's packages, and the tables."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.compare.programs import ROOT, Interrupts, MeasureFailed, NotHere, Program
from bench.gateway.__main__ import FLOORS, PAGE
from bench.layers import checkout, echo, frames
from bench.layers.calls import Calls
from bench.layers.comparison import BURST_FULL, LONG_IN, LayerComparison
from bench.layers.servers import Layer
from bench.tables import CALL_CPU, MESSAGE_CPU, between
from rockoon.local.directory import PortBlock
from rockoon_rpc.channel import Channel


@contextmanager
def raw_server(folder: Path) -> Iterator[int]:
    """The port of a server that returns DATA frames as they came."""
    ports = PortBlock()
    port = ports.choose()
    command = [sys.executable, "-m", "bench.layers.raw_server", port]
    program = Program("raw server", command, folder / "log", {"PYTHONPATH": str(ROOT)})
    try:
        program.wait_listening(port)
        yield port
    finally:
        program.stop()
        ports.close()


@pytest.mark.parametrize("name", ["own", "grpc"])
def test_a_server_echoes_streams_and_a_raw_client_sees_it(name: str, tmp_path: Path) -> None:
    ports = PortBlock()
    port = ports.choose()
    program = Layer(name, name).started(tmp_path, port)
    try:
        frames.check(port)
        assert frames.one_by_one(port, 0.05) > 1
        # More than the window that the server gives at first.
        assert frames.burst(port, echo.COUNT, in_full_frames=True) == frames.BURST_MESSAGES
        with frames.connected(port, 3) as clients:
            frames.call_each(clients)
            frames.call_each(clients)
    finally:
        program.stop()
        ports.close()


def test_a_wrong_answer_fails_the_check(tmp_path: Path) -> None:
    with (
        raw_server(tmp_path) as port,
        pytest.raises(MeasureFailed, match=r"/bench\.Echo/In: the answer has 1048581 bytes"),
    ):
        frames.check(port)


async def test_a_channel_makes_each_kind_of_calls_to_the_raw_server(tmp_path: Path) -> None:
    with raw_server(tmp_path) as port:
        async with Channel(f"127.0.0.1:{port}") as channel:
            calls = Calls(channel)
            assert await calls.unary(0.02, 10) >= 10
            assert await calls.one_by_one(0.02) >= 1
            assert await calls.burst(0.0) == 20_000


def test_a_clone_without_the_former_commit_is_told_what_to_do(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with pytest.raises(NotHere, match=r"commit 0123456\S* cannot be extracted.*--unshallow"):
        checkout.environment(tmp_path, "0123456" + "0" * 33)


def test_the_former_layer_is_not_confused_with_this_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMER_LAYER", str(tmp_path))
    with pytest.raises(ImportError):
        echo.layer("former")


def test_goals_are_of_the_rounds_median_and_of_the_ratio_in_each_round(tmp_path: Path) -> None:
    comparison = LayerComparison(tmp_path, 3, 0.1, Interrupts())
    own, former = Layer("this checkout", "own"), Layer("former", "former")
    comparison.compare({"own": own, "former": former})
    for cpu, long, beside in ((1.5, 110.0, 100.0), (9.0, 240.0, 200.0), (1.75, 120.0, 100.0)):
        comparison.servers.add(own.column, BURST_FULL, {MESSAGE_CPU: cpu})
        comparison.servers.add(own.column, LONG_IN, {CALL_CPU: long})
        comparison.servers.add(former.column, LONG_IN, {CALL_CPU: beside})
    comparison.close()
    lines = comparison.text().splitlines()
    assert f"| server: {BURST_FULL} | ≤ 2 CPU µs a message | 1.75 | yes |" in lines
    assert f"| server: {LONG_IN} | ≤ 1.1 times the former layer's | 1.20 | **no** |" in lines
    assert "| server: 1 MiB out | ≤ 1.1 times the former layer's | not measured | |" in lines


def test_the_page_has_a_place_for_the_tables() -> None:
    assert between(PAGE, FLOORS)
