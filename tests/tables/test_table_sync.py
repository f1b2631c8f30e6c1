"""Tables that follow a topic, in catalogues of both kinds: each message once, whatever happens."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from rockoon.testing.disposable import DisposableCluster
from rockoon_core.message_queue import MessageQueue
from rockoon_spark.source.log_source import DataLost
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.stream.plan import QueuePosition, StreamOffsets
from rockoon_spark.tables import sync as table_sync
from rockoon_spark.tables.rows import UnusableTable, raw_schema
from rockoon_spark.tables.sync import Stopped, SyncSettings, TableCommit, TableSync
from rockoon_spark.tables.synced_table import OFFSETS, OtherCommit, SyncedTable, TableError
from support.lake import Lake
from support.rest_catalog import Refused, RestCatalogServer

ORDERS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "_queue", LongType()),
    NestedField(4, "_queue_offset", LongType()),
    NestedField(5, "_store_time", TimestamptzType()),
)
BY_DATE = PartitionSpec(PartitionField(5, 1000, DayTransform(), "date"))


@pytest.fixture
def topic(cluster: DisposableCluster) -> str:
    return cluster.new_topic("orders", queues_per_broker=2)


@pytest.fixture
def settings(
    cluster: DisposableCluster, topic: str, request: pytest.FixtureRequest
) -> SyncSettings:
    name = "lake" if "lake" in request.fixturenames else "lake_over_http"
    lake: Lake = request.getfixturevalue(name)
    return SyncSettings(
        topic=topic,
        stream={"endpoint": cluster.nameservers[0], "startingOffsets": "earliest"},
        catalog=lake.uri,
        properties=lake.properties,
        table=f"sales.{topic}",
        errors_table=f"sales.{topic}-errors",
        form="json",
        creates=True,
    )


def changed(settings: SyncSettings, **values: Any) -> SyncSettings:
    return SyncSettings(
        **{**{name: getattr(settings, name) for name in settings.__slots__}, **values}
    )


def send(cluster: DisposableCluster, topic: str, bodies: Iterable[bytes]) -> None:
    with cluster.connect() as connection:
        for body in bodies:
            connection.send(topic, body)


def orders(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": number, "name": f"n{number}"}).encode() for number in numbers]


def once(settings: SyncSettings, stop: Event | None = None) -> list[TableCommit]:
    commits: list[TableCommit] = []
    with TableSync(settings, stop or Event()) as running:
        running.run(commits.append, interval_seconds=None)
    return commits


def create(catalog: Catalog, settings: SyncSettings, schema: Schema = ORDERS) -> None:
    catalog.create_namespace_if_not_exists("sales")
    spec = BY_DATE if schema is ORDERS else PartitionSpec()
    catalog.create_table(settings.table, schema, partition_spec=spec)


def ids(lake: Lake, table: str) -> list[int]:
    return sorted(row["id"] for row in lake.rows(table))


def test_raw_messages_are_appended_once_with_their_offsets(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake: Lake
) -> None:
    settings = changed(settings, form="raw", errors_table="", commit_messages_max=30)
    with pytest.raises(TableError, match="does not exist: create it, or add --create"):
        once(changed(settings, creates=False))
    with cluster.connect() as connection:
        for n in range(50):
            connection.send(topic, b"%d" % n, keys=f"k{n}", tags="new", properties={"a": "b"})
    assert sum(commit.messages for commit in once(settings)) == 50
    assert once(settings) == []
    send(cluster, topic, [b"last"])
    (commit,) = once(settings)
    assert (commit.messages, commit.undecoded) == (1, 0)
    rows = lake.rows(settings.table)
    assert sorted(row["body"] for row in rows) == sorted([b"%d" % n for n in range(50)] + [b"last"])
    assert len({(row["broker"], row["queue"], row["queue_offset"]) for row in rows}) == 51
    first = next(row for row in rows if row["body"] == b"7")
    assert (first["topic"], first["keys"], first["tags"]) == (topic, "k7", "new")
    assert dict(first["properties"])["a"] == "b"
    table = lake.open().load_table(settings.table)
    # Two commits of 30 and 20 messages, and one of 1.
    assert len(table.snapshots()) == 3
    (day,) = {entry["partition"]["store_date"] for entry in table.inspect.partitions().to_pylist()}
    assert day == first["store_time"].date()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    stated = StreamOffsets.parse(json.loads(snapshot.summary[f"rockoon.offsets.{topic}"] or ""))
    counts = {queue: position.offset for queue, position in stated.queues.items()}
    for queue, offset in counts.items():
        own = [
            row for row in rows if (row["broker"], row["queue"]) == (queue.broker, queue.queue_id)
        ]
        assert [row["queue_offset"] for row in own] == list(range(offset))
    assert sum(counts.values()) == 51
    assert lake.query(settings.table, "SELECT count(*) FROM rows") == [(51,)]


def test_large_messages_after_small_ones_are_in_several_commits(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size of a commit is estimated from the next messages, which are small."""
    monkeypatch.setattr(table_sync, "COMMIT_BYTES_MAX", 1 << 20)
    large = 1 << 20
    bodies = [*[b"%d" % n for n in range(280)], *[b"%d" % n + bytes(large) for n in range(16)]]
    send(cluster, topic, bodies)
    commits = once(changed(settings, form="raw", errors_table=""))
    assert sum(commit.messages for commit in commits) == len(bodies)
    rows = lake_over_http.rows(settings.table)
    assert Counter(row["body"] for row in rows) == Counter(bodies)
    ends = [StreamOffsets({})] + [commit.offsets for commit in commits]
    sizes = [
        sum(
            len(row["body"])
            for row in rows
            for queue in [MessageQueue(topic, row["broker"], row["queue"])]
            if before.queues.get(queue, QueuePosition(0, 0)).offset
            <= row["queue_offset"]
            < after.queues[queue].offset
        )
        for before, after in pairwise(ends)
    ]
    # The limit is checked after each reply, which has up to 2 MiB.
    assert max(sizes) < 4 * large


