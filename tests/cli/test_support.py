"""`rockoon support bundle`: one file for a report, in which no secret is found."""

import os
import secrets
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rockoon.cli.support import Redactor
from rockoon.local.directory import choose_port
from rockoon.testing.disposable import DisposableCluster
from support.tmpfs import tmpfs


def bundle(
    directory: Path, *arguments: str, environment: dict[str, str], status: int = 0
) -> tuple[dict[str, str], str]:
    """Run the command; return the bundle's files and the output."""
    path = directory / "bundle.tar.gz"
    ran = subprocess.run(
        [sys.executable, "-m", "rockoon.cli", "support", "bundle", "--output", path, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status, ran
    if status:
        return {}, ran.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {
            name.removeprefix("bundle/"): file.read().decode()
            for name in archive.getnames()
            if (file := archive.extractfile(name)) is not None
        }
    return files, ran.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_one_sentence_with_the_name_of_the_bundle(tmp_path: Path) -> None:
    log, place = tmp_path / "broker.log", tmp_path / "small"
    # Not compressible, and one long word.
    log.write_text(secrets.token_hex(64 << 10))
    with tmpfs(place, 8 << 10):
        options = ("--nameservers", "127.0.0.1:1", "--log", str(log))
        _, error = bundle(place, *options, environment=dict(os.environ), status=1)
        assert list(place.iterdir()) == []
    reason = "No space left on device; make room, or name a file on another disk with --output"
    assert error == f"rockoon: {place / 'bundle.tar.gz'} cannot be written: {reason}\n"


def test_a_bundle_of_a_cluster_with_access_keys_has_everything_but_secrets(tmp_path: Path) -> None:
    page = f"127.0.0.1:{choose_port()}"
    planted = {
        name: secrets.token_hex(16) for name in ("log", "collector", "service", "key", "pem")
    }
    with DisposableCluster(
        single=True, access=True, settings={"broker": {"metrics_listen": page}}
    ) as cluster:
        assert cluster.access is not None
        directory = cluster.directory
        secret_file = tmp_path / "service-secret"
        secret_file.write_text(planted["service"] + "\n")
        settings = tmp_path / "broker.toml"
        settings.write_text(
            f'store_path = "{tmp_path}/store"\nnameservers = "{cluster.nameservers[0]}"\n'
            f'otlp_endpoint = "http://someone:{planted["collector"]}@collector:4317"\n'
            f'metrics_listen = "{page}"\ncluster_secret_file = "{secret_file}"\n'
        )
        log = tmp_path / "broker.log"
        log.write_text(
            f"ordinary line\nretry with password={planted['log']} now\n"
            f"signed with {planted['service']} and {cluster.access.secret}\n"
            f"-----BEGIN PRIVATE KEY-----\n{planted['pem']}\n-----END PRIVATE KEY-----\nlast line\n"
        )
        environment = {
            **os.environ,
            "ROCKOON_NAMESERVERS": ",".join(cluster.nameservers),
            "ROCKOON_ACCESS_KEY": cluster.access.id,
            "ROCKOON_ACCESS_SECRET": cluster.access.secret,
            "ROCKOON_GATEWAY_CLUSTER_SECRET": planted["key"],
        }
        arguments = ("--dir", str(directory), "--settings", f"broker={settings}")
        files, output = bundle(tmp_path, *arguments, "--log", str(log), environment=environment)
        assert '"healthy"' in files["status.json"]
        assert "rockoon 0.1.0" in files["versions.txt"]
        assert "OK    broker broker-a: answers at" in files["doctor.txt"]
        assert "rockoon_ready{" in files[f"metrics/{page.replace(':', '_')}.txt"]
        assert f'store_path = "{tmp_path}/store"' in files["settings/1-broker.toml"]
        assert files["logs/01-broker.log"].startswith("ordinary line\n")
        assert files["logs/01-broker.log"].endswith("\nlast line\n")
        assert any(name.endswith("single.log") for name in files)
        assert "missing.txt" not in files, files["missing.txt"]
        assert f"{len(files)} files; read it before you send it" in output
        hidden = {**planted, "cluster": cluster.access.secret}
    for name, text in files.items():
        assert not [what for what, secret in hidden.items() if secret in text], name

    refused = bundle(tmp_path, environment=environment, status=1)[1]
    assert "exists: name another file" in refused


def test_without_a_cluster_the_other_parts_are_written(tmp_path: Path) -> None:
    environment = {**os.environ, "ROCKOON_NAMESERVERS": f"127.0.0.1:{choose_port()}"}
    files, output = bundle(tmp_path, "--log", str(tmp_path / "none.log"), environment=environment)
    assert {"versions.txt", "environment.txt", "doctor.txt", "missing.txt"} == set(files)
    assert "FAIL  cluster: " in files["doctor.txt"]
    assert "status.json: NameserverUnavailable" in files["missing.txt"]
    assert "none.log" in files["missing.txt"]
    assert "missing: status.json" in output


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"client_secret": "SECRET", "a": 1}', '"a": 1'),
        ("password = 'SEC RET SECRET'; next", "next"),
        ("token: SECRET, next", "next"),
        ("Authorization: Bearer SECRET", "Authorization"),
        ("s3://KEY:SECRET@bucket/x", "bucket/x"),
        ("https://h/x?X-Amz-Signature=SECRET&a=1", "a=1"),
        ("-----BEGIN EC PRIVATE KEY-----\nSECRET", ""),
        ("the known one: x1y2z3-known-SECRET!", "!"),
    ],
)
def test_a_secret_is_masked_wherever_it_is(text: str, kept: str) -> None:
    found = Redactor(["x1y2z3-known-SECRET"])(text)
    assert "SECRET" not in found
    assert kept in found


def test_names_of_files_and_ordinary_words_stay() -> None:
    text = 'cluster_secret_file = "/etc/rockoon/secret"\nno secret is known; tokens: none'
    assert "/etc/rockoon/secret" in Redactor([])(text)
    assert "no secret is known" in Redactor([])(text)
