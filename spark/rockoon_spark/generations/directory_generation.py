"""The generation of a store directory: files of this machine, or of any file system of Arrow's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rockoon_core.redaction import redacted
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    GenerationError,
    Manifest,
    decode_current,
    generation_name,
)
from rockoon_spark.files import StoreError, generation_marks, read_piece, read_small
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.generations.in_force import GenerationInForce
from rockoon_spark.generations.parts import GenerationReplaced, ReadPiece
from rockoon_spark.records.columns import Bytes


@dataclass(frozen=True, slots=True)
class DirectoryGeneration:
    """A generation in force.

    Args:
        store: the store directory, as a path of this machine or a URI.
        broker: name of the broker whose it is.
        number: the generation's.
    """

    store: str
    broker: str
    number: int

    @property
    def name(self) -> str:
        """See `GenerationFiles`."""
        return redacted(self._place("").rstrip("/"))

    @contextmanager
    def opened(self) -> Iterator[ReadPiece]:
        """See `GenerationFiles`."""
        yield self._read

    def manifest(self) -> Manifest:
        """What it says of itself.

        Raises:
            GenerationReplaced: it is gone.
            GenerationError: it is damaged.
        """
        content = read_small(self._place(MANIFEST_FILE))
        if content is None:
            raise self._replaced()
        return Manifest.from_json(content)

    def _read(self, name: str, start: int, stop: int) -> Bytes:
        try:
            found = read_piece(self._place(name), start, stop)
        except FileNotFoundError as error:
            raise self._replaced() from error
        if len(found) < stop - start:
            raise GenerationError(f"{redacted(self._place(name))} ends before byte {stop}")
        return found

    def _place(self, name: str) -> str:
        directory = f"{self.store.rstrip('/')}/{GENERATIONS_DIRECTORY}"
        return f"{directory}/{generation_name(self.number)}/{name}"

    def _replaced(self) -> GenerationReplaced:
        return GenerationReplaced(
            f"{self.name} went while it was read: the broker has a newer generation; read again"
        )


def generation_in_force(store: str, broker: str) -> GenerationInForce | None:
    """The generation that a broker serves; None if it has none.

    Args:
        store, broker: see `DirectoryGeneration`.

    Raises:
        GenerationReplaced: it went while it was looked at.
        StoreError: it is damaged.
    """
    place = f"{store.rstrip('/')}/{GENERATIONS_DIRECTORY}/{CURRENT_FILE}"
    content = read_small(place)
    if content is None:
        return None
    try:
        files = DirectoryGeneration(store, broker, decode_current(content))
        manifest = files.manifest()
    except GenerationError as error:
        raise StoreError(
            f"{redacted(store)}: the generation in force is damaged: {error}; option"
            " compacted=false reads the log without it"
        ) from error
    return GenerationInForce(files, manifest, Coverage.of(manifest, generation_marks(store)))