def test_bodies_in_json_that_do_not_fit_are_in_the_second_table(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    with pytest.raises(TableError, match="create it with the columns of the bodies"):
        once(settings)
    create(lake_over_http.open(), settings)
    send(cluster, topic, [*orders(1, 2), b"{", b'{"id": "3"}', b'{"name": "four"}', b'{"id": 5}'])
    with pytest.raises(TableError, match=r"^message \d of queue .*: .*\. With --errors-table"):
        once(changed(settings, errors_table=""))
    assert lake_over_http.rows(settings.table) == []
    (commit,) = once(settings)
    assert (commit.messages, commit.undecoded) == (3, 3)
    rows = {row["id"]: row for row in lake_over_http.rows(settings.table)}
    assert {number: row["name"] for number, row in rows.items()} == {1: "n1", 2: "n2", 5: None}
    assert {row["_queue"] for row in rows.values()} <= {0, 1}
    errors = {row["body"]: row["error"] for row in lake_over_http.rows(settings.errors_table)}
    assert errors[b'{"id": "3"}'] == 'field id: "3" is no long'
    assert errors[b'{"name": "four"}'] == "field id is missing or null"
    assert errors[b"{"].startswith("the body is not JSON")
    assert once(settings) == []


def test_a_commit_of_another_writer_in_between_is_not_repeated(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
) -> None:
    """The second writer commits everything while the first one's commit is under way."""
    create(rest.catalog, settings)
    send(cluster, topic, [*orders(*range(10)), b"bad"])
    inner: list[TableCommit] = []

    def overtake(table: str) -> None:
        if table == settings.table and not inner:
            rest.before_commit = lambda _: None
            send(cluster, topic, orders(10))
            inner.extend(once(settings))

    rest.before_commit = overtake
    outer = once(settings)
    assert [commit.messages for commit in inner] == [11]
    assert [commit.messages for commit in outer] == []
    assert ids(lake_over_http, settings.table) == list(range(11))
    assert len(lake_over_http.rows(settings.errors_table)) == 1


def test_many_writers_at_once_append_each_message_once(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake: Lake
) -> None:
    create(lake.open(), settings)
    send(cluster, topic, [body for n in range(40) for body in (*orders(n), b"bad %d" % n)])
    settings = changed(settings, commit_messages_max=20)
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(once, [settings] * 3))
    assert ids(lake, settings.table) == list(range(40))
    errors = sorted(row["body"] for row in lake.rows(settings.errors_table))
    assert errors == sorted(b"bad %d" % n for n in range(40))


