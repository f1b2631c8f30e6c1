"""Records of the demo: the lines of an NDJSON file."""

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SAMPLE = Path(__file__).with_name("packages.ndjson.gz")

# A broker that is killed must have something on its way, and the new queues of chapter 3 must
# hold more than the broker's memory: a small file is sent over and over. A large one is cut.
RECORDS_MIN = 5_000
BYTES_MIN = 1_500_000
RECORDS_MAX = 20_000


@dataclass(frozen=True)
class Record:
    """One line: what is sent, its key and its tag."""

    key: str
    tag: str
    line: bytes


def read_records(file: Path) -> list[Record]:
    """Return the records of an NDJSON file, plain or .gz, repeated or cut to a fitting number.

    The fields "package" (else the line's number) and "section" become key and tag.

    Raises:
        SystemExit: it is no such file; with a sentence.
    """
    try:
        found = list(itertools.islice(parse(file), RECORDS_MAX))
    except (OSError, EOFError) as failure:
        raise SystemExit(f"{file} cannot be read: {failure}") from None
    if not found:
        raise SystemExit(f"{file} has no records: write one JSON object on each line")
    return list(repeat(found))


def parse(file: Path) -> Iterator[Record]:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except ValueError as failure:
                raise SystemExit(f"{file}, line {number}: not JSON ({failure})") from None
            if not isinstance(fields, dict):
                raise SystemExit(f"{file}, line {number}: not a JSON object")
            key, tag = fields.get("package", number), fields.get("section", "none")
            yield Record(str(key), str(tag), line.rstrip(b"\r\n"))


def repeat(found: list[Record]) -> Iterator[Record]:
    count = size = 0
    for round_number in itertools.count():
        for record in found:
            # Keys of their own, or a file of three records would fill three queues only.
            yield replace(record, key=f"{record.key}#{round_number}") if round_number else record
            count += 1
            size += len(record.line)
            if round_number and count >= RECORDS_MIN and size >= BYTES_MIN:
                return
        if (count >= RECORDS_MIN and size >= BYTES_MIN) or count >= RECORDS_MAX:
            return
