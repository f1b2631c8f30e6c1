"""Time until which a node may serve: a table of its received replies and of the clock."""

import pytest

from rockoon_core.errors import NotReady
from rockoon_node.registration import NodeLease


class Times:
    """The clock, which a test sets."""

    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def lease(times: Times) -> NodeLease:
    return NodeLease("the broker", lambda: times.now)


def answers(lease: NodeLease) -> bool:
    try:
        lease.check()
    except NotReady:
        assert lease.refusal
        return False
    assert not lease.refusal
    return True


def test_the_lease_counts_from_when_its_renewal_was_sent_and_ends_before_it_does_in_etcd(
    lease: NodeLease, times: Times
) -> None:
    times.now = 103.0
    lease.renewed(sent_seconds=100.0, ttl_seconds=10.0)
    times.now = 108.9
    assert answers(lease)
    times.now = 109.0
    assert not answers(lease)
    lease.renewed(sent_seconds=109.0, ttl_seconds=10.0)
    assert answers(lease)


def test_who_is_awake_and_reaches_nobody_goes_on(lease: NodeLease, times: Times) -> None:
    """As in architecture.md: known state is served while nameservers or etcd are away."""
    lease.renewed(100.0, 10.0)
    for times.now in (106.0, 110.6, 115.0, 119.5, 124.0, 130.0):
        assert answers(lease)
        lease.no_answer(round_seconds=2.5)
    times.now += 30
    assert not answers(lease)


def test_who_slept_through_its_lease_waits_for_a_nameserver_that_knows(
    lease: NodeLease, times: Times
) -> None:
    lease.renewed(100.0, 10.0)
    times.now = 110.0
    # A call that was under way in the meantime, and one made since.
    lease.no_answer(round_seconds=2.5)
    assert not answers(lease)
    lease.no_answer(round_seconds=2.5)
    assert not answers(lease)
    lease.renewed(111.0, 10.0)
    assert answers(lease)


def test_who_starts_while_nameservers_are_away_serves_what_it_knows(
    lease: NodeLease, times: Times
) -> None:
    assert answers(lease)
    lease.registration_started()
    assert not answers(lease)
    lease.no_answer(round_seconds=2.5)
    times.now = 10_000.0
    assert answers(lease)


def test_who_was_told_of_another_process_with_a_copy_waits_until_that_is_known_to_be_over(
    lease: NodeLease, times: Times
) -> None:
    """A nameserver or etcd that is away in between proves nothing: another node may continue."""
    lease.registration_started()
    lease.has_predecessor(8.0)
    for times.now in (101.0, 107.0, 120.0):
        lease.no_answer(round_seconds=2.5)
        assert not answers(lease)
    lease.renewed(120.0, 10.0)
    assert answers(lease)
    times.now = 128.0
    lease.no_answer(round_seconds=2.5)
    times.now = 130.0
    assert answers(lease)


def test_who_has_left_answers_the_rest_unless_its_name_was_lost(
    lease: NodeLease, times: Times
) -> None:
    lease.renewed(100.0, 10.0)
    lease.left()
    times.now = 200.0
    assert answers(lease)
    lease.lost("the name is another's")
    lease.left()
    assert not answers(lease)