@pytest.mark.parametrize("status", [0, 500, 503])
@pytest.mark.parametrize("applied", [False, True])
def test_a_commit_without_a_reply_is_not_repeated(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
    status: int,
    applied: bool,
) -> None:
    create(rest.catalog, settings)
    send(cluster, topic, [*orders(1, 2, 3), b"bad"])
    refused: list[str] = []

    def refuse(table: str) -> None:
        if refused.count(table) < 2:
            refused.append(table)
            raise Refused(status)

    if applied:
        rest.after_commit = refuse
    else:
        rest.before_commit = refuse
    once(settings)
    assert settings.table in refused
    assert settings.errors_table in refused
    assert ids(lake_over_http, settings.table) == [1, 2, 3]
    assert [row["body"] for row in lake_over_http.rows(settings.errors_table)] == [b"bad"]


def recreate(cluster: DisposableCluster, topic: str) -> None:
    with cluster.connect() as connection:
        connection.call(connection.asyncio.admin.delete_topic(topic))
        connection.call(connection.asyncio.admin.create_topic(topic, queues_per_broker=2))


def stopped_between_the_commits(settings: SyncSettings, rest: RestCatalogServer) -> None:
    """Run a writer that dies between its commit of undecoded messages and its second commit."""
    stop = Event()

    def refuse(table: str) -> None:
        if table == settings.table:
            stop.set()
            raise Refused(500)

    rest.before_commit = refuse
    with pytest.raises(Stopped):
        once(settings, stop)
    rest.before_commit = lambda _: None


@pytest.mark.parametrize("is_former", [False, True])
def test_undecoded_messages_are_not_repeated_if_a_writer_dies_between_both_commits(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
    monkeypatch: pytest.MonkeyPatch,
    is_former: bool,
) -> None:
    create(rest.catalog, settings)
    send(cluster, topic, [*orders(1, 2), b"bad"])
    with monkeypatch.context() as version:
        if is_former:
            # Earlier versions wrote this name to both tables.
            version.setattr(table_sync, "UNDECODED", OFFSETS)
        stopped_between_the_commits(settings, rest)
    assert [row["body"] for row in lake_over_http.rows(settings.errors_table)] == [b"bad"]
    assert lake_over_http.rows(settings.table) == []
    send(cluster, topic, [*orders(3), b"worse"])
    (commit,) = once(settings)
    assert (commit.messages, commit.undecoded) == (3, 1)
    assert ids(lake_over_http, settings.table) == [1, 2, 3]
    errors = sorted(row["body"] for row in lake_over_http.rows(settings.errors_table))
    assert errors == [b"bad", b"worse"]


def test_undecoded_messages_of_a_deleted_topic_do_not_hide_those_of_the_new_one(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
) -> None:
    create(rest.catalog, settings)
    send(cluster, topic, [b"old"] * 12)
    once(settings)
    recreate(cluster, topic)
    settings = changed(settings, allows_data_loss=True)
    send(cluster, topic, [*orders(*range(12)), *[b"new"] * 4])
    stopped_between_the_commits(settings, rest)
    once(settings)
    assert ids(lake_over_http, settings.table) == list(range(12))
    errors = Counter(row["body"] for row in lake_over_http.rows(settings.errors_table))
    assert errors == {b"old": 12, b"new": 4}


