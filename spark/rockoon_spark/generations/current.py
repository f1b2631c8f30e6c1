"""Consistent partitions of the current generation and of the log after it."""

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

# Planning is repeated if the generation is replaced during it.
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class CurrentGeneration:
    """The generation that a broker serves to readers of compacted topics."""

    files: GenerationFiles
    manifest: Manifest
    coverage: Coverage


def with_generation(
    current: Callable[[], CurrentGeneration | None],
    of_log: Callable[[Coverage | None], Sequence[LogPartition]],
    selection: Selection,
    split_bytes: int,
) -> Sequence[LogPartition]:
    """Divide the current generation and the log after it into partitions.

    Args:
        current: returns the current generation, None if there is none.
        of_log: divides the log into partitions, without the covered records.
        selection: the records to read.
        split_bytes: maximum size of a partition.

    Raises:
        GenerationReplaced: the generation was replaced during each attempt.
        GenerationError: it is damaged.
        FileNotFoundError: files of the log were deleted during each attempt.
    """
    for attempt in range(_ATTEMPTS_MAX):
        try:
            found = current()
            partitions: list[LogPartition] = []
            if found is not None:
                partitions += generation_partitions(
                    found.files, found.manifest.parts, found.coverage, selection, split_bytes
                )
            partitions += of_log(found.coverage if found else None)
            # Checked again after the log's ends were read: if a new generation was published in
            # between, retention may have deleted log records that only the new one contains.
            if found == current():
                return partitions
        except (GenerationReplaced, FileNotFoundError):
            if attempt == _ATTEMPTS_MAX - 1:
                raise
    raise GenerationReplaced(
        f"the generation was replaced during each of {_ATTEMPTS_MAX} attempts: read again later"
    )
