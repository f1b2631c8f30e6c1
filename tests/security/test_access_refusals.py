"""Refusals of calls that must be signed, and their error texts: one test for each refusal."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rockoon.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotAuthenticated,
    NotPermitted,
    NotReady,
    RockoonError,
)
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.signature import (
    ACCESS_METADATA_KEY,
    AccessKey,
    Credentials,
    new_secret,
    verifier_of,
)
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.access_pb2 import ACCESS_READ, ACCESS_WRITE
from rockoon_proto.v1.broker_pb2 import PullRequest
from rockoon_runtime.access.callers import current_caller
from support.eventually import eventually
from support.gated_server import (
    CLUSTER_KEY,
    MANY,
    ONE,
    OWN,
    SHOP,
    WAIT,
    Gated,
    TestClock,
    call,
    known,
)
from support.waiting import DEADLINE_SECONDS

READER = ("topic:orders", [ACCESS_READ])


async def refusal(answer: Any) -> RockoonError:
    """Return the error of a caller."""
    with pytest.raises(grpc.RpcError) as refused:
        await answer
    return from_rpc_error(refused.value, BrokerUnavailable, broker="this server")


async def signed_by_hand(gated: Gated, header: str, topic: str = "orders") -> Any:
    """Make a call with overheard or invented metadata."""
    async with aio.insecure_channel(gated.address) as channel:
        made: Any = channel.unary_unary(ONE, request_serializer=PullRequest.SerializeToString)
        metadata = ((ACCESS_METADATA_KEY, header),)
        return await made(PullRequest(topic=topic), metadata=metadata, timeout=DEADLINE_SECONDS)


def header(gated: Gated, counter: int = 1, topic: str = "orders", method: str = ONE) -> str:
    """Return the metadata of a call of shop's."""
    body = PullRequest(topic=topic).SerializeToString()
    return Credentials(SHOP, gated.clock).sign(method, "0" * 16, counter, gated.address, body)


async def test_a_call_with_a_key_that_may_make_it_passes() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            assert await call(channel) == b"orders"


async def test_without_a_key_the_call_is_refused() -> None:
    async with Gated().serving() as gated, aio.insecure_channel(gated.address) as channel:
        gated.gate.update([])
        told = await refusal(call(channel))
    assert isinstance(told, NotAuthenticated)
    assert "has no access key" in str(told)
    assert told.details["kind"] == "no key"


async def test_a_key_that_nobody_made_is_refused() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([])
        async with gated.channel(SHOP) as channel:
            told = await refusal(call(channel))
    assert isinstance(told, NotAuthenticated)
    assert "there is no access key 'shop'" in str(told)


async def test_before_the_keys_are_known_nobody_is_refused_for_good() -> None:
    async with Gated().serving() as gated, gated.channel(SHOP) as channel:
        told = await refusal(call(channel))
    assert isinstance(told, NotReady)
    assert told.retriable


async def test_another_secret_is_refused() -> None:
    impostor = AccessKey(SHOP.id, "a guess of the secret of shop")
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(impostor) as channel:
            told = await refusal(call(channel))
    assert isinstance(told, NotAuthenticated)
    assert told.details["kind"] == "wrong signature"
    assert impostor.secret not in str(told)


async def test_a_disabled_key_is_refused() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER, disabled=True)])
        async with gated.channel(SHOP) as channel:
            told = await refusal(call(channel))
    assert isinstance(told, NotAuthenticated)
    assert "is disabled" in str(told)


async def test_a_key_without_the_permission_is_refused_and_told_which() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, ("topic:orders", [ACCESS_WRITE]))])
        async with gated.channel(SHOP) as channel:
            told = await refusal(call(channel))
    assert isinstance(told, NotPermitted)
    assert str(told) == "access key 'shop' has no read permission on topic:orders"
    assert not told.retriable


async def test_a_signature_used_again_is_refused() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        overheard = header(gated)
        assert await signed_by_hand(gated, overheard) == b"orders"
        told = await refusal(signed_by_hand(gated, overheard))
    assert isinstance(told, NotAuthenticated)
    assert told.details["kind"] == "replayed"


async def test_a_signature_that_is_too_old_is_refused_with_both_clocks() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        old = header(gated)
        gated.clock.now_ms += 300_001
        told = await refusal(signed_by_hand(gated, old))
    assert isinstance(told, NotAuthenticated)
    assert told.details["kind"] == "stale"
    assert "signed at 2027-01-15 08:00:00 UTC" in str(told)
    assert "this service says 2027-01-15 08:05:00 UTC" in str(told)


async def test_a_signature_from_the_future_is_refused() -> None:
    ahead = TestClock()
    ahead.now_ms += 300_001
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP, clock=ahead) as channel:
            told = await refusal(call(channel))
    assert told.details["kind"] == "stale"


