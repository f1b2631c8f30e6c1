"""A store with its index by key, advanced step by step, and the expected index."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rockoon_broker.index.directory import IndexDirectory, IndexShape
from rockoon_broker.index.follower import next_pieces
from rockoon_broker.index.key_index import CANDIDATES_MAX, KeyCandidates, KeyIndex, KeySearch
from rockoon_broker.index.reopening import Reopening
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk
from rockoon_format.batch import encode_batch
from rockoon_format.columns import decode_columns
from rockoon_format.hashes import index_key_hash
from rockoon_format.index_entries import index_keys
from rockoon_format.index_file import index_file_bytes
from support.index_file import IndexFile
from support.store_directory import BORN_HOST, NOW_MS, Owner, batch_of, settings

SHAPE = IndexShape(slots=50, units=64)
FOREVER_MS = 1 << 61


def small_settings(root: Path, **changes: Any) -> StoreSettings:
    return settings(root, commit_log_file_bytes=16_384, **changes)


def keyed(unique: str = "", keys: str = "") -> bytes:
    """Return the properties of a message with keys."""
    parts = [b"TAGS\x01TagA\x02"]
    if unique:
        parts.append(f"UNIQ_KEY\x01{unique}\x02".encode())
    if keys:
        parts.append(f"KEYS\x01{keys}\x02".encode())
    return b"".join(parts)


class Indexed(Owner):
    """Owner of a store, and of its index after `open_index`.

    Args:
        configured: settings of the store.
        index_disk: file layer of the index.
    """

    def __init__(
        self,
        configured: StoreSettings,
        *,
        index_disk: Disk | None = None,
        shape: IndexShape = SHAPE,
    ) -> None:
        super().__init__(configured)
        self.directory = IndexDirectory(configured.root, shape, index_disk or Disk())
        self.index: KeyIndex | None = None
        self.full_ms: list[int] = []
        self.removed: list[str] = []

    def send(self, *properties: bytes, topic: str = "T") -> None:
        """Append messages with these properties; each store time is one second after the previous
        one."""
        self.clock.time_ms += 1000
        frames, lengths = encode_batch(
            topic.encode(),
            0,
            [b"body"] * len(properties),
            list(properties),
            NOW_MS,
            BORN_HOST,
            room=True,
        )
        self.store.append(batch_of(topic, 0, frames, lengths), self.clock.time_ms)

    def send_random(self, choose: random.Random, count: int) -> None:
        """Append messages of some topics with no, one or several keys, sometimes equal ones."""
        for _ in range(count):
            properties = [
                keyed(
                    f"{choose.getrandbits(64):032X}" if choose.random() < 0.8 else "",
                    " ".join(f"k{choose.randrange(30)}" for _ in range(choose.randrange(4))),
                )
                for _ in range(choose.randrange(1, 4))
            ]
            self.send(*properties, topic=choose.choice("TUV"))

    def open_index(self, log_end: int | None = None, *, was_clean: bool = True) -> KeyIndex:
        """Open the index; `log_end` is the end of the log before this start, by default the current
        end."""
        end = self.store.recovery.log_end if log_end is None else log_end
        reopening = Reopening(self.directory, end, was_clean=was_clean)
        is_ended = False
        while not is_ended:
            is_ended = not reopening.step()
        self.removed = reopening.removed
        assert reopening.result is not None
        self.index = KeyIndex(
            self.directory,
            reopening.result,
            self.store.log_min_offset,
            lambda header: self.full_ms.append(header.end_timestamp_ms),
        )
        return self.index

    def follow(self, *, bytes_max: int = 1024, pieces_max: int | None = None) -> None:
        """Index up to the log's end, or a number of pieces."""
        assert self.index is not None
        pieces = 0
        while self.index.position < self.store.visible_end and pieces != pieces_max:
            found = next_pieces(self.store, self.index.position, bytes_max)
            self.index.add(found, self.clock.time_ms)
            pieces += 1

    def fill_gap(self, *, bytes_max: int = 1024) -> None:
        """Fill all gaps of the index."""
        assert self.index is not None
        while self.index.gaps:
            position = max(self.index.fill_from, self.store.log_min_offset)
            self.index.fill_gap(self.store.read_log(position, bytes_max))

    def find(
        self,
        key: str,
        topic: str = "T",
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        offset_min: int = 0,
    ) -> list[int]:
        """Return physical offsets of the candidates, newest first."""
        assert self.index is not None
        wanted = KeySearch(index_key_hash(f"{topic}#{key}"), begin_ms, end_ms, offset_min)
        found = self.index.search(wanted)
        assert len(found.offsets) <= CANDIDATES_MAX
        return found.offsets

    def search(self, key: str, topic: str = "T") -> KeyCandidates:
        assert self.index is not None
        return self.index.search(KeySearch(index_key_hash(f"{topic}#{key}"), 0, FOREVER_MS))

    def close(self) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None
        self.store.close()

    def files(self) -> list[bytes]:
        """Return the contents of the index files, in order."""
        return [file.path.read_bytes() for file in self.directory.files()]

    def every_key(self) -> list[tuple[str, int, int]]:
        """Return (topic#key, physical offset, store time) of the whole log in the order of
        indexing."""
        found: list[tuple[str, int, int]] = []
        position = self.store.log_min_offset
        while position < self.store.visible_end:
            chunk = self.store.read_log(position)
            columns = decode_columns(chunk.frames, chunk.lengths)
            for index, topic in enumerate(columns.topics):
                raw, flag = columns.properties_bytes[index], int(columns.sys_flags[index])
                at = int(columns.physical_offsets[index])
                time_ms = int(columns.store_timestamps_ms[index])
                found += [(key, at, time_ms) for key in index_keys(topic.decode(), raw, flag)]
            position = chunk.next_offset
        return found


def indexed_one_by_one(
    keys: Sequence[tuple[str, int, int]], shape: IndexShape = SHAPE
) -> list[bytes]:
    """Return the index files after keys are added one after another."""
    files: list[IndexFile] = []
    for key, offset, time_ms in keys:
        if not files or files[-1].is_full or time_ms < files[-1].header.end_timestamp_ms:
            buffer = bytearray(index_file_bytes(shape.slots, shape.units))
            file = IndexFile(buffer, slots=shape.slots, units=shape.units)
            if files:
                file.follow(files[-1].header)
            files.append(file)
        assert files[-1].put(index_key_hash(key), offset, time_ms)
    return [bytes(file.view) for file in files]
