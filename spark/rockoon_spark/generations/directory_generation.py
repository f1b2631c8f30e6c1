"""The generation of a store directory: local files, or files of a file system of Arrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rockoon_core.valid_text import redacted
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    MANIFEST_FILE,
    GenerationError,
    Manifest,
    decode_current,
    generation_name,
)
from rockoon_spark.files import generation_marks, read_bytes, read_small
from rockoon_spark.generations.parts import CurrentGeneration, ReadFile
from rockoon_spark.object_stores import StoreReadError, child
from rockoon_spark.records.columns import Bytes
from rockoon_spark.records.selection import Coverage
from rockoon_spark.source.log_source import GenerationReplaced


@dataclass(frozen=True, slots=True)
class DirectoryGeneration:
    """`GenerationFiles` of a store's current generation.

    Args:
        store: the store directory, a local path or a URI.
        broker: name of the broker.
        number: number of the generation.
    """

    store: str
    broker: str
    number: int

    @property
    def name(self) -> str:
        return redacted(self._uri(""))

    @contextmanager
    def opened(self) -> Iterator[ReadFile]:
        yield self._read

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            GenerationReplaced: the generation no longer exists.
            GenerationError: the manifest is damaged.
        """
        content = read_small(self._uri(MANIFEST_FILE))
        if content is None:
            raise self._replaced()
        return Manifest.from_json(content)

    def _read(self, name: str, start: int, stop: int) -> Bytes:
        try:
            found = read_bytes(self._uri(name), start, stop)
        except FileNotFoundError as error:
            raise self._replaced() from error
        if len(found) < stop - start:
            raise GenerationError(f"{redacted(self._uri(name))} ends before byte {stop}")
        return found

    def _uri(self, name: str) -> str:
        directory = f"{GENERATIONS_DIRECTORY}/{generation_name(self.number)}"
        return child(self.store, f"{directory}/{name}" if name else directory)

    def _replaced(self) -> GenerationReplaced:
        return GenerationReplaced(
            f"{self.name} was replaced by a newer generation while it was read: read again"
        )


def current_generation(store: str, broker: str) -> CurrentGeneration | None:
    """Return the current generation of a store; None if it has none.

    Args:
        store, broker: see `DirectoryGeneration`.

    Raises:
        GenerationReplaced: it was replaced during this call.
        StoreReadError: it is damaged.
    """
    content = read_small(child(store, f"{GENERATIONS_DIRECTORY}/{CURRENT_FILE}"))
    if content is None:
        return None
    try:
        files = DirectoryGeneration(store, broker, decode_current(content))
        manifest = files.manifest()
    except GenerationError as error:
        raise StoreReadError(
            f"{redacted(store)}: the current generation is damaged: {error}; option"
            " compacted=false reads the log without it"
        ) from error
    return CurrentGeneration(files, manifest, Coverage.of(manifest, generation_marks(store)))
