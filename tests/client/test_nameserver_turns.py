"""Which nameserver is asked first, and which not."""

from rockoon_core.failover_order import SILENT_SECONDS, FailoverOrder


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
