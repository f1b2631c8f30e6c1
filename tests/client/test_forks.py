"""Programs that start others while they talk to a cluster."""

import asyncio
import os
import sys

from rockoon.cluster import Cluster
from support.scripted_nameserver import ScriptedNameserver

# With code between fork and exec, as PySpark starts Java, what gRPC has registered for forks runs
# too. With its threads at work it says so each time, and now and then ends the child.
_FORKS_BESIDE_CALLS = """
import subprocess, sys
import rockoon.sync
for _ in range(3):
    with rockoon.sync.connect(sys.argv[1]) as cluster:
        cluster.route("orders")
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""


async def test_a_program_that_called_a_cluster_can_run_code_between_fork_and_exec(
    nameserver: ScriptedNameserver, cluster: Cluster
) -> None:
    environment = os.environ | {"GRPC_VERBOSITY": "INFO"}
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _FORKS_BESIDE_CALLS,
        nameserver.address,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, said.decode()
    assert "fork" not in said.decode()