def test_the_offsets_of_a_table_of_errors_are_not_those_of_a_table_of_all_messages(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
) -> None:
    create(rest.catalog, settings)
    send(cluster, topic, [*orders(1, 2), b"bad"])
    once(settings)
    into_errors = changed(settings, form="raw", table=settings.errors_table, errors_table="")
    assert [commit.messages for commit in once(into_errors)] == [3]
    # This sync appends all messages to the table of errors, also decodable ones.
    send(cluster, topic, [*orders(3, 4), b"worse"])
    once(into_errors)
    stopped_between_the_commits(settings, rest)
    once(settings)
    assert ids(lake_over_http, settings.table) == [1, 2, 3, 4]
    raw = changed(into_errors, table=f"sales.{topic}-raw")
    once(raw)
    with pytest.raises(TableError, match="needs a column error"):
        once(changed(settings, errors_table=raw.table))


@pytest.mark.parametrize("is_stricter", [False, True])
def test_a_change_of_the_schema_between_both_commits_neither_loses_nor_repeats_a_message(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
    is_stricter: bool,
) -> None:
    create(rest.catalog, settings, Schema(NestedField(1, "id", LongType())))
    send(cluster, topic, [b'{"id": 1, "more": 2}', b'{"id": "x", "more": 2}', b"bad"])
    stopped_between_the_commits(settings, rest)
    with rest.catalog.load_table(settings.table).update_schema() as update:
        if is_stricter:
            update.add_column("more", StringType())
        else:
            update.delete_column("id")
            update.add_column("more", LongType())
    once(settings)
    everywhere = len(lake_over_http.rows(settings.table))
    errors = [row["body"] for row in lake_over_http.rows(settings.errors_table)]
    assert everywhere + len(errors) == len({*errors}) + everywhere == 3
    assert (b'{"id": 1, "more": 2}' in errors) == is_stricter


def test_a_table_of_format_version_1_has_the_messages_too(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    catalog = lake_over_http.open()
    catalog.create_namespace_if_not_exists("sales")
    catalog.create_table(settings.table, ORDERS, properties={"format-version": "1"})
    for n in range(2):
        send(cluster, topic, orders(n))
        once(settings)
    assert ids(lake_over_http, settings.table) == [0, 1]


def test_a_commit_of_a_changed_table_is_refused_even_by_pyiceberg_s_retries(
    cluster: DisposableCluster, settings: SyncSettings, lake: Lake
) -> None:
    """PyIceberg would append the rows again, to the snapshot of the other writer."""
    create(lake.open(), settings, Schema(NestedField(1, "id", LongType())))
    tables = [SyncedTable(lake.open(), settings.table, "orders") for _ in range(2)]
    rows = pa.table({"id": pa.array([1], pa.int64())})
    for each in tables:
        each.load()
    tables[0].append(rows, StreamOffsets({}), 7)
    with pytest.raises(OtherCommit):
        tables[1].append(rows, StreamOffsets({}), 7)
    assert ids(lake, settings.table) == [1]


def rolled_back(lake: Lake, settings: SyncSettings, number: int) -> None:
    table = lake.open().load_table(settings.table)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[number].snapshot_id).commit()


def test_a_table_that_was_rolled_back_gets_the_removed_messages_again(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake: Lake
) -> None:
    create(lake.open(), settings)
    lake.open().load_table(settings.table).append(
        pa.Table.from_pylist([{"id": 0}], ORDERS.as_arrow())
    )
    for n in (1, 2):
        send(cluster, topic, orders(n))
        once(settings)
    rolled_back(lake, settings, 1)
    assert ids(lake, settings.table) == [0, 1]
    assert [commit.messages for commit in once(settings)] == [1]
    assert ids(lake, settings.table) == [0, 1, 2]
    rolled_back(lake, settings, 0)
    lake.open().load_table(settings.table).append(
        pa.Table.from_pylist([{"id": 100}], ORDERS.as_arrow())
    )
    with pytest.raises(TableError, match=r"was rolled back or replaced: property rockoon\.offsets"):
        once(settings)


