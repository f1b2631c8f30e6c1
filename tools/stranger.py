"""A test of the documents for new readers: two steps from the README to the deciding code.

    make stranger

Step one follows a link of the README to a page that contains the words of a Kafka developer's
search. Step two follows the path in the line that contains the words. The file must define the
deciding function, and the line must name it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Question(NamedTuple):
    """A reader's question, the words of the search, and the code that is the answer."""

    asked: str
    words: str
    path: str
    name: str


QUESTIONS = (
    Question(
        "where does a consumer start?",
        "auto.offset.reset",
        "core/rockoon_core/start_position.py",
        "decide",
    ),
    Question(
        "what writes the log?",
        "log append",
        "services/broker/rockoon_broker/store/log/commit_log.py",
        "CommitLog.write",
    ),
    Question(
        "what grants queues to members?",
        "partition assignment",
        "services/offset/rockoon_offset/groups.py",
        "Groups.require_free",
    ),
    Question(
        "what ends a transaction?",
        "transaction coordinator",
        "services/broker/rockoon_broker/transactions/ends.py",
        "Ends.end",
    ),
)


def found(words: str) -> Iterator[tuple[Path, str]]:
    """Lines with the words and a file's path, in the order of the pages that the README links."""
    pages = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    for page in map(Path, pages):
        for line in (ROOT / page).read_text().splitlines():
            if words in line.lower() and ".py`" in line:
                yield page, line


def defines(path: Path, name: str) -> bool:
    """True if a file defines a class or function; "Class.method" for a method."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        body = [
            inner
            for each in body
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name == part
            for inner in each.body
        ]
        if not body:
            return False
    return True


def problems() -> list[str]:
    """Questions without an answer, and wrong paths and names in the glossary."""
    told = []
    for question in QUESTIONS:
        first = next(found(question.words), None)
        if first is None:
            told.append(f"{question.asked} No page of README names {question.words!r} and a file")
        elif not all(f"`{each}`" in first[1] for each in (question.path, question.name)):
            told.append(f"{question.asked} {first[0]} leads elsewhere: {first[1]}")
        else:
            print(f"{question.asked}  README.md → {first[0]} → {question.path}: {question.name}")
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Where it is decided")[2]
    for path, name in re.findall(r"`([\w/]+\.py)` \| `([\w.]+)`", table):
        if not (ROOT / path).is_file() or not defines(ROOT / path, name):
            told.append(f"docs/glossary.md: {path} has no {name}")
    return told


if __name__ == "__main__":
    sys.exit("\n".join(problems()) or 0)
