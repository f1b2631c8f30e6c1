"""Checks of a service's access settings before its start, and the sources of secrets."""

from pathlib import Path

import pytest

from rockoon.errors import InvalidArgument
from rockoon.local.directory import cluster_key, secret_file
from rockoon.local.process import LocalClusterError
from rockoon.net.access import AccessKey, credentials, from_environment
from rockoon.testing.disposable import DisposableCluster
from rockoon_core.secret_files import RenewedSecrets
from rockoon_core.signature import Credentials, Signature, verifier_of
from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.access.gate import access_gate, cluster_credentials, cluster_secrets
from rockoon_runtime.access.keys import KeyTable
from rockoon_runtime.settings import SettingsError, load, render
from support.gated_server import TestClock

LONG = "a secret that is long enough"
OTHER = "another one that is long enough"


def settings(**values: str) -> NameserverSettings:
    return NameserverSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("access", ["on", "optional"])
def test_access_needs_a_cluster_secret(access: str) -> None:
    with pytest.raises(SettingsError, match=f"access = {access} needs cluster_secret"):
        cluster_credentials(settings(access=access))


def test_a_cluster_secret_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cluster_secret: .* 5 characters") as refused:
        cluster_credentials(settings(access="on", cluster_secret="short"))
    assert "'short'" not in str(refused.value)
    own = settings(access="on", cluster_secret=LONG, cluster_secret_also="brief")
    with pytest.raises(SettingsError, match=r"cluster_secret_also: .* 5 characters"):
        access_gate(own, cluster_credentials(own), {})


@pytest.mark.parametrize("name", ["cluster_secret", "cluster_secret_also"])
def test_a_cluster_secret_that_would_not_be_used_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="access = off"):
        cluster_credentials(settings(**{name: LONG}))


def test_off_is_the_default_and_adds_nothing() -> None:
    assert cluster_credentials(settings()) is None
    assert access_gate(settings(), None, {}) is None


def test_while_one_cluster_secret_replaces_another_both_are_accepted() -> None:
    own = settings(access="on", cluster_secret=LONG, cluster_secret_also=OTHER)
    gate = access_gate(own, cluster_credentials(own), {})
    assert gate is not None
    key = gate.keys.get("rockoon")
    assert key is not None
    assert key.verifiers(0) == (verifier_of(LONG), verifier_of(OTHER))


def test_a_renewed_file_replaces_the_secrets_and_an_unusable_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "cluster-secret"
    own = settings(access="on", cluster_secret_file=str(file))
    with pytest.raises(SettingsError, match=r"cluster_secret_file: .*No such file"):
        cluster_credentials(own)
    file.write_text("brief\n")
    with pytest.raises(SettingsError, match=r"cluster_secret_file: .* 5 characters"):
        cluster_credentials(own)
    with pytest.raises(SettingsError, match="set cluster_secret_file, or"):
        cluster_credentials(
            settings(access="on", cluster_secret_file=str(file), cluster_secret=LONG)
        )
    file.write_text(f"{LONG}\n")
    clock = TestClock()
    keys = KeyTable(cluster_secrets(own)).get("rockoon")
    client = Credentials(AccessKey("rockoon", LONG), clock, RenewedSecrets(file).first)
    assert keys is not None

    def signer() -> str:
        parsed = Signature.parse(client.sign("/m", "0" * 16, 1, "", None))
        assert parsed is not None
        (found,) = [
            name for name in (LONG, OTHER) if parsed.holds_for(verifier_of(name), "/m", None)
        ]
        return found

    assert keys.verifiers(0) == (verifier_of(LONG),)
    assert signer() == LONG
    for content, signs, accepted in (
        (f"{LONG}\n\n{OTHER}\n", LONG, [LONG, OTHER]),
        (f"{OTHER}\r\n{LONG}", OTHER, [OTHER, LONG]),
        ("", OTHER, [OTHER, LONG]),
        # Any line that can be guessed would be a key with all permissions.
        ("changeme\n", OTHER, [OTHER, LONG]),
        (f"{OTHER}\nchangeme\n", OTHER, [OTHER, LONG]),
        (f"# the former secret was another one\n{OTHER}\n", OTHER, [OTHER, LONG]),
        (f"{OTHER}\n" * 200, OTHER, [OTHER, LONG]),
        (OTHER, OTHER, [OTHER]),
    ):
        file.write_text(content)
        clock.now_ms += 1_000
        assert signer() == signs
        assert keys.verifiers(clock.now_ms) == tuple(map(verifier_of, accepted))


