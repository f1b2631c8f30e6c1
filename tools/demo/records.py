"""Records of the demo: the lines of an NDJSON file."""

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SAMPLE = Path(__file__).with_name("packages.ndjson.gz")

# The demo needs messages in flight while a broker is killed, and chapter 3 must exceed the broker's
# memory. Therefore a small file is sent repeatedly. A large one is cut.
RECORDS_MIN = 5_000
BYTES_MIN = 1_500_000
RECORDS_MAX = 20_000


@dataclass(frozen=True)
class Record:
    """One line of the file: body, key and tag of a message."""

    key: str
    tag: str
    line: bytes


def read_records(file: Path) -> list[Record]:
    """Return the records of an NDJSON file, plain or .gz, repeated or cut to a suitable number.

    The fields "package" (else the line's number) and "section" become key and tag.

    Raises:
        SystemExit: the file is not readable or not NDJSON; with a sentence.
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
            # Each round has other keys: otherwise a file of three records would use three queues.
            yield replace(record, key=f"{record.key}#{round_number}") if round_number else record
            count += 1
            size += len(record.line)
            if round_number and count >= RECORDS_MIN and size >= BYTES_MIN:
                return
        if (count >= RECORDS_MIN and size >= BYTES_MIN) or count >= RECORDS_MAX:
            return
