"""deploy/systemd: the prepared settings of machines are valid, and units run installed programs."""

import configparser
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deploy.page_runs import REPOSITORY
from machines.three_machines import LOST, NAMES, UNITS, sections

from rockoon_runtime.wire import DrainSettings
from support.run_service import run_service
from support.waiting import DEADLINE_SECONDS

FOLDER = REPOSITORY / "deploy" / "systemd"
PREPARE = FOLDER / "prepare.sh"

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


def run_script(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def prepare(folder: Path, **environment: str) -> None:
    done = run_script(PREPARE, folder, *NAMES, **environment)
    assert (done.returncode, done.stderr) == (0, "")


def check(service: str, file: Path) -> str:
    """Return the faults that a service reports in a file of a machine's folder.

    The folder replaces /etc/rockoon.
    """
    text = file.read_text().replace("/etc/rockoon", str(file.parent))
    file.write_text(text.replace("/var/lib/rockoon", str(file.parent)))
    ran = run_service(service, "--check-settings", "--config", str(file))
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
    # A key of a client, and the second round of a replacement of the cluster secret.
    (folder / NAMES[1] / "client-secrets").write_text("shop 0123456789abcdef0123456789\n")
    with (folder / NAMES[1] / "cluster-secret").open("a") as secrets:
        secrets.write("0123456789abcdef0123456789\n")
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


@needs_openssl
def test_a_log_that_is_added_gets_a_port_of_its_own(tmp_path: Path) -> None:
    prepare(tmp_path)
    prepare(tmp_path, LOGS="broker-b broker-a")
    for name in NAMES:
        ports = [
            re.findall(r'^listen = "0\.0\.0\.0:(\d+)"$', path.read_text(), re.MULTILINE)
            for path in sorted((tmp_path / name).glob("broker-*.toml"))
        ]
        assert ports == [["10911"], ["10921"]]


@pytest.mark.parametrize(
    ("machines", "logs", "fault"),
    [
        (("one", "two", "one"), "broker-a", "one"),
        (("one", "two", "three"), "broker-a offset", "offset"),
        (("one", "two", "three"), "broker-a broker-a", "broker-a"),
    ],
)
def test_a_name_that_is_given_twice_is_refused(
    tmp_path: Path, machines: tuple[str, ...], logs: str, fault: str
) -> None:
    done = run_script(PREPARE, tmp_path / "machines", *machines, LOGS=logs)
    assert done.returncode == 2
    assert f"two of them are: {fault}\n" in done.stderr
    assert not (tmp_path / "machines").exists()


@needs_openssl
def test_an_error_of_openssl_is_shown_and_leaves_no_file_that_a_second_run_keeps(
    tmp_path: Path,
) -> None:
    programs, folder = tmp_path / "programs", tmp_path / "machines"
    programs.mkdir()
    openssl = programs / "openssl"
    path = f"{programs}:{os.environ['PATH']}"
    for failing in ("req", "rand", "x509"):
        fault = f'[ $1 != {failing} ] || {{ echo "no entropy" >&2; exit 1; }}'
        openssl.write_text(f'#!/bin/sh\n{fault}\nexec {shutil.which("openssl")} "$@"\n')
        openssl.chmod(0o755)
        done = run_script(PREPARE, folder, *NAMES, PATH=path)
        assert done.returncode == 1
        assert "no entropy" in done.stderr, failing
        assert not [*folder.rglob("tls.crt")]
        if failing != "x509":
            assert not (folder / "cluster-secret").exists()


def test_the_installer_refuses_a_folder_that_is_not_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for each in ("bash", "dirname"):
        (programs / each).symlink_to(shutil.which(each) or each)
    done = subprocess.run(
        [str(FOLDER / "install.sh"), "rockoon-9"],
        cwd=tmp_path,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: install.sh FOLDER")


def test_systemd_waits_longer_for_the_end_of_a_service_than_its_drain_lasts() -> None:
    (limits,) = FOLDER.glob("rockoon-.service.d/*.conf")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", limits.read_text(), re.MULTILINE)
    assert float(seconds) > DrainSettings.drain_seconds_max


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


def test_no_package_of_another_version_stays_on_a_machine(tmp_path: Path) -> None:
    machine, programs = tmp_path / "machine", tmp_path / "programs"
    folder = tmp_path / "rockoon-machines" / LOST
    for each in (
        machine / "dist",
        programs,
        folder,
        tmp_path / "dist",
        tmp_path / "deploy/systemd",
    ):
        each.mkdir(parents=True)
    (machine / "dist" / "rockoon-0.2.0.whl").touch()
    (tmp_path / "dist" / "rockoon-0.1.0.whl").touch()
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift\nexec sh -c "cd {machine}; $*"\n')
    ssh.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    lines = [line for _, found in sections() for each in found for line in each.text.splitlines()]
    copies = [line.strip() for line in lines if line.strip().startswith("tar ")]
    assert len(copies) == 3
    for copy in copies:
        command = f"cd {tmp_path}; machine={LOST}; {copy}"
        done = run_script("sh", "-c", command, PATH=path, HOME=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert [each.name for each in (machine / "dist").iterdir()] == ["rockoon-0.1.0.whl"]
        assert (machine / LOST).is_dir()
        (machine / "dist" / "rockoon-0.2.0.whl").touch()


def test_blocks_of_the_page_run_at_places_that_there_are() -> None:
    marks = {block.mark for _, blocks in sections() for block in blocks}
    for mark in marks - {"", "build", "packages"}:
        kind, _, names = mark.partition(": ")
        assert kind == "on"
        assert set(names.split()) <= set(NAMES), mark
    assert {"build", "packages"} <= marks