def test_a_corrected_clock_does_not_delay_a_renewal() -> None:
    clock, secret = TestClock(), [LONG]
    client = Credentials(AccessKey("rockoon", LONG), clock, lambda: secret[0])
    client.sign("/m", "0" * 16, 1, "", None)
    assert client.correct(clock.now_ms - 3_600_000)
    client.sign("/m", "0" * 16, 2, "", None)
    secret[0] = OTHER
    clock.now_ms += 1_000
    client.sign("/m", "0" * 16, 3, "", None)
    assert client.verifier == verifier_of(OTHER)


def test_a_cluster_secret_comes_from_the_environment_only_and_is_not_printed() -> None:
    with pytest.raises(SettingsError, match="ROCKOON_NAMESERVER_CLUSTER_SECRET"):
        load(
            NameserverSettings,
            "nameserver",
            environment={},
            arguments={"cluster_secret": LONG},
        )
    loaded = load(
        NameserverSettings,
        "nameserver",
        environment={"ROCKOON_NAMESERVER_CLUSTER_SECRET": LONG},
        arguments={"access": "on"},
    )
    assert loaded.value.cluster_secret == LONG
    assert LONG not in render(loaded)
    assert LONG not in repr(loaded)


def test_a_client_takes_its_key_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(LONG + "\n")
    named = {"ROCKOON_ACCESS_KEY": "shop"}
    assert from_environment(named | {"ROCKOON_ACCESS_SECRET": LONG}) == AccessKey("shop", LONG)
    from_file = AccessKey("shop", LONG, str(file))
    assert from_environment(named | {"ROCKOON_ACCESS_SECRET_FILE": str(file)}) == from_file
    assert from_environment({}) is None
    for wrong, told in (
        (named, "ROCKOON_ACCESS_SECRET"),
        ({"ROCKOON_ACCESS_SECRET": LONG}, "ROCKOON_ACCESS_KEY"),
        (named | {"ROCKOON_ACCESS_SECRET_FILE": str(file) + "2"}, "No such file"),
        (
            named | {"ROCKOON_ACCESS_SECRET_FILE": str(file), "ROCKOON_ACCESS_SECRET": LONG},
            "not both",
        ),
    ):
        with pytest.raises(InvalidArgument, match=told):
            from_environment(wrong)
    with pytest.raises(InvalidArgument, match="can be guessed"):
        credentials(AccessKey("shop", "short"), {})
    # An option has precedence over the environment.
    given = credentials(AccessKey("mine", LONG), named)
    assert given is not None
    assert given.key_id == "mine"


def test_a_local_clusters_secret_is_made_once_for_its_owner(tmp_path: Path) -> None:
    key = cluster_key(tmp_path)
    assert cluster_key(tmp_path) == key
    assert secret_file(tmp_path).stat().st_mode & 0o077 == 0
    assert not key.fault


def test_a_broker_with_another_cluster_secret_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "cluster-secret"
    file.write_text(OTHER)
    with DisposableCluster(access=True) as cluster:
        with pytest.raises(LocalClusterError) as refused:
            cluster.add_broker("broker-b", cluster_secret_file=str(file))
        told = str(refused.value)
        assert "exit status 78" in told
        assert "the signature of access key 'rockoon' does not hold" in told
        assert OTHER not in told
