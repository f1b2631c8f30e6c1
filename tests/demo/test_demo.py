"""`make demo` must report a violated promise; otherwise it shows nothing."""

import asyncio
import gzip
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rockoon.local import LocalClusterError
from tools.demo import __main__ as demo
from tools.demo.records import RECORDS_MIN, read_records
from tools.demo.verified import Received, Verified

ROOT = Path(demo.__file__).resolve().parents[2]
WHOLE_SECONDS_MAX = 250


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WHOLE_SECONDS_MAX,
    )


def printed(verified: Verified) -> str:
    out = io.StringIO()
    verified.print(Console(file=out, width=120))
    return out.getvalue()


def test_the_whole_demo_ends_with_a_table_in_which_everything_holds() -> None:
    ran = run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told, _, table = ran.stdout.partition("What was verified")
    for number in range(1, 6):
        assert f"\n{number}. " in told
    claims = [line for line in table.splitlines() if line.startswith("yes  ")]
    assert len(claims) == 11, table
    assert "NO " not in table
    for words in (
        "is lost when a broker is killed",
        "skipped when a topic grows",
        "gets LAST",
        "the leader's disk",
    ):
        assert sum(words in claim for claim in claims) == 1, words
    assert "nothing is left behind" in table
    assert "Traceback" not in ran.stderr


def test_one_claim_that_does_not_hold_is_enough() -> None:
    verified = Verified()
    assert not verified.all_hold, "nothing verified is no success"
    verified.check("water is wet", True, "1 of 1")
    assert verified.all_hold
    verified.check("pigs fly", False, "0 of 7")
    verified.check("grass is green", True, "2 of 2")
    assert not verified.all_hold
    lines = [line.split() for line in printed(verified).splitlines()]
    assert ["NO", "pigs", "fly"] in lines
    assert ["0", "of", "7"] in lines


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_says_whether_everything_held(
    monkeypatch: pytest.MonkeyPatch, holds: bool, status: int
) -> None:
    async def run_demo(*_: object) -> bool:
        return holds

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == status


def test_a_cluster_that_does_not_start_is_a_sentence_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_demo(*_: object) -> bool:
        raise LocalClusterError("broker-a did not start")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == 1
    assert capsys.readouterr().out == "broker-a did not start\n"


async def test_a_wait_that_takes_too_long_becomes_a_failed_row_and_ends_the_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ARRIVAL_SECONDS_MAX", 0.0)
    records = read_records(ROOT / "tools" / "demo" / "packages.ndjson.gz")
    assert not await demo.run_demo(records, demo.Warnings())
    out = capsys.readouterr().out
    # Whichever wait it was: the first one ends immediately if members are fast.
    assert re.search("^NO +everything happens in time\\s+.* did not ", out, re.MULTILINE)
    assert "2. A broker is killed" not in out


async def test_a_wait_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ARRIVAL_SECONDS_MAX", 0.05)
    seen: list[int] = []

    def holds() -> bool:
        seen.append(len(seen))
        return False

    with pytest.raises(demo.ConditionNotMet, match=r"^\d+ looks, in vain$"):
        await demo.until(holds, lambda: f"{len(seen)} looks, in vain")
    assert len(seen) > 1
    await asyncio.wait_for(demo.until(lambda: True, lambda: "never"), 1)


def test_messages_count_as_missing_until_they_are_received() -> None:
    received = Received("g")
    received.messages.update({"a": 1, "b": 2})
    assert received.missing({"a", "b", "c"}) == {"c"}
    assert received.duplicates == 1


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        (None, 2, "is not a file"),
        (b"", 1, "has no records: write one JSON object on each line"),
        (b"\n \n", 1, "has no records"),
        (b'{"a": 1}\nnot json\n', 1, "line 2: not JSON"),
        (b"[1]\n", 1, "line 1: not a JSON object"),
        (b"\xff\xfe\n", 1, "line 1: not JSON"),
    ],
)
def test_a_file_that_cannot_be_sent_is_a_sentence_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    status: int,
    sentence: str,
) -> None:
    file = tmp_path / "records.ndjson"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["demo", "--file", str(file)])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    # A text as status means 1, and Python prints it.
    code = ended.value.code
    said = str(code) if isinstance(code, str) else capsys.readouterr().err
    assert (1 if isinstance(code, str) else code) == status
    assert f"{file}" in said
    assert sentence in said


@pytest.mark.parametrize(
    "content", [b"not gzip", gzip.compress(b'{"a": 1}\n' * 999)[:-9]], ids=["other", "cut"]
)
def test_a_damaged_gz_file_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "records.ndjson.gz"
    file.write_bytes(content)
    with pytest.raises(SystemExit, match="cannot be read"):
        read_records(file)


def test_a_small_file_is_sent_over_and_over_with_keys_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "three.ndjson"
    file.write_bytes(b'{"package": "a", "section": "s"}\n{"package": "b"}\r\n{}\n')
    records = read_records(file)
    assert len(records) >= RECORDS_MIN
    assert [(r.key, r.tag, r.line) for r in records[:4]] == [
        ("a", "s", b'{"package": "a", "section": "s"}'),
        ("b", "none", b'{"package": "b"}'),
        ("3", "none", b"{}"),
        ("a#1", "s", records[0].line),
    ]
    assert len({record.key for record in records}) == len(records)
