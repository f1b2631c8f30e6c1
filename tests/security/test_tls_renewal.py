"""Certificates are renewed under running servers and clients."""

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc import aio

from rockoon.local.authority import Authority, write
from rockoon_core.channels import Channels, Tls
from rockoon_runtime.tls import ServerTls
from support.eventually import eventually
from support.tcp_gate import TcpGate
from support.tls_server import serving, who_am_i


async def shown_by(address: str) -> str:
    """Return the common name of the certificate that a server shows to a new connection."""
    host, _, port = address.rpartition(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    subject = x509.load_pem_x509_certificate(pem.encode()).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


async def test_new_connections_are_shown_a_renewed_certificate_and_others_go_on(
    authority: Authority,
) -> None:
    issued = authority.issue("old", file_name="server")
    async with serving(issued) as address:
        channels = Channels(Tls(ca=authority.ca))
        channel = channels.get(address)
        assert await who_am_i(channel) == "nobody"
        assert await shown_by(address) == "old"

        authority.issue("new", file_name="server")
        assert await shown_by(address) == "new"
        assert await shown_by(address) == "new", "and it stays"
        assert await who_am_i(channel) == "nobody"
        await channels.close()


async def test_a_broken_renewal_is_told_and_the_former_certificate_goes_on(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("old", file_name="server")
    other = authority.issue("other")
    async with serving(issued) as address:
        for broken in (b"", b"-----BEGIN CERTIFICATE-----\nMII", other.certificate.read_bytes()):
            caplog.clear()
            write(issued.certificate, broken, 0o644)
            assert await shown_by(address) == "old"
            assert "a renewed file cannot be used, the former one stays in use" in caplog.text
            assert str(issued.certificate) in caplog.text
            assert "PRIVATE KEY" not in caplog.text
            caplog.clear()
            assert await shown_by(address) == "old"
            assert not caplog.text, "told once"

        issued.certificate.unlink()
        assert await shown_by(address) == "old"
        authority.issue("new", file_name="server")
        assert await shown_by(address) == "new"


async def test_a_renewal_that_has_expired_already_is_not_taken(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("old", file_name="server")
    async with serving(issued) as address:
        authority.issue("new", file_name="server", valid=timedelta(days=-1))
        assert await shown_by(address) == "old"
        assert "expired at" in caplog.text


async def test_callers_of_an_authority_that_was_added_are_taken(
    authority: Authority, stranger: Authority
) -> None:
    issued, callers_ca = authority.issue("server"), authority.ca.with_name("callers.pem")
    callers_ca.write_bytes(authority.ca.read_bytes())
    own = stranger.issue("client")
    async with serving(issued, callers_ca) as address:
        write(callers_ca, authority.ca.read_bytes() + stranger.ca.read_bytes(), 0o644)
        channels = Channels(Tls(authority.ca, own.certificate, own.key))
        assert (await who_am_i(channels.get(address))).startswith("client")
        await channels.close()


async def test_a_client_shows_its_renewed_certificate_to_new_connections(
    authority: Authority,
) -> None:
    own = authority.issue("before", hosts=(), file_name="client")
    async with (
        serving(authority.issue("server"), authority.ca) as address,
        TcpGate(address) as gate,
    ):
        channels = Channels(Tls(authority.ca, own.certificate, own.key))
        channel = channels.get(gate.address)
        assert await who_am_i(channel) == "before"
        authority.issue("after", hosts=(), file_name="client")
        assert await who_am_i(channel) == "before", "a connection that is open goes on"
        await cut_noticed(gate, channel)
        assert await who_am_i(channel) == "after"
        write(own.certificate, b"-----BEGIN CERTIFICATE-----", 0o644)
        await cut_noticed(gate, channel)
        assert await who_am_i(channel) == "after", "what cannot be used is not taken"
        await channels.close()


async def cut_noticed(gate: TcpGate, channel: aio.Channel) -> None:
    """End a channel's connection; the next one can be made."""
    await gate.cut()
    ready = grpc.ChannelConnectivity.READY
    await eventually(lambda: channel.get_state() is not ready)
    await gate.open()


def test_a_certificate_about_to_expire_is_told(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    issued = authority.issue("server", valid=timedelta(days=2))
    tls = ServerTls(issued.certificate, issued.key, None)
    until = tls.certificate.expires - datetime.now(UTC)
    assert timedelta(days=1.9) < until <= timedelta(days=2)
    assert f"{issued.certificate} (server, until" in caplog.text
    tls.check()
    assert "expires in 48.0 hours" in caplog.text or "expires in 47" in caplog.text
    authority.issue("server")
    caplog.clear()
    tls.check()
    assert "renewed" in caplog.text
    assert "expires in" not in caplog.text


def test_a_metric_says_how_long_the_certificate_is_good(authority: Authority) -> None:
    issued = authority.issue("server", valid=timedelta(days=2))
    found = ServerTls(issued.certificate, issued.key, None).measurement()
    assert 1.9 < found.value / 86_400 <= 2


def test_keys_are_readable_by_their_owner_alone(authority: Authority) -> None:
    keys: list[Path] = [authority.issue("server").key, authority.ca.with_name("ca.key")]
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]
