"""A catalogue of Iceberg tables for tests."""

from dataclasses import dataclass
from typing import Any

import duckdb
from pyiceberg.catalog import Catalog, load_catalog


@dataclass(frozen=True)
class Lake:
    """A catalogue, by its URI and properties."""

    uri: str
    properties: dict[str, str]

    def open(self) -> Catalog:
        # A SQL catalogue keys its tables by the catalogue's name.
        return load_catalog("default", uri=self.uri, **self.properties)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows, in the order of queues and offsets."""
        found = self.open().load_table(table).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row.get("queue") or 0, row.get("queue_offset") or 0))

    def query(self, table: str, query: str) -> list[tuple[Any, ...]]:
        """Run a query of DuckDB over the files of the current snapshot, as table `rows`.

        DuckDB's own extension for Iceberg is in no package registry. No test deletes rows, so the
        files have exactly the rows of the snapshot.
        """
        files = [each.file.file_path for each in self.open().load_table(table).scan().plan_files()]
        if not files:
            return []
        found = duckdb.sql(f"WITH rows AS (FROM read_parquet({files})) {query}")
        return [] if found is None else found.fetchall()
