"""Ports of nodes, if several clusters choose at once."""

import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rockoon.local.cluster import LocalCluster, NodeKind, NodeRecord
from rockoon.local.directory import BLOCK_PORTS, HIGHEST, LOWEST, PortBlock, choose_port

HOLDER = """
import random, sys
from rockoon.local.directory import choose_port
random.seed(7)
print(choose_port(), flush=True)
sys.stdin.read()
"""


def first_of(port: int) -> int:
    return port - (port - LOWEST) % BLOCK_PORTS


def test_two_processes_that_choose_by_the_same_chance_choose_different_ports() -> None:
    # Neither listens yet: its service is still being loaded.
    random.seed(7)
    ours = choose_port()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        theirs = int(holder.stdout.readline())
        assert first_of(theirs) != first_of(ours)
        with PortBlock(around=theirs) as other:
            assert first_of(other.choose()) != first_of(theirs)
        holder.kill()


def test_a_port_comes_again_only_after_all_others_of_the_block() -> None:
    with PortBlock() as block:
        # A program that does not know of blocks may listen on one of them.
        chosen = [block.choose() for _ in range(BLOCK_PORTS // 2)]
        assert len(set(chosen)) == len(chosen)
        assert LOWEST <= min(chosen) <= max(chosen) < HIGHEST
        assert {first_of(port) for port in chosen} == {first_of(chosen[0])}


def test_the_block_of_a_process_is_released_at_its_end_without_a_warning() -> None:
    choose = "from rockoon.local.directory import choose_port; choose_port()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", choose], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_that_is_listened_on_or_taken_is_not_chosen() -> None:
    with PortBlock() as block:
        taken = block.choose()
        with socket.create_server(("127.0.0.1", block.choose())) as server:
            listened_on = server.getsockname()[1]
            chosen = {block.choose({taken}) for _ in range(2 * BLOCK_PORTS)}
            assert not chosen & {taken, listened_on}
        with pytest.raises(OSError, match="no free port between"):
            block.choose(range(LOWEST, HIGHEST))


class InOrder(random.Random):
    """Ports of a block are chosen from the first one on."""

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        return list(population)[:k]


def test_a_new_node_does_not_have_the_port_of_a_node_of_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that ran as a single process starts with an etcd."""
    monkeypatch.setattr("rockoon.local.directory.CHANCE", InOrder())
    with PortBlock() as block:
        kept = [
            NodeRecord("nameserver-a", NodeKind.NAMESERVER, block.choose()),
            NodeRecord("broker-a", NodeKind.BROKER, block.choose()),
            NodeRecord("offset", NodeKind.OFFSET, block.choose()),
        ]
    cluster = LocalCluster(tmp_path)
    etcd, *others = cluster._plan(kept)
    cluster._close()
    assert etcd.kind is NodeKind.ETCD
    assert others == kept
