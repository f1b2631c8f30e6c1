"""`rockoon-… --check-settings`: every fault of settings and of their files, and no side effect."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rockoon.local.authority import Authority
from rockoon_runtime.settings import toml_text
from support.run_service import run_service
from support.waiting import DEADLINE_SECONDS

SERVICES = ("nameserver", "broker", "offset", "gateway")


def check(
    service: str, directory: Path, before_command: Sequence[str] = (), /, **settings: object
) -> tuple[int, str, str]:
    """Let a service check these settings: exit status, standard output, and standard error."""
    file = directory / f"{service}.toml"
    file.write_text("".join(f"{name} = {toml_text(value)}\n" for name, value in settings.items()))
    before = sorted(directory.rglob("*"))
    arguments = ("--check-settings", "--config", str(file))
    environment = os.environ | {"TMPDIR": str(directory)}
    with contextlib.chdir(directory):
        if before_command:
            ran = subprocess.run(
                [*before_command, sys.executable, "-m", f"rockoon_{service}", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
            )
        else:
            ran = run_service(service, *arguments, environment=environment)
    assert sorted(directory.rglob("*")) == before, "it made a file"
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture
def secure(tmp_path: Path) -> dict[str, object]:
    """Settings of every service with TLS and access keys, on a machine `rock-1`."""
    authority = Authority(tmp_path / "tls")
    own = authority.issue("rock-1", hosts=("rock-1", "broker-a", "offset"))
    secret = tmp_path / "cluster-secret"
    secret.write_text("0123456789abcdef0123456789\n")
    return {
        "tls": "mutual",
        "tls_certificate": own.certificate,
        "tls_key": own.key,
        "tls_ca": authority.ca,
        "access": "on",
        "cluster_secret_file": secret,
    }


def own_settings(service: str, directory: Path, secure: dict[str, object]) -> dict[str, object]:
    if service == "nameserver":
        etcd = {name.replace("tls_", "etcd_tls_", 1): secure[name] for name in FILES}
        return {"listen": "rock-1:9876", "etcd_tls": "on", **etcd}
    if service == "gateway":
        clients = directory / "client-secrets"
        clients.write_text("shop 0123456789abcdef0123456789\n")
        return {"listen": "rock-1:8081", "client_secrets": clients}
    return {
        "listen": "0.0.0.0:1",
        "advertise": "rock-1:1",
        "store_path": directory / "store",
        "copies": 3,
        "replica": "rock-1",
    }


FILES = ("tls_ca", "tls_certificate", "tls_key")


@pytest.mark.parametrize("service", SERVICES)
def test_valid_settings_of_each_service(
    service: str, tmp_path: Path, secure: dict[str, object]
) -> None:
    settings = secure | own_settings(service, tmp_path, secure)
    assert check(service, tmp_path, **settings) == (
        0,
        f"rockoon-{service}: the settings are valid\n",
        "",
    )


@pytest.mark.parametrize("service", SERVICES)
def test_each_fault_of_the_files_is_reported_with_its_setting(
    service: str, tmp_path: Path, secure: dict[str, object]
) -> None:
    own = own_settings(service, tmp_path, secure)
    other = Authority(tmp_path / "other").issue("elsewhere", hosts=("elsewhere",))
    (tmp_path / "short").write_text("secret\n")
    absent = tmp_path / "absent"
    status, _, errors = check(
        service,
        tmp_path,
        **secure
        | own
        | {
            "tls_certificate": other.certificate,
            "tls_key": absent,
            "tls_ca": tmp_path / "short",
            "cluster_secret_file": tmp_path / "short",
            "metrics_listen": "everywhere",
        },
    )
    assert status == 1
    for fault in (
        f"tls_certificate, tls_key: {other.certificate} or its key {absent} cannot be read",
        f"tls_ca: {tmp_path / 'short'} holds no certificate",
        f"cluster_secret_file: {tmp_path / 'short'}: secret 1 has 6 characters",
        "metrics_listen = 'everywhere': expected HOST:PORT, with a port from 0 to 65535",
    ):
        assert errors.count(f"rockoon-{service}: {fault}") == 1, errors


def test_each_wrong_value_is_reported_with_its_source(tmp_path: Path) -> None:
    wrong = {"flush": "sometimes", "copies": 99, "liste": "a:1", "tls": "on"}
    status, out, errors = check("broker", tmp_path, **wrong)
    file = tmp_path / "broker.toml"
    assert (status, out) == (1, "")
    assert errors.splitlines() == [
        f"rockoon-broker: flush = 'sometimes' (from {file}) must be one of sync, async",
        f"rockoon-broker: copies = 99 (from {file}) must be between 1 and 7",
        f"rockoon-broker: unknown setting 'liste' (from {file}); did you mean 'listen'?",
        "rockoon-broker: certificates, secrets and directories are checked once all settings are "
        "valid",
    ]


def test_faults_of_a_broker_that_a_start_or_its_callers_would_find(
    tmp_path: Path, secure: dict[str, object]
) -> None:
    (tmp_path / "file").write_text("")
    other = Authority(tmp_path / "tls").issue("else", hosts=("elsewhere", "*.rock.example"))
    status, _, errors = check(
        "broker",
        tmp_path,
        **secure
        | {
            "listen": ":10911",
            "nameservers": ["rock-1", "rock-2:70000", "rock-3:9876"],
            "store_path": tmp_path / "file" / "store",
            "copies": 3,
            "flush": "async",
            "delay_levels": "1s forever",
            "tls_certificate": other.certificate,
            "tls_key": other.key,
            "tls_server_name": "a.b.rock.example",
        },
    )
    assert status == 1
    for fault in (
        "advertise is empty, and callers cannot dial listen = ':10911'",
        "nameservers = 'rock-1': expected HOST:PORT",
        "nameservers = 'rock-2:70000': expected HOST:PORT",
        f"store_path = {tmp_path / 'file' / 'store'}: expected a directory, but",
        "copies > 1 needs flush = sync",
        "delay_levels: ",
        f"tls_certificate = {other.certificate} is for elsewhere, *.rock.example: expected",
        f"tls_certificate = {other.certificate}: the certificate shown is that of",
    ):
        assert errors.count(f"rockoon-broker: {fault}") == 1, errors
    assert "rock-3" not in errors


def test_an_address_of_a_gateway_that_operators_cannot_call_is_reported(tmp_path: Path) -> None:
    status, _, errors = check("gateway", tmp_path, admin_listen="0.0.0.0:8085")
    assert status == 1
    fault = "admin_advertise is empty, and callers cannot dial admin_listen = '0.0.0.0:8085'"
    assert errors.count(f"rockoon-gateway: {fault}") == 1, errors


def test_a_host_that_the_certificate_of_a_gateway_does_not_have_is_reported(
    tmp_path: Path, secure: dict[str, object]
) -> None:
    listened = {"listen": "rock-1:8081", "admin_listen": "0.0.0.0:8085"}
    gateway = secure | listened | {"admin_advertise": "10.1.2.3:8085"}
    _, _, errors = check("gateway", tmp_path, **gateway)
    assert "rock-1, broker-a, offset: expected 10.1.2.3, the dialed host" in errors
    for changed in (
        {"admin_tls_server_name": "rock-1"},
        # Operators call it without TLS.
        {"cluster_tls": "off"},
        # There is no port for operators.
        {"admin_listen": ""},
    ):
        _, _, errors = check("gateway", tmp_path, **gateway | changed)
        assert "dialed host" not in errors, changed


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
def test_a_directory_of_another_user_is_reported(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    # Root may write everywhere, unless it has lost this capability.
    root_alone = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
    status, _, errors = check("offset", tmp_path, root_alone, store_path=closed / "store")
    assert status == 1
    assert f"store_path = {closed / 'store'}: user id {os.geteuid()} may not write in" in errors


def test_a_path_that_cannot_exist_is_reported(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    status, _, errors = check("offset", tmp_path, store_path=path)
    assert status == 1
    assert f"store_path = {path}: expected a directory: File name too long" in errors
