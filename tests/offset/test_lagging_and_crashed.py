"""Faults that the simulation found, one by one: crashes at bad moments, and late routes."""

import shutil
from pathlib import Path

import pytest
from offset.cluster import GROUP, Cluster
from offset.test_handover import Service

from rockoon_core.errors import RouteNotReached
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.reconciliation import Reconciliation
from rockoon_offset.progress.records import Record, decode, encode

QUEUE, OTHER = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
FIRST = Decision(3, StartReason.FIRST, "because")


def replayed(records: list[Record]) -> Ledger:
    ledger = Ledger()
    for record in records:
        ledger.apply(decode(encode(record)))
    return ledger


async def test_a_member_that_heard_that_it_joined_is_known_after_a_crash_at_that_moment(
    cluster: Cluster, tmp_path: Path
) -> None:
    service = Service(cluster.stub, cluster.nameserver.revision)
    for member in ("a", "b"):
        await service.join(member)
        crashed = tmp_path / member
        shutil.copytree(cluster.store_path / "journal", crashed)
        log = JournalLog(crashed, "r", failed=pytest.fail, lost=None)
        log.commit(log.end)
        log.close()
        (remembered,) = [each for each in log.ledger.members() if each.group == GROUP]
        assert member in {each.member_id for each in remembered.members}


def test_word_of_a_group_s_deletion_that_comes_late_leaves_what_its_successor_has_read() -> None:
    ledger = Ledger()
    records = ledger.start("g", 5, QUEUE, 3, FIRST, "m1", 1)
    # Created again at 12; a reader was faster than the routes.
    records += ledger.start("g", 12, OTHER, 3, FIRST, "m2", 2)
    kept = ledger.find("g", OTHER)
    records += Reconciliation(ledger).delete_group("g", 12, incarnation=12)
    assert ledger.find("g", QUEUE) is None
    assert ledger.find("g", OTHER) == kept
    assert list(replayed(records).each_progress()) == list(ledger.each_progress()) == [kept]
    assert Reconciliation(ledger).delete_group("g", 13, incarnation=12) == []
    Reconciliation(ledger).delete_group("g", 14)
    assert list(ledger.each_progress()) == []


def test_routes_from_before_a_queue_s_create_revision_do_not_say_what_became_of_it() -> None:
    ledger = Ledger()
    ledger.start("g", 5, QUEUE, 30, FIRST, "m1", 1)
    Reconciliation(ledger).routes_seen(31)
    with pytest.raises(RouteNotReached) as refused:
        ledger.require_reached("g", QUEUE, 29)
    assert refused.value.retriable
    ledger.require_reached("g", QUEUE, 30)
    ledger.require_reached("g", OTHER, 1)
    Reconciliation(ledger).delete_topics(["orders"])
    with pytest.raises(RouteNotReached):
        ledger.require_reached("g", QUEUE, 29)


def test_routes_of_an_etcd_that_was_accepted_count_anew() -> None:
    ledger = Ledger()
    ledger.start("g", 5, QUEUE, 30, FIRST, "m1", 1)
    Reconciliation(ledger).routes_seen(31)
    Reconciliation(ledger).accept_etcd(7, 4, {}, {"g": 2})
    ledger.require_reached("g", QUEUE, 4)
