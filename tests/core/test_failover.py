"""Order of nameservers for calls; the continuation of a watch, and the pause before it."""

import pytest

from rockoon_core.errors import NameserverUnavailable, TopicNotFound
from rockoon_core.nameservers import SILENT_SECONDS, FailoverOrder, WatchRotation, call_any


def test_calls_stay_with_the_nameserver_that_works() -> None:
    turns = FailoverOrder(["a", "b", "c"])
    assert turns.order(0.0) == ["a", "b", "c"]
    turns.failed("a", 0.0, is_silent=False)
    assert turns.order(0.0) == ["b", "c", "a"]
    # Another call that had begun with it as well.
    turns.failed("a", 0.0, is_silent=False)
    assert turns.order(0.0) == ["b", "c", "a"]


def test_one_that_hangs_is_asked_last_until_it_answers_or_time_has_passed() -> None:
    turns = FailoverOrder(["a", "b"])
    turns.failed("a", 0.0, is_silent=True)
    turns.failed("b", 1.0, is_silent=False)
    assert turns.order(1.0) == ["b", "a"]
    assert turns.order(SILENT_SECONDS) == ["a", "b"]
    turns.failed("a", 20.0, is_silent=True)
    turns.failed("b", 20.0, is_silent=True)
    turns.answered("a")
    assert turns.order(20.0) == ["a", "b"]


async def test_each_is_asked_once_however_little_time_there_is() -> None:
    asked: list[str] = []

    async def fail(address: str) -> None:
        asked.append(address)
        raise NameserverUnavailable(address=address)

    with pytest.raises(NameserverUnavailable, match="at c"):
        await call_any(FailoverOrder(["a", "b", "c"]), fail)
    assert asked == ["a", "b", "c"]


async def test_what_is_refused_is_asked_of_no_other_and_the_next_call_goes_elsewhere() -> None:
    asked: list[str] = []

    async def refuse(address: str) -> None:
        asked.append(address)
        raise TopicNotFound(topic="T")

    order = FailoverOrder(["a", "b"])
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            await call_any(order, refuse, retry_seconds=60.0)
    assert asked == ["a", "b"]


async def test_rounds_go_on_until_one_answers() -> None:
    tries: list[str] = []

    async def answer_at_last(address: str) -> str:
        tries.append(address)
        if len(tries) < 5:
            raise NameserverUnavailable(address=address)
        return "here"

    assert await call_any(FailoverOrder(["a", "b"]), answer_at_last, retry_seconds=60.0) == "here"
    assert len(tries) == 5


def test_a_watch_stays_with_a_nameserver_that_answers() -> None:
    rotation = WatchRotation(["a", "b", "c"])
    assert rotation.failed() == 0
    for _ in range(3):
        rotation.answered()
        assert rotation.address == "b"
    assert not rotation.round_failed


def test_a_watch_pauses_only_when_every_nameserver_has_failed() -> None:
    rotation = WatchRotation(["a", "b"])
    seen = [(rotation.address, rotation.failed(), rotation.round_failed) for _ in range(6)]
    assert [(address, pause > 0, failed) for address, pause, failed in seen] == [
        ("a", False, False),
        ("b", True, True),
        ("a", False, True),
        ("b", True, True),
        ("a", False, True),
        ("b", True, True),
    ]
    pauses = [pause for _, pause, _ in seen if pause]
    assert all(low <= pause <= 2 * low for pause, low in zip(pauses, (0.05, 0.1, 0.2), strict=True))
    rotation.answered()
    assert not rotation.round_failed


@pytest.mark.parametrize("failed_rounds", [6, 100, 100_000])
def test_pauses_are_bounded_however_long_an_outage_lasts(failed_rounds: int) -> None:
    rotation = WatchRotation(["a"])
    assert max(rotation.failed() for _ in range(failed_rounds)) <= 2.0
