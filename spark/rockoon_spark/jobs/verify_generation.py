"""Verification of a generation of compacted topics: all records and entries, and the manifest."""

import contextlib
import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rockoon_format.generation import (
    CURRENT_FILE,
    MANIFEST_FILE,
    GenerationError,
    GenerationPart,
    Manifest,
    PartEntries,
    check_order,
    decode_current,
    generation_name,
    part_checks,
    part_names,
)
from rockoon_spark.jobs.numbered_tasks import run_tasks

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class VerifiedGeneration:
    """Numbers of topics, parts and records that a verification compared."""

    generation: int
    topics: int
    parts: int
    records: int
    bytes: int
    log_end: int


def generation_directory(target: Path) -> Path | None:
    """Return the directory of a generation; for a `compacted` directory, the current generation's.

    None if it is neither.
    """
    with contextlib.suppress(FileNotFoundError):
        target = target / generation_name(decode_current((target / CURRENT_FILE).read_bytes()))
    return target if (target / MANIFEST_FILE).is_file() else None


def verify_generation(spark: SparkSession, directory: Path) -> tuple[VerifiedGeneration, list[str]]:
    """Check each part's checksums, records and entries, and the totals of the manifest.

    Not checked: whether a record is the newest of its key, and whether it is equal to the log's.

    Args:
        directory: contains the manifest; every executor must see it.

    Returns:
        The numbers, and a sentence for each faulty part.

    Raises:
        GenerationError: the manifest cannot be read.
    """
    directory = directory.resolve()
    manifest = Manifest.from_json((directory / MANIFEST_FILE).read_bytes())
    parts = manifest.parts

    def check(number: int) -> dict[str, Any]:
        return {"problem": _part_problem(directory, parts[number])}

    answers = run_tasks(spark, len(parts), check)
    problems = [answer["problem"] for answer in answers if answer["problem"]]
    if not problems:
        try:
            check_order(manifest, [_entries(directory, part) for part in parts])
        except GenerationError as error:
            problems.append(f"{directory}: {error}")
    report = VerifiedGeneration(
        manifest.generation,
        len(manifest.topics),
        len(parts),
        manifest.records,
        manifest.records_bytes + sum(part.entries_bytes for part in parts),
        manifest.log_end,
    )
    return report, problems


def _part_problem(directory: Path, part: GenerationPart) -> str | None:
    records, entries = (directory / name for name in part_names(part.number))
    try:
        if _sha256(records) != part.records_sha256:
            return f"{records}: its checksum differs from the manifest"
        if _sha256(entries) != part.entries_sha256:
            return f"{entries}: its checksum differs from the manifest"
        for _ in part_checks(_mapped(records), _entries(directory, part)):
            pass
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except GenerationError as error:
        return f"{records}: {error}"
    return None


def _entries(directory: Path, part: GenerationPart) -> PartEntries:
    return PartEntries.decode(_mapped(directory / part_names(part.number)[1]))


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
