"""An Iceberg table with the messages of a topic, and the offsets up to which it has them.

    rockoon.offsets.TOPIC   in the summary of a snapshot: next offset of each queue, as
                            `StreamOffsets` encodes it, with the identity of the cluster
    rockoon.undecoded.TOPIC the same in a table of undecoded messages. Another name, so that a run
                            that writes all messages to this table does not continue there. A
                            table of an earlier version has the former name until the next commit
    rockoon.losses.TOPIC    in the same summary: lost messages, if the commit continued after a loss

Invariants:
- Rows and offsets are in one commit, which applies only to the snapshot from whose history the
  offsets were read. So of two commits with the same messages, one is refused.
- PyIceberg must not repeat a refused commit: it would append the rows to another writer's snapshot.
  `append` therefore commits the changes of a transaction itself, once.
- A refused commit deletes no files: behind a proxy that repeats requests, it may be applied.
- The newest snapshot with offsets, among the ancestors of the current one, decides. So a table that
  is rolled back gets the removed messages again. If snapshots were expired, the table property
  `rockoon.offsets.TOPIC`, set by the same commit, decides.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertTableUUID
from pyiceberg.types import LongType

from rockoon_core.valid_text import redacted
from rockoon_spark.stream.plan import INITIAL, StreamOffsets
from rockoon_spark.tables.rows import ERROR, raw_schema

OFFSETS, UNDECODED, LOSSES = "rockoon.offsets.", "rockoon.undecoded.", "rockoon.losses."
"""Prefixes of properties; the topic follows."""

POSITION = ("broker", "queue", "queue_offset", "store_time")
"""Columns that identify a message of a topic. A recreated queue has the offsets again, later."""
Position: TypeAlias = tuple[str, int, int, datetime]

# Properties of a new table, so that its metadata does not grow with each commit.
_OF_MANY_COMMITS = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
# Compared by name, because SQLAlchemy is optional.
_OPERATIONAL = "sqlalchemy.exc.OperationalError"
_TEMPORARY = (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class TableError(Exception):
    """A table cannot be synchronized; the text names the reason and the remedy."""


class OtherCommit(Exception):
    """Another writer has changed the table since its offsets were read; nothing was committed."""


def is_temporary(error: BaseException) -> bool:
    """True if a call to a catalogue or a file system failed in a way that may pass.

    The catalogue may have applied the call all the same.
    """
    names = {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}
    # A file system that is away; a missing file and a missing permission do not pass.
    is_io = isinstance(error, OSError) and not isinstance(
        error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
    )
    return isinstance(error, _TEMPORARY) or _OPERATIONAL in names or is_io


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """Open a catalogue.

    Args:
        name: in PyIceberg's configuration, or the catalogue's URI.
        properties: override the configuration.

    Raises:
        TableError: the catalogue is not configured.
    """
    if "://" in name:
        properties = {"uri": name, **properties}
        name = "default"
    try:
        return load_catalog(name, **properties)
    except (ValueError, RESTError, ImportError) as error:
        if "URI missing" in str(error):
            raise TableError(
                f"catalogue {name!r} is not in PyIceberg's configuration: add it to"
                f" ~/.pyiceberg.yaml, set PYICEBERG_CATALOG__{name.upper()}__URI, or use its URI"
            ) from None
        raise TableError(f"catalogue {name!r}: {redacted(str(error))}") from error


@dataclass(frozen=True, slots=True)
class TopicState:
    """State of one topic in a table.

    Args:
        offsets: next offset of each queue; initial if the table has none.
        snapshot_id: snapshot with these offsets; None if it has expired, or there is none.
        committed_ms: time of its commit, epoch milliseconds; None without a snapshot.
    """

    offsets: StreamOffsets
    snapshot_id: int | None = None
    committed_ms: int | None = None


class SyncedTable:
    """A table, as it was at the last `load`.

    Args:
        catalog: catalog of the table.
        name: "namespace.table".
        topic: name of the topic.
        prefix: OFFSETS, or UNDECODED for a table of undecoded messages.
    """

    def __init__(self, catalog: Catalog, name: str, topic: str, prefix: str = OFFSETS) -> None:
        if "." not in name:
            raise TableError(f"table {name!r}: expected NAMESPACE.TABLE")
        self.name = name
        self._catalog = catalog
        self._topic = topic
        self._offsets = prefix + topic
        # OFFSETS of a run that writes all messages do no harm here, because `positions` decides.
        self._read_offsets = tuple(dict.fromkeys((prefix + topic, OFFSETS + topic)))
        self._table: Table | None = None

    def load(self) -> None:
        """Read the table's current state from the catalogue.

        Raises:
            NoSuchTableError: the table does not exist.
        """
        self._table = self._catalog.load_table(self.name)

    def create(self, schema: Schema, partitions: PartitionSpec) -> None:
        """Create the table, and its namespace, if they do not exist."""
        self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        self._catalog.create_table_if_not_exists(
            self.name, schema, partition_spec=partitions, properties=_OF_MANY_COMMITS
        )

    def load_if_exists(self) -> bool:
        """Load the table; return False if the catalogue does not have it."""
        try:
            self.load()
        except NoSuchTableError:
            return False
        return True

    @property
    def table(self) -> Table:
        assert self._table is not None, "load() has not been called"
        return self._table

    @property
    def schema(self) -> Schema:
        """Current schema of the table."""
        return self.table.schema()

    def state(self, cluster_id: int) -> TopicState:
        """Return the offsets of the topic.

        Args:
            cluster_id: identity of the cluster; 0 if unknown.

        Raises:
            TableError: the offsets are of another cluster, or the table was rolled back so far that
                no snapshot has them.
        """
        for name in self._read_offsets:
            for snapshot in self._ancestors():
                if text := _property_of(snapshot, name):
                    offsets = self._parsed(name, text, cluster_id)
                    return TopicState(offsets, snapshot.snapshot_id, snapshot.timestamp_ms)
            if text := self.table.properties.get(name):
                self._refuse_rolled_back(name, json.loads(text))
                return TopicState(self._parsed(name, text, cluster_id))
        return TopicState(INITIAL)

    def _ancestors(self) -> Iterator[Snapshot]:
        """Yield the current snapshot, and its ancestors that have not expired."""
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self.table.snapshot_by_id(parent)

    def _refuse_rolled_back(self, name: str, content: dict[str, Any]) -> None:
        """Refuse the offsets of the table property if the current snapshot does not include them:
        it is older, or a snapshot outside of its history has offsets.
        """
        current = self.table.current_snapshot()
        number = 0 if current is None else current.sequence_number or 0
        is_older = number < content["sequence"] and self.table.format_version > 1
        if (
            current is None
            or is_older
            or any(_property_of(snapshot, name) for snapshot in self.table.snapshots())
        ):
            raise TableError(
                f"table {self.name} was rolled back or replaced: property {name} has"
                " offsets, but no snapshot in the history of the current one has them. Remove the"
                " property to append the topic from its start, or roll the table forward"
            )

    def _parsed(self, name: str, text: str, cluster_id: int) -> StreamOffsets:
        content = json.loads(text)
        other = int(content.get("cluster", "0"), 16)
        if other and cluster_id and other != cluster_id:
            raise TableError(
                f"table {self.name} has offsets of topic {self._topic} of another cluster:"
                f" {other:x}, not {cluster_id:x}. Use another table, or remove the property"
                f" {name} and its snapshots"
            )
        return StreamOffsets.parse(content)

    def append(
        self, rows: pa.Table, offsets: StreamOffsets, cluster_id: int, losses: Sequence[str] = ()
    ) -> None:
        """Commit rows and offsets, if no other commit has changed the table since `load`.

        Args:
            rows: with the columns of `schema`; may be empty.
            offsets: next offset of each queue.
            cluster_id: see `state`.
            losses: sentences about messages that are lost.

        Raises:
            OtherCommit: another commit has changed the table. Nothing was committed.
            Exception: see `is_temporary`; the rows may have been committed.
        """
        table = self.table
        content = {**offsets.to_json(), "cluster": f"{cluster_id:x}"}
        properties = {self._offsets: json.dumps(content)}
        if losses:
            properties[LOSSES + self._topic] = "; ".join(losses)
        change = table.transaction()
        with self._own_files():
            change.append(rows, snapshot_properties=properties)
        # Version 1 of the table format has no sequence numbers.
        sequence = getattr(table.metadata, "last_sequence_number", 0) + 1
        change.set_properties({self._offsets: json.dumps({**content, "sequence": sequence})})
        requirements = (
            *change._requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": table.schema().schema_id}),
        )
        try:
            table._do_commit(change._updates, requirements)
        except CommitFailedException as error:
            raise OtherCommit(f"table {self.name}: {error}") from error

    @contextmanager
    def _own_files(self) -> Iterator[None]:
        """Within the block, the files of the loaded snapshot are read.

        Raises:
            OtherCommit: maintenance has deleted a file, because the snapshot is outdated.
            TableError: one is missing, although the snapshot is the current one.
        """
        try:
            yield
        except FileNotFoundError as error:
            former = self.table.metadata_location
            self.load()
            if self.table.metadata_location != former:
                raise OtherCommit(f"table {self.name}: {error}") from error
            raise TableError(
                f"table {self.name}: a file of the current snapshot is missing: {error}"
            ) from error

    def check_positions(self) -> None:
        """Check that the table has the columns that `positions` reads.

        Raises:
            TableError: one is missing, or has another type, so that positions would differ.
        """
        wanted = raw_schema(with_error=True)
        found = {field.name: field.field_type for field in self.schema.fields}
        for name in ("topic", *POSITION, ERROR):
            if name not in found:
                raise TableError(f"table {self.name} needs a column {name}: create it by --create")
            kind = wanted.find_type(name)
            if found[name] != kind and (name != "queue" or found[name] != LongType()):
                raise TableError(
                    f"table {self.name}: column {name} needs type {kind}, not {found[name]}: create"
                    " the table by --create"
                )

    def positions(self, least: int, end: int) -> set[Position]:
        """Return the positions of the topic's undecoded messages with offsets in a range.

        Args:
            least, end: bounds of the offsets, in any queue; `end` is exclusive.
        """
        wanted = (
            f"topic = '{self._topic}' AND queue_offset >= {least} AND queue_offset < {end}"
            f" AND {ERROR} IS NOT NULL"
        )
        with self._own_files():
            found = self.table.scan(row_filter=wanted, selected_fields=POSITION).to_arrow()
        return set(zip(*(found.column(name).to_pylist() for name in POSITION), strict=True))


def _property_of(snapshot: Snapshot, name: str) -> str | None:
    summary = snapshot.summary
    return None if summary is None else summary.additional_properties.get(name)
