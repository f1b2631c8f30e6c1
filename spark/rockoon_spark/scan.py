"""Messages as Arrow record batches in one process, without PySpark; see `rockoon.arrow.scan`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import chain
from pathlib import Path

import pyarrow as pa

from rockoon_spark.source.option_table import OptionError
from rockoon_spark.source.options import SourceOptions

Moment = date | str | int
"""A store time: a date or datetime, a text as in the options, or epoch milliseconds."""

_ENDPOINT = re.compile(r"(\[[^\]/]+\]|[\w.-]+):[0-9]+([,;]\s*(\[[^\]/]+\]|[\w.-]+):[0-9]+)*")


def scan(
    source: str | Path,
    topics: str | Iterable[str] | None = None,
    *,
    columns: Iterable[str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    tags: str | Iterable[str] | None = None,
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return a reader of messages; see `rockoon.arrow.scan`."""
    is_endpoint = isinstance(source, str) and _ENDPOINT.fullmatch(source.strip())
    given = {"endpoint" if is_endpoint else "path": str(source)}
    lists = {"topics": topics, "columns": columns, "tags": tags}
    for name, value in lists.items():
        if value is not None:
            given[name] = value if isinstance(value, str) else ",".join(value)
    for name, moment in {"startingTimestamp": since, "endingTimestamp": until}.items():
        if moment is not None:
            given[name] = _text(moment)
    more = {name.lower(): value for name, value in (options or {}).items()}
    if twice := [name for name in given if name.lower() in more]:
        raise OptionError(f"option {twice[0]}: an argument of scan has set it already")
    if limit is not None and limit < 0:
        raise OptionError(f"limit: {limit} is negative")
    chosen = SourceOptions.parse({**given, **more})
    batches = chain.from_iterable(map(chosen.rows, chosen.partitions()))
    return pa.RecordBatchReader.from_batches(
        chosen.schema, batches if limit is None else _first_rows(batches, limit)
    )


def _text(moment: Moment) -> str:
    return moment.isoformat() if isinstance(moment, date) else str(moment)


def _first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    while left and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
