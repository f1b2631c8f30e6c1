"""Files that cannot be read, and outputs that cannot be written: one sentence each."""

import gzip
import subprocess
from pathlib import Path
from typing import Any

import pytest

SHOWING = [
    ("status",),
    ("status", "--json"),
    ("topic", "list"),
    ("topic", "list", "--json"),
    ("group", "list"),
    ("broker", "describe", "broker-a"),
    ("offsets", "export"),
    ("--version",),
    ("--help",),
]


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
def test_a_full_disk_at_the_output_is_one_sentence(rockoon: Any, arguments: tuple[str]) -> None:
    ran = rockoon(*arguments, output="/dev/full", status=None)
    if arguments == ("offsets", "export") and not ran.status:
        return  # Nothing is there to be written.
    assert ran.status == 1
    assert ran.err == "rockoon: cannot write the output: No space left on device\n"


def test_a_full_disk_stops_reading_messages(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="one line of many\n" * 1000)
    for more in ((), ("--json",), ("--group", "full", "--from", "first")):
        ran = rockoon("consume", topic, *more, output="/dev/full", status=1)
        assert "cannot write the output: No space left on device" in ran.err


@pytest.mark.parametrize(
    "content",
    [b"no gzip file", gzip.compress(b"cut off\n" * 100)[:-12], gzip.compress(b"x")[:12] + b"\xff"],
    ids=["none", "cut off", "damaged"],
)
def test_what_is_no_gzip_file_is_named(
    rockoon: Any, taken: str, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "lines.gz"
    file.write_bytes(content)
    said = rockoon.fails("produce", taken, "--file", str(file))
    assert f"cannot decompress {file}: " in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "T", "--file", "FILE"),
        ("offsets", "reset", "g", "T", "--dry-run", "--from-file", "FILE"),
        ("offsets", "import", "FILE"),
        ("offsets", "import", "FILE", "--format", "rocketmq", "--broker", "broker-a"),
        ("--tls-ca", "FILE", "status"),
        ("--access-key", "k", "--access-secret-file", "FILE", "status"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["absent", "directory", "binary", "nested"])
def test_a_file_that_is_none_of_the_kind_is_one_sentence(
    rockoon: Any, taken: str, tmp_path: Path, arguments: tuple[str, ...], kind: str
) -> None:
    file = tmp_path / "file"
    if kind == "directory":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(bytes(range(256)) * 100)
    elif kind == "nested":
        file.write_bytes(b"[" * 100_000)
    known = {"T": taken, "FILE": str(file)}
    ran = rockoon(*(known.get(each, each) for each in arguments), status=None)
    if arguments[0] in ("produce", "--access-key") and kind in ("binary", "nested"):
        return  # Any bytes are lines, and the cluster asks for no secret.
    assert ran.status in (1, 2)
    assert len(ran.err.split("rockoon: ")) == 2 or ran.status == 2


def test_nested_by_the_thousand_is_no_json(rockoon: Any, taken: str) -> None:
    ran = rockoon("produce", taken, "--key-field", "k", stdin="[" * 100_000 + "\n", status=1)
    assert "the line is not JSON" in ran.err


def test_inputs_and_outputs_that_are_closed_are_no_traceback(rockoon: Any, topic: str) -> None:
    rockoon("produce", topic, stdin="line\n" * 20_000)
    command = " ".join(rockoon.program)
    for line, said in (
        (f"{command} consume {topic} | head -1", ""),
        (f"{command} topic list | true", ""),
        (f"{command} produce {topic} <&-", "rockoon: standard input is closed\n"),
        (f"{command} offsets import - <&-", "rockoon: standard input is closed\n"),
        (f"{command} status >&-", ""),
        (f"{command} offsets export >&-", ""),
    ):
        ran = subprocess.run(
            line, shell=True, capture_output=True, text=True, env=rockoon.environment, check=False
        )
        assert ran.stderr == said, line


def test_a_directory_that_cannot_be_used_is_found_before_etcd_is_built(
    rockoon: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f"#!/bin/sh\n: >{tmp_path}/built\nexit 1\n")
    go.chmod(0o755)
    # Neither a configured etcd, nor an installed or a built one.
    environment = {**rockoon.environment, "PATH": str(go.parent), "HOME": str(tmp_path)}
    for name in ("ROCKOON_ETCD", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    ran = subprocess.run(
        [*rockoon.program, "up", "--dir", str(tmp_path / "file")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (
        1,
        f"rockoon: {tmp_path}/file cannot be used: File exists\n",
    )
    assert not (tmp_path / "built").exists()
