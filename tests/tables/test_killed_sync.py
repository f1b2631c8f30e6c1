"""Tables that follow a topic while writers, brokers and the catalogue are killed: `make tables`."""

from pathlib import Path

import pytest
from tables.killing import Killing

from rockoon.testing.disposable import DisposableCluster
from support.seeds import seeds

KILLS = 8


@pytest.mark.parametrize("seed", seeds(1))
def test_each_message_is_once_in_a_table_whatever_is_killed(
    cluster: DisposableCluster, tmp_path: Path, seed: int
) -> None:
    report = Killing(cluster, tmp_path, seed, "rest").run(KILLS)
    assert sum(report.kills.values()) == KILLS
    assert report.messages > 0
    assert report.undecoded > 0