def test_files_that_maintenance_deletes_before_the_commit_do_not_end_the_run(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    """Another program changes the table, expires the former snapshot, and deletes its files."""
    create(lake_over_http.open(), settings)
    lake_over_http.open().load_table(settings.table).append(
        pa.Table.from_pylist([{"id": 0}], ORDERS.as_arrow())
    )
    send(cluster, topic, orders(1))

    class Maintained(TableSync):
        def _read(self, *arguments: Any) -> Any:
            found = super()._read(*arguments)
            table = lake_over_http.open().load_table(settings.table)
            if len(table.history()) == 1:
                former = table.current_snapshot()
                assert former is not None
                table.append(pa.Table.from_pylist([{"id": 100}], ORDERS.as_arrow()))
                Path(former.manifest_list.removeprefix("file://")).unlink()
            return found

    with Maintained(settings, Event()) as running:
        running.run(lambda _: None, interval_seconds=None)
    assert ids(lake_over_http, settings.table) == [0, 1, 100]


def test_a_queue_that_is_created_again_before_it_is_read_is_a_loss_in_the_snapshot(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    create(lake_over_http.open(), settings)
    send(cluster, topic, orders(*range(8)))
    once(settings)
    send(cluster, topic, orders(*range(8, 12)))

    class Late(TableSync):
        is_first = True

        def _read(self, *arguments: Any) -> Any:
            if self.is_first:
                self.is_first = False
                recreate(cluster, topic)
                send(cluster, topic, orders(*range(12, 16)))
            return super()._read(*arguments)

    with Late(settings, Event()) as running, pytest.raises(DataLost) as failure:
        running.run(lambda _: None, interval_seconds=None)
    assert "--allow-data-loss" in str(failure.value)
    assert "failOnDataLoss" not in str(failure.value)
    commits: list[TableCommit] = []
    with Late(changed(settings, allows_data_loss=True), Event()) as running:
        running.run(commits.append, interval_seconds=None)
    # No commit has offsets of the queues that were deleted after the plan.
    (commit,) = commits
    assert commit.messages == 4
    assert len(commit.losses) == 4
    assert all("was deleted and created again" in each for each in commit.losses)
    assert ids(lake_over_http, settings.table) == [*range(8), *range(12, 16)]


def test_expired_snapshots_and_commits_of_other_programs_keep_the_offsets(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    create(lake_over_http.open(), settings)
    send(cluster, topic, orders(1, 2))
    once(settings)
    table = lake_over_http.open().load_table(settings.table)
    table.append(pa.Table.from_pylist([{"id": 100}], ORDERS.as_arrow()))
    assert once(settings) == []
    send(cluster, topic, orders(3))
    once(settings)
    table = lake_over_http.open().load_table(settings.table)
    table.overwrite(table.scan().to_arrow())
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
    ).commit()
    send(cluster, topic, orders(4))
    assert [commit.messages for commit in once(settings)] == [1]
    assert ids(lake_over_http, settings.table) == [1, 2, 3, 4, 100]


def with_offsets(
    settings: SyncSettings,
    lake: Lake,
    change: Callable[[QueuePosition], QueuePosition],
    cluster: int,
) -> None:
    """Commit other offsets."""
    table = SyncedTable(lake.open(), settings.table, settings.topic)
    table.load()
    offsets = table.state(0).offsets
    moved = {queue: change(position) for queue, position in offsets.queues.items()}
    table.append(ORDERS.as_arrow().empty_table(), StreamOffsets(moved), cluster)


def test_offsets_that_the_log_does_not_have_are_refused_unless_the_loss_is_allowed(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    create(lake_over_http.open(), settings)
    send(cluster, topic, orders(*range(8)))
    once(settings)
    with_offsets(
        settings, lake_over_http, lambda at: QueuePosition(at.offset + 5, at.create_revision), 0
    )
    with pytest.raises(DataLost, match=r"ends at offset .* are lost\. --allow-data-loss"):
        once(settings)
    (commit,) = once(changed(settings, allows_data_loss=True))
    assert len(commit.losses) == 4
    snapshot = lake_over_http.open().load_table(settings.table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert "are lost" in (snapshot.summary[f"rockoon.losses.{topic}"] or "")
    send(cluster, topic, orders(*range(8, 12)))
    once(settings)
    assert ids(lake_over_http, settings.table) == list(range(12))
    with_offsets(
        settings, lake_over_http, lambda at: QueuePosition(at.offset, at.create_revision + 1), 0
    )
    with pytest.raises(DataLost, match="was deleted and created again"):
        once(settings)


def test_offsets_of_another_cluster_are_refused(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    create(lake_over_http.open(), settings)
    once(settings)
    with_offsets(settings, lake_over_http, lambda at: at, 0xABC)
    with pytest.raises(TableError, match="of another cluster: abc, not "):
        once(settings)


def test_a_wrong_name_or_a_table_that_does_not_fit_is_an_error_before_any_commit(
    settings: SyncSettings, lake_over_http: Lake, cluster: DisposableCluster
) -> None:
    with pytest.raises(OptionError, match="does not exist; did you mean"):
        once(changed(settings, topic=settings.topic[:-1]))
    with pytest.raises(TableError, match=r"expected NAMESPACE\.TABLE"):
        once(changed(settings, table="orders"))
    with pytest.raises(TableError, match="Could not infer the catalog type"):
        once(changed(settings, catalog="ftp://nowhere"))
    naive = raw_schema(with_error=True).as_arrow()
    at = naive.get_field_index("store_time")
    lake_over_http.open().create_namespace_if_not_exists("sales")
    lake_over_http.open().create_table(
        "sales.naive", naive.set(at, pa.field("store_time", pa.timestamp("us")))
    )
    create(
        lake_over_http.open(), settings, Schema(NestedField(1, "price", LongType(), required=True))
    )
    send(cluster, settings.topic, orders(1))
    with pytest.raises(TableError, match="column store_time needs type timestamptz"):
        once(changed(settings, errors_table="sales.naive"))
    with pytest.raises(UnusableTable, match="column price is required"):
        once(changed(settings, form="raw", errors_table=""))


def test_lag_counts_what_a_table_does_not_have(
    cluster: DisposableCluster, topic: str, settings: SyncSettings, lake_over_http: Lake
) -> None:
    create(lake_over_http.open(), settings)
    send(cluster, topic, orders(1, 2, 3))
    with TableSync(settings, Event()) as opened:
        assert sum(each.lag for each in opened.lag()) == 3
        assert {each.table_offset for each in opened.lag()} == {None}
        once(settings)
        send(cluster, topic, orders(4))
        found = opened.lag()
    assert sum(each.lag for each in found) == 1
    assert sum(each.table_offset or 0 for each in found) == 3
    assert all(each.committed_ms for each in found)
    assert {each.queue for each in found} == {
        MessageQueue(topic, broker, number)
        for broker in ("broker-a", "broker-b")
        for number in (0, 1)
    }


def test_a_catalogue_that_stays_away_ends_a_run_and_a_shorter_outage_does_not(
    cluster: DisposableCluster,
    topic: str,
    settings: SyncSettings,
    lake_over_http: Lake,
    rest: RestCatalogServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(rest.catalog, settings)
    send(cluster, topic, orders(1))
    failures = iter(range(5))

    def away(_: str) -> None:
        if next(failures, None) is not None:
            raise Refused(503)

    rest.before_commit = away
    once(settings)
    assert ids(lake_over_http, settings.table) == [1]
    monkeypatch.setattr(table_sync, "ONCE_RETRY_SECONDS", 0.2)
    send(cluster, topic, orders(2))

    def gone(_: str) -> None:
        raise Refused(0)

    rest.before_commit = gone
    with pytest.raises(OSError, match="Connection"):
        once(settings)
    assert ids(lake_over_http, settings.table) == [1]
