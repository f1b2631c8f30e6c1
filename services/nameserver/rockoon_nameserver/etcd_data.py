"""etcd's data: keys, ranges, events, conditions, operations. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

# etcd refuses a transaction with more operations (its --max-txn-ops).
TRANSACTION_OPERATIONS_MAX = 128


class KeyRange(NamedTuple):
    """Keys from `first` (included) to `end` (excluded); only `first` when `end` is empty."""

    first: bytes
    end: bytes = b""


def only(key: str) -> KeyRange:
    return KeyRange(key.encode())


def under(prefix: str) -> KeyRange:
    """All keys that start with `prefix`, which ends in "/"."""
    first = prefix.encode()
    return KeyRange(first, first[:-1] + bytes([first[-1] + 1]))


class KeyValue(NamedTuple):
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    # 0: no lease.
    lease_id: int


class KeyEvent(NamedTuple):
    """A key was put, or (`value` None) deleted."""

    key: str
    value: bytes | None
    create_revision: int
    # For a deletion, the revision that deleted it.
    mod_revision: int


class Header(NamedTuple):
    """Header of etcd's reply: its revision, and the id of the etcd cluster that replied."""

    revision: int
    # Another id means another etcd: its data was lost or replaced.
    cluster_id: int


class RangeRead(NamedTuple):
    """Result of a read, valid at `header.revision`."""

    header: Header
    items: list[KeyValue]


class WatchBatch(NamedTuple):
    """Events of whole revisions; without events, a notice that there are none up to `revision`."""

    revision: int
    events: list[KeyEvent]


class KeyCondition(NamedTuple):
    """Condition on the revision of each key in `key_range`; an empty range has revision 0."""

    key_range: KeyRange
    # "create" or "mod".
    revision_of: str
    # "=", "<" or ">".
    relation: str
    revision: int


def absent(key_range: KeyRange) -> KeyCondition:
    """Return the condition that no key of the range exists."""
    return KeyCondition(key_range, "create", "=", 0)


def exists(key: str) -> KeyCondition:
    return KeyCondition(only(key), "create", ">", 0)


def unchanged(key: str, mod_revision: int) -> KeyCondition:
    """Return the condition that a key was last changed at a revision; 0: it does not exist."""
    return KeyCondition(only(key), "mod", "=", mod_revision)


def not_put_since(key_range: KeyRange, revision: int) -> KeyCondition:
    """Return the condition that no key of the range was put after a revision. Deletions are not
    detected.
    """
    return KeyCondition(key_range, "mod", "<", revision + 1)


class PutKey(NamedTuple):
    key: str
    value: bytes
    lease_id: int = 0


class DeleteKey(NamedTuple):
    key_range: KeyRange


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Result of an etcd transaction.

    Attributes:
        succeeded: the conditions held and the operations were done.
        revision: the revision of the change (when it succeeded).
        found: when it did not succeed, the keys of each range in `otherwise`.
    """

    succeeded: bool
    revision: int
    found: list[list[KeyValue]]