async def test_a_caller_whose_clock_is_wrong_goes_on_by_the_servers() -> None:
    behind = TestClock()
    behind.now_ms -= 7_200_000
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP, clock=behind) as channel:
            signing = channel._signer._credentials  # type: ignore[attr-defined]
            told = await refusal(call(channel))
            assert may_sign_again(signing, told)
            # Once: if a server refuses a clock twice, the clock is not the cause.
            assert not may_sign_again(signing, told)
            assert await call(channel) == b"orders"


async def test_what_was_signed_before_a_server_started_is_not_taken_by_it() -> None:
    """It cannot know whether the signature was used; the caller may sign again."""
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        gated.clock.now_ms -= 1
        told = await refusal(signed_by_hand(gated, header(gated)))
    assert isinstance(told, NotReady)


async def test_a_caller_whose_clock_is_behind_need_not_wait_after_a_restart_of_the_server() -> None:
    behind = TestClock()
    behind.now_ms -= 60_000
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP, clock=behind) as channel:
            signing = channel._signer._credentials  # type: ignore[attr-defined]
            told = await refusal(call(channel))
            assert isinstance(told, NotReady)
            assert may_sign_again(signing, told)
            assert await call(channel) == b"orders"
        async with gated.channel(SHOP) as channel:
            # This caller's clock is right: it only tries again later.
            assert not may_sign_again(channel._signer._credentials, told)  # type: ignore[attr-defined]


async def test_a_signature_is_of_one_request_and_one_method() -> None:
    everything = ("topic:*", [ACCESS_READ])
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, everything)])
        told = await refusal(signed_by_hand(gated, header(gated, topic="other")))
        assert told.details["kind"] == "wrong signature"
        told = await refusal(signed_by_hand(gated, header(gated, 2, method=WAIT)))
        assert told.details["kind"] == "wrong signature"


@pytest.mark.parametrize("made_up", ["", "1;shop", "1;shop;1;" + "0" * 16 + ";1;here;zz"])
async def test_what_is_no_signature_is_refused(made_up: str) -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        told = await refusal(signed_by_hand(gated, made_up))
    assert told.details["kind"] == "wrong signature"


async def stream(channel: aio.Channel, *topics: str) -> list[bytes]:
    """Return the replies to a stream of requests."""

    async def requests() -> Any:
        for topic in topics:
            yield PullRequest(topic=topic)

    made: Any = channel.stream_stream(MANY, request_serializer=PullRequest.SerializeToString)
    return [answer async for answer in made(requests(), timeout=DEADLINE_SECONDS)]


async def test_a_stream_of_requests_signed_for_another_server_is_refused() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            assert await stream(channel, "a", "b") == [b"a", b"b"]
            gated.gate.authentication.audiences = {"elsewhere:1"}
            told = await refusal(stream(channel, "a"))
    assert told.details["kind"] == "wrong signature"
    assert "this is elsewhere:1" in str(told)


async def test_what_was_overheard_at_one_server_is_of_no_use_at_another() -> None:
    """Also a call with one request: there it would be the first of its kind."""
    async with Gated().serving() as there, Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        told = await refusal(signed_by_hand(gated, header(there)))
    assert told.details["kind"] == "wrong signature"
    assert f"signed for {there.address}, and this is {gated.address}" in str(told)


async def test_a_caller_who_reads_no_answers_does_not_go_on_after_his_key_has_ended() -> None:
    """The call ends at its next wait; earlier requests are refused."""
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        signing = Credentials(SHOP, gated.clock).signer(gated.address)

        async def refused() -> None:
            signature = [signing.entry(MANY, None)]
            with gated.gate.passing(MANY, signature, None, lambda: None):
                caller = current_caller()
                assert caller is not None
                caller.require("read", "topic:orders")
                gated.gate.update([known(SHOP, READER, disabled=True)])
                with pytest.raises(NotAuthenticated, match="is disabled"):
                    caller.require("read", "topic:orders")
                # Nor if another key gets the name and more permissions.
                gated.gate.update([known(AccessKey(SHOP.id, "of another shop, for tests"), READER)])
                with pytest.raises(NotAuthenticated):
                    caller.require("read", "topic:orders")
                await asyncio.Event().wait()

        async def ended() -> None:
            with pytest.raises(NotAuthenticated, match="is disabled"):
                await refused()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ended())


async def test_a_request_that_cannot_be_read_is_the_callers_fault() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            made: Any = channel.unary_unary(ONE)
            told = await refusal(made(b"\xff\xff", timeout=DEADLINE_SECONDS))
    assert isinstance(told, InvalidArgument)


async def begun(gated: Gated, channel: aio.Channel) -> Any:
    """Make a call that waits for its second reply."""
    open_call = call(channel, WAIT)
    assert await open_call.read() == b"begun"
    await eventually(lambda: gated.waiting == 1)
    return open_call


async def ended(gated: Gated, open_call: Any) -> RockoonError:
    told = await refusal(open_call.read())
    await eventually(lambda: gated.waiting == 0)
    return told


async def test_what_is_open_in_the_name_of_a_deleted_key_ends() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            open_call = await begun(gated, channel)
            gated.gate.update([])
            told = await ended(gated, open_call)
    assert isinstance(told, NotAuthenticated)
    assert "no access key 'shop' any more" in str(told)


