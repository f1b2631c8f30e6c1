"""The count of unclear phrases (tools/prose.py)."""

import ast
import json

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("sentence", "phrases"),
    [
        ("The broker appends the batch.", 0),
        ("What is a batch?", 0),
        ("It keeps what is not acknowledged.", 1),
        ("Retries are for whoever asks.", 1),
        ("Who appends waits; nobody else is told.", 3),
        ("such as a lease", 0),
    ],
)
def test_a_sentence_has_so_many_phrases(sentence: str, phrases: int) -> None:
    words, per_thousand = prose.index([sentence])
    assert round(per_thousand * words / 1000) == phrases


def test_docstrings_comments_and_texts_are_counted_apart() -> None:
    source = '''
"""Of the module."""
# Of a comment.
x = 1  # noqa: E501
log.info("of a log line: %s", x)
size: int = setting(3, "of a setting")
if x:
    raise ValueError(f"of {x} errors")
'''
    tree = ast.parse(source)
    assert [text for _, text in prose.docstrings(tree)] == ["Of the module."]
    assert [text for _, text in prose.comments(source)] == ["Of a comment."]
    assert sorted(text for _, text in prose.texts(tree)) == [
        "of %s errors",
        "of a log line: %s",
        "of a setting",
    ]


def test_code_and_tables_of_a_page_are_not_prose() -> None:
    page = "Text.\n```\nwho waits\n```\n| of which |\n"
    assert [line for _, line in prose.document(page) if line] == ["Text."]


def test_each_package_has_a_ceiling() -> None:
    ceilings = json.loads(prose.CEILINGS.read_text())
    names = {package.rpartition("/")[2] for package in prose.PACKAGES}
    assert ceilings.keys() == names | {"docs", "texts"}
