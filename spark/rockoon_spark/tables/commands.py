"""Implementation of `rockoon table sync` and `rockoon table lag`."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from types import FrameType

from pyiceberg.exceptions import NoSuchTableError, RESTError

from rockoon.errors import RockoonError
from rockoon_spark.source.log_source import (
    BrokerAway,
    DataLost,
)
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.stream.group_progress import GroupFenced, GroupInUse
from rockoon_spark.stream.plan import CheckpointError
from rockoon_spark.tables.json_bodies import UnsupportedColumn
from rockoon_spark.tables.rows import UnusableTable
from rockoon_spark.tables.sync import (
    OutdatedPlan,
    Stopped,
    SyncSettings,
    TableCommit,
    TableQueueLag,
    TableSync,
)
from rockoon_spark.tables.synced_table import TableError, is_temporary

EXPECTED = (
    BrokerAway,
    CheckpointError,
    DataLost,
    GroupFenced,
    GroupInUse,
    NoSuchTableError,
    OptionError,
    OutdatedPlan,
    RESTError,
    RockoonError,
    TableError,
    UnsupportedColumn,
    UnusableTable,
)
"""Errors with a sentence for the user."""


class Interrupted(Exception):
    """A signal ended a run before its end. The next run continues at the table's offsets."""


@dataclass(slots=True)
class Interrupts:
    """Signals that end a run, between two commits; a second signal ends it immediately."""

    stop: Event = field(default_factory=Event)
    received: list[int] = field(default_factory=list)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM within the block."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        former = {number: signal.signal(number, self._receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        self.stop.set()
        if len(self.received) > 1:
            raise KeyboardInterrupt


def sync(
    settings: SyncSettings, report: Callable[[TableCommit], None], *, interval_seconds: float | None
) -> None:
    """Synchronize a table with a topic, until a signal if there is an interval.

    Args:
        settings: settings of the run.
        report: called after each commit.
        interval_seconds: see `TableSync.run`.

    Raises:
        Interrupted: SIGINT, or SIGTERM of a run without an interval.
        Exception: see EXPECTED and `failure_text`.
    """
    interrupts = Interrupts()
    with interrupts.handled():
        try:
            with TableSync(settings, interrupts.stop) as running:
                running.run(report, interval_seconds=interval_seconds)
        except Stopped:
            if interval_seconds is None or signal.SIGINT in interrupts.received:
                raise Interrupted from None


def lag(settings: SyncSettings) -> list[TableQueueLag]:
    """Return how many messages of each queue the table does not have yet.

    Raises:
        Exception: see EXPECTED and `failure_text`.
    """
    with TableSync(settings, Event()) as opened:
        return opened.lag()


def failure_text(error: BaseException) -> str | None:
    """Return the sentence for an expected failure; None for other errors, which the caller raises
    unchanged.
    """
    if isinstance(error, EXPECTED):
        return str(error)
    if isinstance(error, BrokenPipeError):
        # The process that reads the output has ended.
        return None
    if is_temporary(error) or isinstance(error, OSError):
        return f"the catalogue or the files of the table cannot be used: {error}"
    return None
