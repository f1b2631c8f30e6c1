"""Routes' keys in memory, with etcd's rules: revisions, ranges, conditions, transactions. Pure.

Source of the rules: etcd's documentation of its API, "Data model" and "Transaction". A transaction
that changes something is one revision; a condition on several keys holds if it holds for each key,
and a condition on no key is evaluated for a key that was never put.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from rockoon_nameserver.etcd_data import (
    DeleteKey,
    KeyCondition,
    KeyEvent,
    KeyRange,
    KeyValue,
    PutKey,
    only,
)

NEVER_PUT = KeyValue("", b"", 0, 0, 0)


class RouteKeys:
    """All keys of an embedded route store, in memory, with the revision of their last change.

    Args:
        revision: of the last change.
        items: the keys.
    """

    def __init__(self, revision: int, items: Iterable[KeyValue]) -> None:
        self.revision = revision
        self._items = {item.key.encode(): item for item in items}
        self._names = sorted(self._items)

    def range(self, key_range: KeyRange) -> list[KeyValue]:
        """Keys of a range, ordered by name."""
        return [self._items[name] for name in self._names_in(key_range)]

    def holds(self, condition: KeyCondition) -> bool:
        key_range, revision_of, relation, revision = condition

        def is_so(item: KeyValue) -> bool:
            found = item.create_revision if revision_of == "create" else item.mod_revision
            return (found > revision) - (found < revision) == {"<": -1, "=": 0, ">": 1}[relation]

        return all(map(is_so, self.range(key_range) or [NEVER_PUT]))

    def change(self, operations: Sequence[PutKey | DeleteKey]) -> dict[str, KeyValue | None]:
        """Put and delete keys, all at the next revision.

        Returns:
            The new value of each changed key, None if deleted; empty if nothing changed, and then
            the revision stays.
        """
        revision = self.revision + 1
        changed: dict[str, KeyValue | None] = {}
        for operation in operations:
            if isinstance(operation, PutKey):
                name = operation.key.encode()
                before = self._items.get(name, NEVER_PUT)
                item = KeyValue(
                    operation.key,
                    operation.value,
                    before.create_revision or revision,
                    revision,
                    operation.lease_id,
                )
                if before is NEVER_PUT:
                    insort(self._names, name)
                self._items[name] = changed[operation.key] = item
            else:
                for name in self._names_in(operation.key_range):
                    changed[self._items.pop(name).key] = None
                    del self._names[bisect_left(self._names, name)]
        if changed:
            self.revision = revision
        return changed

    def under_lease(self, lease_id: int) -> list[DeleteKey]:
        """Return the operations that delete the keys of a lease."""
        return [
            DeleteKey(only(item.key)) for item in self._items.values() if item.lease_id == lease_id
        ]

    def _names_in(self, key_range: KeyRange) -> list[bytes]:
        first = bisect_left(self._names, key_range.first)
        end = bisect_left(self._names, key_range.end or key_range.first + b"\0")
        return self._names[first:end]


def events(changed: dict[str, KeyValue | None], revision: int) -> Iterator[KeyEvent]:
    """Yield the watch events of a change."""
    for key, item in changed.items():
        if item is None:
            yield KeyEvent(key, None, 0, revision)
        else:
            yield KeyEvent(key, item.value, item.create_revision, revision)


def covers(key_range: KeyRange, key: str) -> bool:
    name = key.encode()
    return key_range.first <= name < (key_range.end or key_range.first + b"\0")
