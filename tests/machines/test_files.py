"""deploy/systemd: the prepared settings of machines are valid, and units run installed programs."""

import configparser
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deploy.page_runs import REPOSITORY
from machines.three_machines import NAMES, UNITS, sections

from support.waiting import DEADLINE_SECONDS

FOLDER = REPOSITORY / "deploy" / "systemd"
PREPARE = FOLDER / "prepare.sh"

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


def prepare(folder: Path, **environment: str) -> None:
    subprocess.run(
        [str(PREPARE), str(folder), *NAMES],
        check=True,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
    )


def check(service: str, file: Path) -> str:
    """The faults that a service finds in a machine's file; its folder stands for /etc/rockoon."""
    text = file.read_text().replace("/etc/rockoon", str(file.parent))
    file.write_text(text.replace("/var/lib/rockoon", str(file.parent)))
    command = (sys.executable, "-m", f"rockoon_{service}", "--check-settings", "--config", file)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (ran.returncode == 0) == (ran.stderr == "")
    return ran.stderr


@needs_openssl
def test_each_service_accepts_the_prepared_settings_certificates_and_keys(tmp_path: Path) -> None:
    folder = tmp_path / "machines"
    prepare(folder)
    machine = folder / NAMES[1]
    files = {
        "nameserver": "nameserver",
        "broker": "broker-a",
        "offset": "offset",
        "gateway": "gateway",
    }
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda each: check(each[0], machine / f"{each[1]}.toml"), files.items())
    assert [*found] == [""] * len(files)


@needs_openssl
def test_a_second_run_keeps_files_and_adds_logs_and_missing_certificates(tmp_path: Path) -> None:
    folder = tmp_path / "machines"
    prepare(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in before)
    shutil.rmtree(folder / NAMES[0] / "tls")
    prepare(folder, LOGS="broker-a broker-b")
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    assert {path.name for path in changed} == {"tls.crt", "tls.key"}
    assert {path.parent for path in changed} == {folder / NAMES[0] / "tls"}
    assert check("broker", folder / NAMES[0] / "broker-b.toml") == ""
    assert "the certificate shown is that of" in check(
        "broker", folder / NAMES[1] / "broker-b.toml"
    )


def test_units_have_the_name_that_hardens_them_and_run_installed_programs() -> None:
    units = {path.stem: path for path in FOLDER.glob("*.service")}
    assert {name.partition("@")[0] for name in UNITS} == {name.rstrip("@") for name in units}
    installer = (FOLDER / "install.sh").read_text()
    for name, path in units.items():
        assert name.startswith("rockoon-")
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        service = unit["Service"]
        assert service["Type"] == "notify"
        program = service["ExecStart"].split()[0]
        assert program.startswith("/opt/rockoon/bin/")
        assert program.rpartition("/")[2] in installer
        assert ("WatchdogSec" in service) == (name != "rockoon-etcd")


def test_blocks_of_the_page_run_at_places_that_there_are() -> None:
    marks = {block.mark for _, blocks in sections() for block in blocks}
    for mark in marks - {"", "build", "packages"}:
        kind, _, names = mark.partition(": ")
        assert kind == "on"
        assert set(names.split()) <= set(NAMES), mark
    assert {"build", "packages"} <= marks
