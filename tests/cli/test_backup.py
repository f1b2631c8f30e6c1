"""`rockoon backup` on the command line: output, exit status and error texts."""

from pathlib import Path

from cli.conftest import Command


def test_backups_are_made_listed_verified_and_restored(rockoon: Command, tmp_path: Path) -> None:
    place, target = str(tmp_path / "backups"), str(tmp_path / "restored")
    (tmp_path / "backups").mkdir()
    assert rockoon("backup", "list", place).out.startswith("there is no backup in")
    assert rockoon.fails("backup", "verify", place) == f"{place} has no complete backup"
    assert rockoon.fails("backup", "prune", place, "--keep", "1") == f"{place} has no backup"
    assert not any((tmp_path / "backups").iterdir())
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
    manifest = tmp_path / "backups" / made["backup"] / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text("{}")
    assert rockoon("backup", "list", place, "--json").json["unreadable"] == [made["backup"]]
    assert f"{manifest} is damaged" in rockoon.fails("backup", "verify", place)
    # Without another manifest, the clusters cannot be compared.
    ran = rockoon("backup", "create", place, status=1)
    assert "may have backups of another cluster: none of its manifests" in ran.err
    manifest.write_bytes(content)
    rockoon("backup", "create", place)
    # Later backups are made beside a damaged one, which is reported until it is removed.
    manifest.write_text("{}")
    for _ in range(2):
        ran = rockoon("backup", "create", place, "--json")
        assert ran.err.startswith(f"rockoon: {manifest} is damaged")
        assert "delete it: `rockoon backup prune` then removes" in ran.err
    later = ran.json["backup"]
    assert rockoon("backup", "verify", place).out.startswith(f"backup {later} is intact")
    assert f"{manifest} is damaged" in rockoon.fails("backup", "prune", place, "--keep", "9")
    manifest.unlink()
    ran = rockoon("backup", "prune", place, "--keep", "1", "--yes")
    assert f"removed: {made['backup']}" in ran.out
    assert not manifest.parent.exists()
    assert rockoon("backup", "create", place).err == ""


def test_a_mistyped_destination_is_named_and_not_created(rockoon: Command, tmp_path: Path) -> None:
    missing, target = str(tmp_path / "bakcups"), str(tmp_path / "restored")
    for place in (missing, f"file://{missing}"):
        for arguments in (
            ("list", place),
            ("verify", place),
            ("prune", place, "--keep", "1", "--plan"),
            ("prune", place, "--keep", "1", "--yes"),
            ("restore", place, target),
        ):
            failure = rockoon.fails("backup", *arguments)
            assert failure == f"{missing} is no directory with backups: it does not exist"
    for mistyped in ("s3:/bucket/backups", "file://host/backups", "s33://bucket/backups"):
        assert mistyped in rockoon.fails("backup", "create", mistyped)
    assert not any(tmp_path.iterdir())


def test_a_broker_is_left_out_at_request(rockoon: Command, tmp_path: Path) -> None:
    made = rockoon("backup", "create", str(tmp_path), "--without", "broker-b", "--json").json
    assert [each["log"] for each in made["logs"]] == ["broker-a"]
    assert made["without"] == ["broker-b"]
