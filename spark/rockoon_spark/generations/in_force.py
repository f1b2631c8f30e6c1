"""The generation in force, and the log behind it, of one moment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rockoon_format.generation import Manifest
from rockoon_spark.generations.coverage import Coverage
from rockoon_spark.generations.parts import (
    GenerationFiles,
    GenerationReplaced,
    generation_partitions,
)
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_source import LogPartition

# Looking again is for a generation that another replaces while a read is planned.
_LOOKS_MAX = 5


@dataclass(frozen=True, slots=True)
class GenerationInForce:
    """What a broker serves of compacted topics, wherever its files are."""

    files: GenerationFiles
    manifest: Manifest
    coverage: Coverage


def with_generation(
    in_force: Callable[[], GenerationInForce | None],
    of_log: Callable[[Coverage | None], Sequence[LogPartition]],
    selection: Selection,
    split_bytes: int,
) -> Sequence[LogPartition]:
    """Cut a generation and the log behind it.

    Args:
        in_force: the generation at this moment, None if there is none.
        of_log: cuts the log, without what a generation covers.
        selection: which records are wanted.
        split_bytes: length of a partition, at most.

    Raises:
        GenerationReplaced: another one comes into force each time that it is looked at.
        GenerationError: it is damaged.
        FileNotFoundError: files of the log go each time that they are looked at.
    """
    for look in range(_LOOKS_MAX):
        try:
            found = in_force()
            partitions: list[LogPartition] = []
            if found is not None:
                partitions += generation_partitions(
                    found.files, found.manifest.parts, found.coverage, selection, split_bytes
                )
            partitions += of_log(found.coverage if found else None)
            # Once more after the log's ends were asked for: when another generation came into force
            # in between, the log may have lost what only that one holds.
            if found == in_force():
                return partitions
        except (GenerationReplaced, FileNotFoundError):
            if look == _LOOKS_MAX - 1:
                raise
    raise GenerationReplaced("one generation after the other comes into force; read again later")
