"""`rockoon backup` on the command line: output, exit status and error texts."""

from pathlib import Path

from cli.conftest import Command


def test_backups_are_made_listed_verified_and_restored(rockoon: Command, tmp_path: Path) -> None:
    place, target = str(tmp_path / "backups"), str(tmp_path / "restored")
    assert rockoon("backup", "list", place).out.startswith("there is no backup in")
    assert rockoon.fails("backup", "verify", place) == f"{place} has no complete backup"
    made = rockoon("backup", "create", place, "--json").json
    assert {each["log"] for each in made["logs"]} == {"broker-a", "broker-b"}
    listed = rockoon("backup", "list", place, "--json").json
    assert (listed["backups"], listed["interrupted"], listed["unreadable"]) == ([made], [], [])
    assert [made["backup"], "complete"] == rockoon("backup", "list", place).words[2][:2]
    assert rockoon("backup", "verify", place).out.startswith(f"backup {made['backup']} is intact")
    report = rockoon("backup", "restore", place, target, "--only", "offset", "--json").json
    assert (report["backup"], report["restored"]) == (made["backup"], ["offset"])
    assert "offset exists" in rockoon.fails("backup", "restore", place, target, "--only", "offset")
    assert "has no complete backup 2" in rockoon.fails(
        "backup", "restore", place, target, "--backup", "2"
    )
    # Damage, of a file and of the manifest.
    routes = tmp_path / "backups" / made["backup"] / "routes"
    routes.write_bytes(routes.read_bytes()[:-1])
    ran = rockoon("backup", "verify", place, status=1)
    assert f"{made['backup']}/routes is damaged" in ran.out
    assert ran.err == f"rockoon: backup {made['backup']} is damaged: 1 files\n"
    (tmp_path / "backups" / made["backup"] / "manifest.json").write_text("{}")
    assert rockoon("backup", "list", place, "--json").json["unreadable"] == [made["backup"]]


def test_a_broker_is_left_out_at_request(rockoon: Command, tmp_path: Path) -> None:
    made = rockoon("backup", "create", str(tmp_path), "--without", "broker-b", "--json").json
    assert [each["log"] for each in made["logs"]] == ["broker-a"]
    assert made["without"] == ["broker-b"]
