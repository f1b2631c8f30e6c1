"""The scenario of hostile HTTP/2 peers: its attacks, its checks and its tables."""

from pathlib import Path

import pytest
from faults import flood_table
from faults.flood_choice import FloodChoice
from faults.floods import Flooded
from faults.registrations import Registrations

from support import http2_attacks
from support import http2_frames as frames
from support.http2_attacks import ATTACKS, Poll
from support.http2_floods import Served

# Classes of attacks on HTTP/2 servers that have a CVE.
CVES = {
    *(f"2019-{number}" for number in range(9511, 9519)),
    "2016-6581",
    "2023-44487",
    "2024-27316",
    "2025-8671",
}
GOOD = Flooded(
    before=Served(100, 3, 0),
    during=Served(95, 8, 0),
    after=Served(100, 3, 0),
    idle=Served(100, 2, 0),
    recovered=True,
    cpu_share=0.5,
    memory_before=50,
    memory_peak=60,
    memory_after=55,
)


def test_each_known_class_is_among_the_attacks() -> None:
    assert {attack.cve for attack in ATTACKS.values()} - {""} == CVES


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "noise"])
def test_an_attack_consists_of_whole_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # More calls have the same frames.
    monkeypatch.setattr(http2_attacks, "STREAMS", 500)
    attack = ATTACKS[name]
    sent = attack.first(Poll()) + (attack.again() if attack.again is not None else b"")
    assert sent
    at = 0
    while at < len(sent):
        word, _, stream_id = frames.HEAD.unpack_from(sent, at)
        assert word >> 8 <= frames.FRAME_BYTES_MIN, (at, stream_id)
        at += frames.HEAD_BYTES + (word >> 8)
    assert at == len(sent)


@pytest.mark.parametrize(
    ("shown", "connections", "fault"),
    [
        (GOOD, 1, None),
        (GOOD._replace(during=Served(69, 8, 0)), 1, "69%"),
        (GOOD._replace(during=Served(69, 8, 0)), 20, None),
        (GOOD._replace(during=Served(95, 21, 0)), 1, "p99 is 21 ms, not 20 at most"),
        (GOOD._replace(during=Served(95, 21, 0)), 20, None),
        (GOOD._replace(memory_after=71), 20, "memory stays at 71 MiB"),
        (GOOD._replace(during=Served(69, 8, 0), idle=Served(80, 2, 0)), 1, None),
        (GOOD._replace(during=Served(95, 25, 0), idle=Served(80, 15, 0)), 1, None),
        (GOOD._replace(recovered=False), 20, "not answered again"),
    ],
)
def test_requirements_are_judged_beside_grpcio(
    shown: Flooded, connections: int, fault: str | None
) -> None:
    beside = GOOD._replace(during=Served(90, 10, 0))
    found = shown.broken(connections, beside)
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]


def test_p99_is_not_judged_where_grpcio_does_not_serve() -> None:
    shown = GOOD._replace(during=Served(95, 900, 0))
    assert shown.broken(1, GOOD._replace(during=Served(3, 5_000, 2))) == []


def test_lost_leases_and_deposed_leaders_are_found() -> None:
    before = Registrations({"broker-a-0": 7, "broker-a-1": 8}, {"broker-a": (1, "broker-a-0")})
    assert before.lost_since(before) == []
    after = Registrations({"broker-a-0": 9}, {"broker-a": (2, "broker-a-1")})
    assert len(after.lost_since(before)) == 3


def test_a_table_keeps_lines_of_attacks_that_were_not_made_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{flood_table.BEGIN}\n{flood_table.END}\nafter\n")
    shown = dict.fromkeys(flood_table.COLUMNS, GOOD)
    for name in ("settings", "ping"):
        row = flood_table.Row(name, shown, frozenset({"broker"}))
        flood_table.write(page, tls=False, connections=1, rows=[row])
    flood_table.write(page, tls=True, connections=20, rows=[flood_table.Row("ping", shown)])
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert [line for line in lines if line.startswith("####")] == [
        "#### 1 connection, plain",
        "#### 20 connections, TLS",
    ]
    attacks = [line.split()[1] for line in lines if line.startswith("| ")]
    assert attacks == ["attack", "---", "ping", "settings", "attack", "---", "ping"]
    cell = "100 → 95 → 100; 3 → 8 → 3 ms; 50%; +10 +5 MiB"
    assert lines[7].split(" | ")[1:4] == [cell, f"**{cell}**", cell]


def test_a_choice_refuses_names_that_there_are_not() -> None:
    assert len(FloodChoice().chosen()) >= 30
    with pytest.raises(ValueError, match="no attack"):
        FloodChoice(attacks=("nothing",))
    with pytest.raises(ValueError, match="unknown services"):
        FloodChoice(services=("brokers",))
    with pytest.raises(ValueError, match="all services"):
        FloodChoice(services=("broker",), out=Path("page.md"))
