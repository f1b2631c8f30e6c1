"""Subscription expressions."""

import pytest

from rockoon.subscription import Subscription
from rockoon_core.errors import InvalidExpression


@pytest.mark.parametrize("expression", ["*", " * "])
def test_a_star_wants_everything(expression: str) -> None:
    subscription = Subscription.parse("orders", expression)
    assert subscription.tag_hashes == ()
    assert subscription.expression == "*"
    assert subscription.matches(None)
    assert subscription.matches("any")
    assert subscription.matching(["any", None]) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB", {"TagA", "TagB"}),
        ("TagA||TagB||TagA", {"TagA", "TagB"}),
        ("  TagA  ||  || two words ||", {"TagA", "two words"}),
        ("a|b", {"a|b"}),
    ],
)
def test_tags_are_split_at_double_bars(expression: str, tags: set[str]) -> None:
    assert Subscription.parse("orders", expression).tags == tags


@pytest.mark.parametrize("expression", ["", "  ", "||", " || || ", "TagA || *"])
def test_an_expression_without_a_clear_meaning_is_refused(expression: str) -> None:
    with pytest.raises(InvalidExpression):
        Subscription.parse("orders", expression)


def test_spelling_does_not_matter() -> None:
    one, other = Subscription.parse("t", "b||a "), Subscription.parse("t", "a || b || a")
    assert one == other
    assert one.expression == "a || b"


def test_tags_with_one_hash_are_told_apart_by_their_text() -> None:
    subscription = Subscription.parse("orders", "Aa")
    assert subscription.tag_hashes == Subscription.parse("orders", "BB").tag_hashes == (2112,)
    assert subscription.matching(["Aa", "BB", None, "Aa"]) == [0, 3]
    assert Subscription.parse("orders", "Aa || BB").tag_hashes == (2112,)


def test_hashes_are_the_signed_ones_of_java() -> None:
    assert Subscription.parse("orders", "TagA").tag_hashes == (2598919,)
    assert Subscription.parse("orders", "polygenelubricants").tag_hashes == (-(2**31),)