async def test_what_is_open_ends_when_the_permission_for_it_is_revoked() -> None:
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            open_call = await begun(gated, channel)
            # With a further permission it continues.
            gated.gate.update([known(SHOP, READER, ("topic:else", [ACCESS_READ]))])
            assert gated.waiting == 1
            gated.gate.update([known(SHOP, ("topic:orders", [ACCESS_WRITE]))])
            told = await ended(gated, open_call)
    assert isinstance(told, NotPermitted)


async def test_a_call_with_a_renewed_secret_is_repeated_once() -> None:
    """The server may get the renewed secret later: callers must not repeat without a pause."""
    secret, attempts = [CLUSTER_KEY.secret], 0
    async with Gated().serving() as gated:
        access = Credentials(CLUSTER_KEY, gated.clock, lambda: secret[0])
        nameservers = Nameservers([gated.address], "rockoon", None, access)

        async def attempt(channel: aio.Channel) -> object:
            nonlocal attempts
            attempts += 1
            return await call(channel)

        secret[0] = new_secret()
        with pytest.raises(NotAuthenticated):
            await nameservers.call_channel(attempt)
        await nameservers.close()
    assert attempts == 2


async def test_what_is_open_with_a_removed_cluster_secret_ends() -> None:
    successor = AccessKey(CLUSTER_KEY.id, new_secret())
    async with Gated().serving() as gated, gated.channel(CLUSTER_KEY) as channel:
        open_call = await begun(gated, channel)
        gated.cluster_secrets[:] = [successor.secret]
        gated.clock.now_ms += 1_000
        async with gated.channel(successor) as renewed:
            assert await call(renewed) == b"orders"
        assert (await ended(gated, open_call)).details["kind"] == "replaced secret"


async def test_what_is_open_with_a_former_secret_ends_with_it() -> None:
    successor = AccessKey(SHOP.id, "the next secret of shop, for tests")
    async with Gated().serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with gated.channel(SHOP) as channel:
            open_call = await begun(gated, channel)
            both = known(successor, READER, former_verifier=verifier_of(SHOP.secret))
            both.former_until_ms = gated.clock.now_ms + 50
            gated.gate.update([both])
            # The loop's clock is ahead of the one by which secrets end.
            later = asyncio.get_running_loop().time() + 0.1
            await eventually(lambda: asyncio.get_running_loop().time() > later)
            assert await call(channel) == b"orders"
            gated.clock.now_ms += 50
            told = await ended(gated, open_call)
            assert told.details["kind"] == "replaced secret"
            assert (await refusal(call(channel))).details["kind"] == "wrong signature"
        async with gated.channel(successor) as channel:
            assert await call(channel) == b"orders"


async def test_health_is_told_to_all_and_methods_only_to_those_with_a_key() -> None:
    async with Gated().serving() as gated, aio.insecure_channel(gated.address) as channel:
        gated.gate.update([known(SHOP)])
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")

        def listing(through: aio.Channel, *requests: Any) -> Any:
            stub = reflection_pb2_grpc.ServerReflectionStub(through)
            call = stub.ServerReflectionInfo(iter(requests), timeout=DEADLINE_SECONDS)
            return call.read()

        # Without a request: grpc.aio reports the request that it was sending, and not the refusal.
        assert isinstance(await refusal(listing(channel)), NotAuthenticated)
        async with gated.channel(SHOP) as signed:
            assert (await listing(signed, asked)).HasField("list_services_response")


async def test_where_keys_are_optional_only_those_that_are_borne_are_looked_at() -> None:
    impostor = AccessKey(SHOP.id, "a guess of the secret of shop")
    async with Gated(optional=True).serving() as gated:
        gated.gate.update([known(SHOP, READER)])
        async with aio.insecure_channel(gated.address) as channel:
            assert await call(channel, topic="anything") == b"anything"
        async with gated.channel(impostor) as channel:
            assert isinstance(await refusal(call(channel)), NotAuthenticated)
        async with gated.channel(SHOP) as channel:
            assert isinstance(await refusal(call(channel, topic="anything")), NotPermitted)


async def test_services_know_one_another_by_the_cluster_secret() -> None:
    async with Gated().serving() as gated, gated.channel(CLUSTER_KEY) as channel:
        assert await call(channel, topic="anything") == b"anything"


async def test_what_is_for_services_takes_the_cluster_secret_whatever_a_key_may() -> None:
    everything = [(name, [ACCESS_READ, ACCESS_WRITE]) for name in ("cluster", "topic:*")]
    async with Gated(optional=True).serving() as gated:
        gated.gate.update([known(SHOP, *everything)])
        async with gated.channel(SHOP) as channel:
            assert isinstance(await refusal(call(channel, OWN)), NotPermitted)
        async with gated.channel(CLUSTER_KEY) as channel:
            assert await call(channel, OWN) == b"orders"
        # Not even if keys are optional.
        async with aio.insecure_channel(gated.address) as channel:
            assert isinstance(await refusal(call(channel, OWN)), NotAuthenticated)
