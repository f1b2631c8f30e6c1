"""The SDK for scripts: as the asyncio SDK, from any thread, without remaining threads."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rockoon import sync
from rockoon.errors import Closed, InvalidArgument, NameserverUnavailable, TopicNotFound
from rockoon.net import blocking
from support.fake_append_broker import FakeAppendBroker
from support.scripted_nameserver import ScriptedNameserver
from support.waiting import DEADLINE_SECONDS


@pytest.fixture
def address() -> Iterator[str]:
    """The fakes, in their own loop and thread."""
    found: list[str] = []
    up, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with ScriptedNameserver() as nameserver, FakeAppendBroker("broker-a", nameserver):
            nameserver.put_topic("orders", {"broker-a": 2})
            found.append(nameserver.address)
            up.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    assert up.wait(DEADLINE_SECONDS)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def test_send_returns_when_the_message_is_stored(address: str) -> None:
    with sync.connect(address) as cluster:
        assert cluster.send("orders", b"one", ordering_key="k").queue_offset == 0
        assert cluster.send("orders", b"two", ordering_key="k").queue_offset == 1
        assert len(cluster.send_many("orders", [b"x"] * 1000)) == 1000
        assert len(cluster.queues("orders")) == 2
        with pytest.raises(TopicNotFound):
            cluster.send("payments", b"x")


def test_a_former_name_is_told_with_the_line_that_has_it(address: str) -> None:
    with (  # noqa: PT031
        sync.connect(address) as cluster,
        pytest.warns(DeprecationWarning, match="ordering_key") as warned,
    ):
        cluster.send("orders", b"x", key="k")
        cluster.send_many("orders", [b"x"], key="k")
    assert [each.filename for each in warned] == [__file__] * 2


def test_many_threads_share_a_connection(address: str) -> None:
    with sync.connect(address) as cluster, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: cluster.send("orders", b"%d" % n), range(200)))
    assert len({(result.queue, result.queue_offset) for result in results}) == 200


def test_leaving_ends_the_thread_and_later_calls_are_refused(address: str) -> None:
    before = threading.active_count()
    with sync.connect(address) as cluster:
        cluster.send("orders", b"one")
        assert threading.active_count() > before
    assert "rockoon" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(Closed):
        cluster.send("orders", b"late")


def test_a_connection_can_be_entered_again(address: str) -> None:
    cluster = sync.connect(address)
    for number in range(2):
        with cluster:
            assert cluster.send("orders", b"x", ordering_key="k").queue_offset == number
        with pytest.raises(Closed):
            cluster.asyncio  # noqa: B018


def test_an_iterable_that_blocks_holds_up_nobody_else(address: str) -> None:
    """As an iterator that reads a file, a socket, or another thread's queue."""
    read: queue.Queue[bytes | None] = queue.Queue()
    with sync.connect(address) as cluster, ThreadPoolExecutor(1) as pool:
        many = pool.submit(cluster.send_many, "orders", iter(read.get, None))
        read.put(b"one")
        assert cluster.send("orders", b"meanwhile").store_timestamp_ms
        assert not many.done()
        read.put(None)
        assert len(many.result(DEADLINE_SECONDS)) == 1


def test_an_iterable_may_read_with_the_connection_that_sends(address: str) -> None:
    """It is read in the caller's thread, and only as far ahead as the producer accepts messages."""
    with sync.connect(address) as cluster:
        copied = (cluster.send("orders", b"%d" % n).message_id.encode() for n in range(3))
        assert len(cluster.send_many("orders", copied, keys=(str(n) for n in range(3)))) == 3


def test_what_an_iterable_gives_is_sent_in_its_order(address: str) -> None:
    bodies = (b"%d" % number for number in range(20_000))
    with sync.connect(address) as cluster:
        results = cluster.send_many("orders", bodies, ordering_key="k")
        assert [result.queue_offset for result in results] == list(range(20_000))


def test_a_call_that_would_wait_for_itself_is_refused(address: str) -> None:
    with sync.connect(address) as cluster:

        async def send() -> None:
            cluster.send_many("orders", iter([b"x"]))

        with pytest.raises(RuntimeError, match="loop"):
            cluster.call(send())


def test_an_iterable_that_raises_ends_the_call_with_that(address: str) -> None:
    def bodies() -> Iterator[bytes]:
        yield b"one"
        raise KeyError("mine")

    with sync.connect(address) as cluster:
        with pytest.raises(KeyError, match="mine"):
            cluster.send_many("orders", bodies())
        with pytest.raises(InvalidArgument, match="more keys"):
            cluster.send_many("orders", [b"x"], keys=["a", "b"])
        assert len(cluster.send_many("orders", [])) == 0
        with pytest.raises(TopicNotFound):
            cluster.send_many("payments", iter([b"x"] * 100_000))


def test_why_the_connection_broke_goes_with_the_refusal_of_later_calls(address: str) -> None:
    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(Closed) as refused, sync.connect(address) as cluster:  # noqa: PT012
        (thread,) = (each for each in threading.enumerate() if each.name == "rockoon")

        async def begin() -> None:
            cluster.asyncio.tasks.create_task(fail())

        cluster.call(begin())
        thread.join(DEADLINE_SECONDS)
        cluster.route("orders")
    assert isinstance(refused.value.__cause__, ExceptionGroup)


def test_what_the_body_raises_comes_out_as_it_is(address: str) -> None:
    with pytest.raises(KeyError, match="mine"), sync.connect(address):
        raise KeyError("mine")


def test_no_nameserver_is_told_on_entering() -> None:
    with (
        pytest.raises(NameserverUnavailable),
        sync.connect("127.0.0.1:1", connect_seconds_max=0.3),
    ):
        pass


def test_what_fails_in_the_loop_is_told_but_no_news_for_loops_that_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with asyncio.Runner(loop_factory=blocking._new_loop) as runner:
        loop = runner.get_loop()
        loop.call_exception_handler(
            {
                "message": "Exception in callback PollerCompletionQueue._handle_events",
                "exception": RuntimeError("Event loop is closed"),
            }
        )
        assert not caplog.records
        loop.call_exception_handler({"message": "a task failed", "exception": RuntimeError()})
    assert "a task failed" in caplog.text
