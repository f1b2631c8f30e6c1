"""A job whose executor, a separate process as on a cluster, is killed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rockoon_spark.index.target import index_paths
from support.key_index import Indexed, indexed_one_by_one, small_settings


# Four Javas start, one after the other. `test_killed_jobs` kills workers of a local session.
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_index_is_whole_when_an_executor_is_killed_while_it_is_built(tmp_path: Path) -> None:
    root, target = tmp_path / "broker-a", tmp_path / "index"
    owner = Indexed(small_settings(root))
    owner.send_random(random.Random(41), 100)
    every = owner.every_key()
    owner.close()
    tests = Path(__file__).parent.parent
    subprocess.run(
        [sys.executable, "-m", "spark.executor_kill", str(root), str(target)],
        cwd=tests,
        # Executors import the same modules as tests, from the same directories.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        timeout=900,
    )
    assert [path.read_bytes() for path in index_paths(target)] == indexed_one_by_one(every)
