"""Snapshot of etcd with the routes of a backup, for `etcdutl snapshot restore`.

Brokers and the offset service identify topics, queues and groups by revisions. In the snapshot,
each key has the revisions that it had, and etcd's revision is that of the backup. Only the last
change of each key is stored, as in an etcd that was compacted at this revision.

The snapshot is the database of etcd (a file of bbolt) and its SHA-256:

    page 0, 1    meta: the root bucket and the number of pages; of two, bbolt uses the valid one
                 with the higher transaction
    page 2       free pages: none
    page 3...    pages of the bucket "key", then of the root bucket

Sources: bbolt's page.go, bucket.go and db.go; etcd's server/mvcc/revision.go and store.go.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from aetcd import rpc

from rockoon_nameserver.etcd_data import KeyValue
from rockoon_nameserver.keyspace import Keyspace
from rockoon_nameserver.route_import import FILLER, read_routes

PAGE_BYTES = 4096
# Id, flags, elements, pages after the first one.
PAGE = struct.Struct("<QHHI")
BRANCH, LEAF, META, FREE_PAGES = 1, 2, 4, 16
# Position of the key behind the element, size of the key, page.
BRANCH_ELEMENT = struct.Struct("<IIQ")
# Flags, position of the key behind the element, sizes of key and value.
LEAF_ELEMENT = struct.Struct("<IIII")
IS_BUCKET = 1
# Page of the root (0: the root follows), sequence.
BUCKET = struct.Struct("<QQ")
# Magic number, version, page size, flags, root bucket, page of free pages, number of pages,
# transaction.
META_BODY = struct.Struct("<IIIIQQQQQ")
MAGIC, VERSION = 0xED0CDAED, 2
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3

# Buckets without routes. `etcdutl` expects that they exist.
EMPTY_BUCKETS = (
    *(b"alarm", b"auth", b"authRoles", b"authUsers"),
    *(b"cluster", b"lease", b"members", b"members_removed"),
)
REVISION = struct.Struct(">QcQ")
DELETED = b"t"

# Flags, key and value.
Element = tuple[int, bytes, bytes]
Item = TypeVar("Item")


def restore(path: Path, routes: Path, cluster: str) -> None:
    """Write the snapshot for a new cluster.

    Raises:
        StoreCorrupt: the file of routes is damaged.
        OSError: a file cannot be read or written.
    """
    path.touch(mode=0o600)
    path.write_bytes(snapshot(*read_routes(routes, Keyspace(cluster))))


def snapshot(items: Iterable[KeyValue], revision: int) -> bytes:
    """Return a snapshot of keys without leases; `revision` is not below theirs."""
    pages = Pages()
    keys = pages.tree(stored_keys(items, revision))
    # etcd refuses reads of former revisions, and begins at this revision.
    compacted = stored_revision(revision, 0)
    meta = [(0, name, compacted) for name in (b"finishedCompactRev", b"scheduledCompactRev")]
    buckets = [(IS_BUCKET, name, within(())) for name in EMPTY_BUCKETS]
    buckets.append((IS_BUCKET, b"key", BUCKET.pack(keys, 0)))
    buckets.append((IS_BUCKET, b"meta", within(meta)))
    database = pages.database(pages.tree(sorted(buckets, key=lambda each: each[1])))
    return database + hashlib.sha256(database).digest()


def stored_keys(items: Iterable[KeyValue], last: int) -> Iterator[Element]:
    """Yield the last change of each key, in the order of revisions, and a deletion at `last`."""
    revision, number = 0, 0
    for item in sorted(items, key=lambda each: each.mod_revision):
        number = number + 1 if item.mod_revision == revision else 0
        revision = item.mod_revision
        value = rpc.KeyValue(
            key=item.key.encode(),
            create_revision=item.create_revision,
            mod_revision=revision,
            version=1 if item.create_revision == revision else 2,
            value=item.value,
        )
        yield 0, stored_revision(revision, number), value.SerializeToString()
    # `etcdutl snapshot status` reports the last change.
    if revision < last:
        deleted = rpc.KeyValue(key=FILLER.key.encode()).SerializeToString()
        yield 0, stored_revision(last, 0) + DELETED, deleted


def stored_revision(revision: int, number: int) -> bytes:
    """Return a revision as etcd stores it; `number` counts changes within the revision."""
    return REVISION.pack(revision, b"_", number)


def within(elements: Sequence[Element]) -> bytes:
    """Return a bucket that is stored within its parent."""
    return BUCKET.pack(0, 0) + PAGE.pack(0, LEAF, len(elements), 0) + leaf(elements)


def leaf(elements: Sequence[Element]) -> bytes:
    """Return the content of a leaf page."""
    heads, content = bytearray(), bytearray()
    for number, (flags, key, value) in enumerate(elements):
        position = (len(elements) - number) * LEAF_ELEMENT.size + len(content)
        heads += LEAF_ELEMENT.pack(flags, position, len(key), len(value))
        content += key + value
    return bytes(heads + content)


def branch(children: Sequence[tuple[bytes, int]]) -> bytes:
    """Return a branch page; `children`: first key and number of each page below."""
    heads, content = bytearray(), bytearray()
    for number, (key, page) in enumerate(children):
        position = (len(children) - number) * BRANCH_ELEMENT.size + len(content)
        heads += BRANCH_ELEMENT.pack(position, len(key), page)
        content += key
    return bytes(heads + content)


class Pages:
    """Pages of a database, from page 3 on."""

    def __init__(self) -> None:
        self._content = bytearray()

    @property
    def _next(self) -> int:
        return 3 + len(self._content) // PAGE_BYTES

    def _add(self, kind: int, elements: int, content: bytes) -> int:
        number, size = self._next, PAGE.size + len(content)
        more = (size - 1) // PAGE_BYTES
        self._content += PAGE.pack(number, kind, elements, more) + content
        self._content += bytes((more + 1) * PAGE_BYTES - size)
        return number

    def tree(self, elements: Iterable[Element]) -> int:
        """Add the pages of a bucket with elements in the order of keys; return its root page."""
        sized = ((each, LEAF_ELEMENT.size + len(each[1]) + len(each[2])) for each in elements)
        level = [
            (group[0][1], self._add(LEAF, len(group), leaf(group))) for group in page_groups(sized)
        ]
        while len(level) > 1:
            children = ((each, BRANCH_ELEMENT.size + len(each[0])) for each in level)
            level = [
                (group[0][0], self._add(BRANCH, len(group), branch(group)))
                for group in page_groups(children)
            ]
        return level[0][1]

    def database(self, root: int) -> bytes:
        """Return the whole database; `root` is the root bucket's page."""
        first = b"".join(self._meta(number, root) for number in (0, 1))
        free = PAGE.pack(2, FREE_PAGES, 0, 0).ljust(PAGE_BYTES, b"\0")
        return first + free + bytes(self._content)

    def _meta(self, number: int, root: int) -> bytes:
        body = META_BODY.pack(MAGIC, VERSION, PAGE_BYTES, 0, root, 0, 2, self._next, number)
        body += struct.pack("<Q", fnv_1a(body))
        return (PAGE.pack(number, META, 0, 0) + body).ljust(PAGE_BYTES, b"\0")


def page_groups(sized: Iterable[tuple[Item, int]]) -> Iterator[list[Item]]:
    """Yield groups of elements. A group of several elements fits into one page.

    Args:
        sized: elements with their sizes in a page.
    """
    group: list[Item] = []
    left = PAGE_BYTES - PAGE.size
    for element, size in sized:
        if group and size > left:
            yield group
            group, left = [], PAGE_BYTES - PAGE.size
        group.append(element)
        left -= size
    if group:
        yield group


def fnv_1a(content: bytes) -> int:
    """Return the 64-bit FNV-1a hash, the checksum of a meta page."""
    found = FNV_OFFSET
    for byte in content:
        found = (found ^ byte) * FNV_PRIME % (1 << 64)
    return found
