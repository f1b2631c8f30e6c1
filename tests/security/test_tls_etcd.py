"""The nameserver's connection to an etcd that requires TLS, client certificates and a password."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from rockoon.local.authority import Authority, Issued
from rockoon_core.channels import Tls
from rockoon_core.errors import EtcdUnavailable
from rockoon_core.pem_files import PemError, try_certificate
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.server import route_store
from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.process import Stop
from support.etcd import EtcdServer
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

USER, PASSWORD = "root", "a word that no log may show"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Issued:
    return authority.issue("nameserver-a")


@pytest.fixture(scope="module")
def etcd_server(
    authority: Authority, own: Issued, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdServer]:
    shown = authority.issue("etcd")
    server = EtcdServer(
        tmp_path_factory.mktemp("etcd"),
        tls_flags=[
            f"--cert-file={shown.certificate}",
            f"--key-file={shown.key}",
            "--client-cert-auth",
            f"--trusted-ca-file={authority.ca}",
        ],
        control_flags=[
            f"--cacert={authority.ca}",
            f"--cert={own.certificate}",
            f"--key={own.key}",
        ],
    )
    with server:
        server.control("user", "add", f"{USER}:{PASSWORD}")
        server.control("user", "grant-role", USER, "root")
        server.control("auth", "enable")
        yield server


async def trouble(etcd: Etcd) -> str:
    with pytest.raises(EtcdUnavailable) as refused:
        async with etcd:
            await etcd.header()
    return str(refused.value)


def patient(server: EtcdServer, tls: Tls) -> Etcd:
    """etcd needs a long time on purpose to check a password, and longer when it is busy."""
    return Etcd(
        [server.endpoint], user=USER, password=PASSWORD, tls=tls, timeout_seconds=DEADLINE_SECONDS
    )


async def test_certificate_and_password_open_etcd(
    etcd_server: EtcdServer, authority: Authority, own: Issued
) -> None:
    tls = Tls(authority.ca, own.certificate, own.key)
    async with patient(etcd_server, tls) as etcd:
        assert (await etcd.header()).revision > 0
        assert await etcd.grant_lease(5)


async def test_a_nameserver_opens_etcd_with_what_its_settings_say(
    etcd_server: EtcdServer, authority: Authority, own: Issued
) -> None:
    settings = NameserverSettings(
        etcd=(etcd_server.endpoint,),
        etcd_user=USER,
        etcd_password=PASSWORD,
        etcd_timeout_seconds=DEADLINE_SECONDS,
        etcd_tls="on",
        etcd_tls_ca=authority.ca,
        etcd_tls_certificate=own.certificate,
        etcd_tls_key=own.key,
    )
    async with route_store(settings, Stop()) as etcd:
        assert (await etcd.header()).revision > 0
        assert await etcd.grant_lease(5)


async def test_each_refusal_of_etcd_says_what_to_look_at(
    etcd_server: EtcdServer, authority: Authority, own: Issued, tmp_path: Path
) -> None:
    where = [etcd_server.endpoint]
    tls = Tls(authority.ca, own.certificate, own.key)
    wrong = await trouble(Etcd(where, user=USER, password="wrong", tls=tls))
    assert "wrong" not in wrong
    assert "authentication failed, invalid user ID or password" in wrong
    stranger = Authority(tmp_path / "stranger")
    unsigned = await trouble(Etcd(where, tls=Tls(stranger.ca, own.certificate, own.key)))
    assert "not signed by an authority of the CA file" in unsigned
    alien = stranger.issue("nameserver-a")
    for wrong_tls in (Tls(authority.ca), Tls(authority.ca, alien.certificate, alien.key)):
        told = await trouble(Etcd(where, user=USER, password=PASSWORD, tls=wrong_tls))
        assert "does not accept this side's certificate, or requires one and got none" in told
    assert "requires TLS and this side uses none" in await trouble(Etcd(where))


async def test_a_renewed_certificate_is_shown_when_the_connection_is_made_anew(
    etcd_server: EtcdServer, authority: Authority
) -> None:
    # Certificates have whole seconds.
    own = authority.issue("nameserver-b", valid=timedelta(seconds=6))
    tls = Tls(authority.ca, own.certificate, own.key)
    async with patient(etcd_server, tls) as etcd:
        await etcd.header()
        await eventually(lambda: expired(own))
        await etcd.header()
        authority.issue("nameserver-b")
        etcd_server.kill()
        with pytest.raises(EtcdUnavailable):
            await etcd.header()
        etcd_server.start()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                with contextlib.suppress(EtcdUnavailable):
                    await etcd.header()
                    break


def expired(issued: Issued) -> bool:
    try:
        try_certificate(issued.certificate, issued.key)
    except PemError:
        return True
    return False
