"""Refusals of encrypted connections, and the error texts for people.

A server ends a refused connection without a message: error texts of its callers are derived from
their own side, and the server's log has the rest.
"""

from datetime import timedelta
from pathlib import Path

import pytest

import rockoon
from rockoon.errors import BrokerUnavailable, InvalidArgument, NameserverUnavailable, TlsFailed
from rockoon.local.authority import Authority
from rockoon_core.channels import Channels, Tls
from rockoon_core.message_queue import MessageQueue
from rockoon_core.pem_files import PemError, try_certificate
from rockoon_node.nameservers import Nameservers
from rockoon_offset.brokers import Brokers
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1.nameserver_pb2 import BROKER, DescribeClusterRequest, Node, RouteUpdate
from support.eventually import eventually
from support.tls_server import serving, who_am_i


async def refusal(address: str, tls: rockoon.Tls | None) -> str:
    """Return the error of an application that connects in this way."""
    with pytest.raises(TlsFailed) as refused:
        async with rockoon.connect(address, tls=tls):
            pass
    assert refused.value.details["address"] == address
    return str(refused.value)


async def test_a_plain_client_is_told_that_the_server_may_want_tls(authority: Authority) -> None:
    async with serving(authority.issue("server")) as address:
        told = await refusal(address, None)
    assert "this client does not use TLS" in told
    assert "ROCKOON_TLS_CA" in told


async def test_a_client_with_tls_is_told_that_the_server_has_none(authority: Authority) -> None:
    async with serving() as address:
        told = await refusal(address, Tls(ca=authority.ca))
    assert "does not speak TLS" in told


async def test_a_client_without_a_certificate_is_refused_where_both_sides_show_one(
    authority: Authority,
) -> None:
    async with serving(authority.issue("server"), authority.ca) as address:
        told = await refusal(address, Tls(ca=authority.ca))
    assert "as a server with mutual TLS does, and this client has no certificate" in told


async def test_a_client_certificate_of_another_authority_is_refused(
    authority: Authority, stranger: Authority
) -> None:
    own = stranger.issue("client")
    async with serving(authority.issue("server"), authority.ca) as address:
        told = await refusal(address, Tls(authority.ca, own.certificate, own.key))
    assert f"the server refuses the certificate {own.certificate} (client, until" in told


async def test_a_client_certificate_that_expires_meanwhile_is_refused(
    authority: Authority,
) -> None:
    # Certificates have whole seconds.
    async with serving(authority.issue("server"), authority.ca) as address:
        own = authority.issue("client", valid=timedelta(seconds=3.5))
        cluster = rockoon.connect(address, tls=Tls(authority.ca, own.certificate, own.key))
        await eventually(lambda: expired(own.certificate, own.key))
        with pytest.raises(TlsFailed, match=f"{own.certificate} expired at"):
            await cluster.__aenter__()


def expired(certificate: Path, key: Path) -> bool:
    try:
        try_certificate(certificate, key)
    except PemError:
        return True
    return False


async def test_a_client_certificate_that_has_expired_is_not_even_tried(
    authority: Authority,
) -> None:
    own = authority.issue("client", valid=timedelta(days=-1))
    with pytest.raises(InvalidArgument, match="expired at"):
        rockoon.connect("127.0.0.1:1", tls=Tls(authority.ca, own.certificate, own.key))


@pytest.mark.parametrize("same_name", [False, True])
async def test_a_server_of_another_authority_is_not_believed(
    tmp_path: Path, same_name: bool
) -> None:
    authority = Authority(tmp_path / "ours", "an authority")
    stranger = Authority(tmp_path / "theirs", "an authority" if same_name else "another")
    async with serving(stranger.issue("server")) as address:
        told = await refusal(address, Tls(ca=authority.ca))
    assert "not signed by an authority of the CA file" in told
    assert str(authority.ca) in told


async def test_a_server_whose_certificate_has_expired_is_not_believed(
    authority: Authority,
) -> None:
    issued = authority.issue("server", valid=timedelta(seconds=3.5))
    async with serving(issued) as address:
        await eventually(lambda: expired(issued.certificate, issued.key))
        told = await refusal(address, Tls(ca=authority.ca))
    assert "the server's certificate has expired" in told


async def test_a_server_at_an_address_that_its_certificate_does_not_bear_is_not_believed(
    authority: Authority,
) -> None:
    issued = authority.issue("server", hosts=["nameserver.example"])
    async with serving(issued) as address:
        told = await refusal(address, Tls(ca=authority.ca))
        assert "does not have the host in this address" in told
        named = Channels(Tls(ca=authority.ca, server_name="nameserver.example"))
        assert await who_am_i(named.get(address)) == "nobody"
        await named.close()


async def test_one_nameserver_with_a_wrong_certificate_hides_no_other_that_is_only_away(
    authority: Authority, stranger: Authority
) -> None:
    async with serving(stranger.issue("server")) as wrong:
        cluster = rockoon.connect(
            [wrong, "127.0.0.1:1"], tls=Tls(ca=authority.ca), connect_seconds_max=1.5
        )
        # Nothing was final, because the other may return; but the known reason is reported.
        with pytest.raises(TlsFailed, match="not signed"):
            await cluster.__aenter__()


async def test_a_service_is_told_why_it_does_not_reach_a_nameserver(
    authority: Authority, stranger: Authority
) -> None:
    async with serving(stranger.issue("server")) as address:
        nameservers = Nameservers([address], "rockoon", Tls(ca=authority.ca))
        with pytest.raises(NameserverUnavailable, match="not signed by an authority"):
            await nameservers.call(
                lambda stub: stub.DescribeCluster(DescribeClusterRequest(), timeout=5)
            )
        await nameservers.close()


async def test_the_offset_service_is_told_why_it_does_not_reach_a_broker(
    authority: Authority,
) -> None:
    async with serving(authority.issue("broker-a"), authority.ca) as address:
        table = OffsetRoutes()
        node = Node(kind=BROKER, name="broker-a", address=address)
        table.apply(RouteUpdate(snapshot=True, revision=1, nodes=[node]))
        brokers = Brokers(table, "rockoon", 5.0, Tls(ca=authority.ca))
        queue = MessageQueue("orders", "broker-a", 0)
        answer = (await brokers.queue_states([queue]))[queue]
        await brokers.close()
    assert isinstance(answer, BrokerUnavailable)
    assert "client certificate" in str(answer)


async def test_a_caller_is_known_by_its_certificate(authority: Authority) -> None:
    own = authority.issue("billing", hosts=["billing.example"])
    async with serving(authority.issue("server"), authority.ca) as address:
        channels = Channels(Tls(authority.ca, own.certificate, own.key))
        assert await who_am_i(channels.get(address)) == "billing, billing.example"
        await channels.close()
