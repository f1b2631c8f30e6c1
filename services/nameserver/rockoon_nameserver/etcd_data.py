"""etcd's data: keys, ranges, events, conditions, operations. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

# etcd refuses a transaction with more operations (its --max-txn-ops).
TRANSACTION_OPERATIONS_MAX = 128


class Span(NamedTuple):
    """Keys from `first` (included) to `end` (excluded); only `first` when `end` is empty."""

    first: bytes
    end: bytes = b""


def only(key: str) -> Span:
    return Span(key.encode())


def under(prefix: str) -> Span:
    """All keys that start with `prefix`, which ends in "/"."""
    first = prefix.encode()
    return Span(first, first[:-1] + bytes([first[-1] + 1]))


class KeyValue(NamedTuple):
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    # 0: no lease.
    lease_id: int


class Event(NamedTuple):
    """A key was put, or (`value` None) deleted."""

    key: str
    value: bytes | None
    create_revision: int
    # For a deletion, the revision that deleted it.
    mod_revision: int


class Header(NamedTuple):
    """Origin of a reply."""

    revision: int
    # Another id means another etcd: its data was lost or replaced.
    cluster_id: int


class Found(NamedTuple):
    """Result of a read, valid at `header.revision`."""

    header: Header
    items: list[KeyValue]


class WatchBatch(NamedTuple):
    """Events of whole revisions; without events, a notice that there are none up to `revision`."""

    revision: int
    events: list[Event]


class Compare(NamedTuple):
    """A condition that must hold for each key of `span`; true for a span without keys."""

    span: Span
    # "create" or "mod".
    revision_of: str
    # "=", "<" or ">".
    relation: str
    revision: int


def absent(span: Span) -> Compare:
    """No key of the span exists."""
    return Compare(span, "create", "=", 0)


def exists(key: str) -> Compare:
    return Compare(only(key), "create", ">", 0)


def unchanged(key: str, mod_revision: int) -> Compare:
    """The key's last change has this revision; 0: the key does not exist."""
    return Compare(only(key), "mod", "=", mod_revision)


def quiet_since(span: Span, revision: int) -> Compare:
    """No key of the span was put after a revision. Deletions are not detected."""
    return Compare(span, "mod", "<", revision + 1)


class Put(NamedTuple):
    key: str
    value: bytes
    lease_id: int = 0


class Delete(NamedTuple):
    span: Span


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a transaction.

    Attributes:
        succeeded: the conditions held and the operations were done.
        revision: the revision of the change (when it succeeded).
        found: when it did not succeed, the keys of each span in `otherwise`.
    """

    succeeded: bool
    revision: int
    found: list[list[KeyValue]]
