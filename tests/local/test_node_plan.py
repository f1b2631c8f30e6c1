"""Nodes that a local cluster runs, of those in its directory."""

from pathlib import Path

import pytest

from rockoon.local.directory import ClusterDirectory, NodeRecord
from rockoon.local.node_maker import choose_copies, replica_names
from rockoon.local.process import LocalClusterError, NodeKind

LOG = "broker-a"


def replicas(*names: str) -> list[NodeRecord]:
    return [NodeRecord(name, NodeKind.BROKER, 1, LOG if name != LOG else "") for name in names]


@pytest.mark.parametrize(
    ("kept", "copies", "names"),
    [
        ((), 1, [LOG]),
        ((), 3, ["broker-a-0", "broker-a-1", "broker-a-2"]),
        ((LOG,), 3, [LOG, "broker-a-0", "broker-a-1"]),
        # The only copy is the existing one, and not an empty one with the first name.
        (("broker-a-2",), 1, ["broker-a-2"]),
        (("broker-a-2",), 3, ["broker-a-2", "broker-a-0", "broker-a-1"]),
    ],
)
def test_copies_are_those_that_there_are_and_then_new_ones(
    kept: tuple[str, ...], copies: int, names: list[str]
) -> None:
    assert replica_names(LOG, replicas(*kept), copies) == names


def test_all_copies_start_also_where_fewer_are_wanted() -> None:
    kept = replicas("broker-a-0", "broker-a-1", "broker-a-2")
    assert [choose_copies(kept, wanted) for wanted in (None, 1, 3, 5)] == [3, 3, 3, 5]
    assert [choose_copies([], wanted) for wanted in (None, 1, 3)] == [1, 1, 3]
    for wanted in (0, 2, 8):
        with pytest.raises(LocalClusterError, match="it must be 1, or 3 to 7"):
            choose_copies(kept, wanted)


def test_what_a_former_copy_had_is_moved_out_of_the_way_of_a_new_one(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    for round_ in ("first", "second"):
        (tmp_path / "broker-a-1").mkdir()
        (tmp_path / "broker-a-1" / round_).touch()
        directory.move_to_former("broker-a-1")
    directory.move_to_former("broker-a-1")
    kept = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*/*/*"))
    assert kept == ["former/broker-a-1.1/first", "former/broker-a-1.2/second"]
