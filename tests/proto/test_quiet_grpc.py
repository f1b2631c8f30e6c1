"""gRPC tells programs of errors, and of nothing else."""

import os
import subprocess
import sys

import pytest

from support.waiting import DEADLINE_SECONDS

PACKAGES = (
    "rockoon",
    "rockoon_broker",
    "rockoon_nameserver",
    "rockoon_node",
    "rockoon_offset",
    "rockoon_proto",
    "rockoon_core",
    "rockoon_replica",
    "rockoon_runtime",
    "rockoon_spark",
)

# A server in frames: its settings, then GOAWAY with ENHANCE_YOUR_CALM, which gRPC tells of twice:
# that one has come, which is no error, and what it says, which is one.
_PROGRAM = """
import importlib, os, socket, sys, threading
given = os.environ.get("GRPC_VERBOSITY")
for package in sys.argv[1:]:
    if given is None:
        os.environ.pop("GRPC_VERBOSITY", None)
    for name in [name for name in sys.modules if name.startswith("rockoon")]:
        del sys.modules[name]
    importlib.import_module(package)
    assert "grpc" not in sys.modules, package
    assert os.environ.get("GRPC_VERBOSITY") == (given or "ERROR"), package
import grpc
listening = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = listening.accept()
    listening.close()
    connection.recv(1 << 16)
    connection.sendall(bytes(3) + b"\\4" + bytes(5))
    words = bytes(7) + b"\\x0b" + b"too_many_pings"
    connection.sendall(len(words).to_bytes(3, "big") + b"\\7" + bytes(5) + words)
    connection.recv(1 << 16)
threading.Thread(target=serve, daemon=True).start()
with grpc.insecure_channel("127.0.0.1:%d" % listening.getsockname()[1]) as channel:
    try:
        channel.unary_unary("/a/b")(b"", timeout=5)
    except grpc.RpcError:
        pass
"""


@pytest.mark.parametrize("wanted", ["", "INFO"], ids=["unset", "set by the user"])
def test_programs_show_errors_of_grpc_alone_unless_the_user_wants_more(wanted: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    if wanted:
        environment["GRPC_VERBOSITY"] = wanted
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *PACKAGES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    kinds = {line[0] for line in ended.stderr.splitlines() if "chttp2_transport" in line}
    assert kinds == ({"I", "E"} if wanted else {"E"}), ended.stderr
