"""Filter expressions: tables of results, and of refusals with their positions."""

import pytest

from rockoon_format import sql92
from rockoon_format.properties import encode

T, F, N = "a = 'x'", "a = 'y'", "missing = 'x'"
TRUTHS = {T: True, F: False, N: None}
MESSAGE = {
    "a": "x",
    "five": "5",
    "five_and_a_half": "5.5",
    "ten": "10",
    "minus": "-3",
    "big": "9007199254740993",
    "yes": "TRUE",
    "no": "false",
    "quote": "it's",
    "TAGS": "TagA",
    "größe": "5",
    "$_1": "odd",
}


def answer(text: str) -> bool | None:
    """Return the result for MESSAGE, which must not depend on the form of its properties."""
    expression = sql92.compile(text)
    found = expression.matches(MESSAGE)
    assert expression.matches_encoded(encode(MESSAGE)) is found
    return found


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, True, True),
        (T, F, False, True),
        (T, N, None, True),
        (F, T, False, True),
        (F, F, False, False),
        (F, N, False, None),
        (N, T, None, True),
        (N, F, False, None),
        (N, N, None, None),
    ],
)
def test_and_and_or_have_sql_s_truth_tables(
    left: str, right: str, both: bool | None, either: bool | None
) -> None:
    assert answer(f"{left} AND {right}") is both
    assert answer(f"{left} OR {right}") is either
    # De Morgan's laws hold with NULL too.
    assert answer(f"NOT (NOT {left} OR NOT {right})") is both
    assert answer(f"NOT (NOT {left} AND NOT {right})") is either


@pytest.mark.parametrize(("term", "opposite"), [(T, False), (F, True), (N, None)])
def test_the_opposite_of_null_is_null(term: str, opposite: bool | None) -> None:
    assert answer(f"NOT {term}") is opposite
    assert answer(f"NOT NOT {term}") is TRUTHS[term]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Numbers are compared as numbers, in any spelling.
        ("ten > 9", True),
        ("ten > 9.5", True),
        ("ten = 10.0", True),
        ("ten = 1e1", True),
        ("five_and_a_half > 5", True),
        ("five_and_a_half = 5.50", True),
        ("five_and_a_half = .55e+1", True),
        ("five >= 5 AND five <= 5", True),
        ("five > 5 OR five < 5", False),
        ("five <> 5", False),
        ("five = 5L", True),
        ("minus = -3", True),
        ("minus > - 4", True),
        ("five < +6", True),
        ("9 < ten", True),
        ("9 > ten", False),
        ("10 = ten", True),
        ("five < ten", True),
        ("ten <= five", False),
        ("big = 9007199254740993", True),
        ("big = 9007199254740992", False),
        ("big > 9007199254740992.0", True),
        ("big <= 9223372036854775807 AND big >= -9223372036854775808", True),
        # A text that is no number, or is missing, cannot be compared with one.
        ("a > 5", None),
        ("a = 5", None),
        ("a <> 5", None),
        ("5 < a", None),
        ("a < ten", None),
        ("ten > a", None),
        ("missing > 5", None),
        ("5 = missing", None),
        ("missing < ten", None),
        ("ten < missing", None),
        ("NOT (missing > 5)", None),
        # Text is text.
        ("a = 'x'", True),
        ("'x' = a", True),
        ("a = 'X'", False),
        ("a <> 'y'", True),
        ("missing <> 'y'", None),
        ("five = '5.0'", False),
        ("quote = 'it''s'", True),
        ("quote = ''''", False),
        ("five = größe", True),
        ("five = ten", False),
        ("five = missing", None),
        ("missing = five", None),
        ("missing = missing", None),
        ("$_1 = 'odd'", True),
        ("A = 'x'", None),
        # TRUE and FALSE.
        ("yes = TRUE", True),
        ("yes = false", False),
        ("no = FALSE", True),
        ("no <> TRUE", True),
        ("TRUE = yes", True),
        ("a = TRUE", False),
        ("a = FALSE", True),
        ("missing = FALSE", None),
        ("TRUE", True),
        ("FALSE", False),
        ("TRUE AND NOT FALSE", True),
        # BETWEEN, IN, IS NULL.
        ("five BETWEEN 5 AND 10", True),
        ("five BETWEEN five AND ten", True),
        ("five BETWEEN 5.1 AND 10", False),
        ("five NOT BETWEEN 5.1 AND 10", True),
        ("7 BETWEEN five AND ten", True),
        ("missing BETWEEN 1 AND 2", None),
        ("missing NOT BETWEEN 1 AND 2", None),
        ("five BETWEEN 6 AND missing", False),
        ("five BETWEEN 4 AND missing", None),
        ("TAGS IN ('TagA', 'TagB')", True),
        ("TAGS IN ('TagB')", False),
        ("TAGS NOT IN ('TagB')", True),
        ("five IN ('5.0')", False),
        ("missing IN ('x')", None),
        ("missing NOT IN ('x')", None),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("a IS NULL", False),
        ("a IS NOT NULL", True),
        ("NOT a IS NULL", True),
        # Comparisons of two values.
        ("1 < 2", True),
        ("1 = 1.0", True),
        ("'1' = 1", True),
        ("1 = 'x'", None),
        ("'a' = 'a'", True),
        ("'true' = TRUE", True),
        ("FALSE = 'true'", False),
        ("TRUE = TRUE", True),
    ],
)
def test_comparisons(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # AND before OR, NOT before both but after comparisons.
        ("TRUE OR TRUE AND FALSE", True),
        ("(TRUE OR TRUE) AND FALSE", False),
        ("FALSE AND TRUE OR TRUE", True),
        ("FALSE AND (TRUE OR TRUE)", False),
        ("NOT FALSE AND FALSE", False),
        ("NOT (FALSE AND FALSE)", True),
        ("NOT TRUE OR TRUE", True),
        ("NOT five > 6", True),
        ("NOT five = 5", False),
        # The AND of BETWEEN belongs to it.
        ("five BETWEEN 1 AND 6 AND FALSE", False),
        ("FALSE OR five BETWEEN 1 AND 6", True),
        ("NOT five BETWEEN 1 AND 6 OR TRUE", True),
        # Keywords in any case, any blanks, or none.
        ("five between 1 and 6 aNd not\r\n\tfalse", True),
        ("five>4 and(a='x')or(a)in('x')", True),
        ("((five)) > (((4)))", True),
        ("  five=5\f", True),
    ],
)
def test_precedence_and_spelling(text: str, expected: bool) -> None:
    assert answer(text) is expected


NOT_NUMBERS = [
    "",
    " 5",
    "5 ",
    "5_0",
    "0x5",
    "NaN",
    "inf",
    "Infinity",
    "1e",
    "e5",
    ".",
    "-",
    "5d",
    "\N{ARABIC-INDIC DIGIT FIVE}",
    "\N{SUPERSCRIPT TWO}",
    "--5",
]


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_texts_that_some_language_takes_for_numbers_are_none(text: str) -> None:
    assert sql92.compile("p > -1000 OR p <= -1000").matches({"p": text}) is None


@pytest.mark.parametrize("text", ["5", "+5", "5.", "05", "5.0", "+5e0", "0.5E1", "50e-1"])
def test_numbers_may_have_a_sign_a_point_and_an_exponent(text: str) -> None:
    assert sql92.compile("p = 5").matches({"p": text}) is True


def test_numbers_of_any_length_are_compared() -> None:
    larger = sql92.compile("p > 9.9e307")
    assert larger.matches({"p": "9" * 5000}) is True
    assert larger.matches({"p": "-" + "9" * 5000}) is False
    assert larger.matches({"p": "9" * 30_000 + "x"}) is None
    assert larger.matches({"p": "1e999999999"}) is True
    assert sql92.compile("p < 1e-300").matches({"p": "1e-999999999"}) is True


def test_an_empty_value_is_null_as_in_a_record() -> None:
    assert sql92.compile("p IS NULL").matches({"p": ""}) is True


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "not the end"),
        ("a >", 3, "not the end"),
        ("a >> 5", 3, "not >"),
        ("a = 'x' AND", 11, "not the end"),
        ("a = 'x", 4, "no closing quote"),
        ("a = 'x''", 4, "no closing quote"),
        ('a = "x"', 4, "single quotes"),
        ("a # 5", 2, "'#' has no meaning"),
        ("a != 5", 2, "write <>"),
        ("a == 5", 2, "single ="),
        ("5x > a", 0, "not a number"),
        ("a > 1.2.3", 4, "not a number"),
        ("a > .", 4, "not a number"),
        ("a > 1.5L", 4, "integers only"),
        ("a = 9223372036854775808", 4, "64 bits"),
        ("a = -9223372036854775809", 5, "64 bits"),
        ("a = " + "9" * 4000, 4, "64 bits"),
        ("a = 1e999", 4, "too large"),
        ("-a > 5", 1, "followed by a number"),
        ("a > --5", 5, "followed by a number"),
        ("(a > 5", 0, "never closed"),
        ("((a > 5) AND b = 'x'", 0, "never closed"),
        ("(a > 5 b", 7, "closing parenthesis"),
        ("a > 5)", 5, "closes nothing"),
        ("a > 5 b = 'x'", 6, "AND, OR or the end"),
        ("1 < a < 5", 6, "join them with AND"),
        ("a LIKE 'x'", 2, "LIKE is not supported"),
        ("a NOT LIKE 'x'", 6, "LIKE is not supported"),
        ("a NOT 'x'", 6, "NOT is followed by BETWEEN, IN, CONTAINS"),
        ("a CONTAINS", 10, "CONTAINS is followed by a text in single quotes"),
        ("a contains five", 11, "CONTAINS is followed by a text in single quotes"),
        ("a STARTSWITH 5", 13, "STARTSWITH is followed by a text in single quotes"),
        ("a ENDSWITH TRUE", 11, "ENDSWITH is followed by a text in single quotes"),
        ("a CONTAINS NULL", 11, "CONTAINS is followed by a text in single quotes"),
        ("a CONTAINS ('x')", 11, "CONTAINS is followed by a text in single quotes"),
        ("a NOT ENDSWITH ''", 15, "the text after ENDSWITH is empty"),
        ("5 CONTAINS '5'", 0, "CONTAINS compares a property or a text"),
        ("TRUE STARTSWITH 'T'", 0, "STARTSWITH compares a property or a text"),
        ("(a = 'x') CONTAINS 'x'", 0, "CONTAINS compares a property or a text"),
        ("a CONTAINS 'x' CONTAINS 'x'", 15, "expected AND, OR or the end"),
        ("CONTAINS 'x'", 0, "expected a condition: CONTAINS = TRUE"),
        ("a NOT NOT CONTAINS 'x'", 6, "NOT is followed by BETWEEN, IN, CONTAINS"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL", 0, "IS NULL"),
        ("a IS 5", 5, "NULL or NOT NULL"),
        ("a IS NOT 5", 9, "NULL or NOT NULL"),
        ("5 IS NULL", 0, "name of a property"),
        ("a NOT 5", 6, "BETWEEN, IN"),
        ("a", 0, "a = TRUE, perhaps"),
        ("b = 'x' AND a", 12, "a = TRUE, perhaps"),
        ("NOT 5", 4, "not a value"),
        ("'x' OR TRUE", 0, "not a value"),
        ("(a > 5) = TRUE", 0, "not a condition"),
        ("a > (b > 5)", 4, "not a condition"),
        ("a > 'x'", 4, "only numbers"),
        ("'x' < a", 0, "only numbers"),
        ("a > TRUE", 4, "only numbers"),
        ("a BETWEEN 'x' AND 5", 10, "only numbers"),
        ("a BETWEEN 5 OR 6", 12, "joined by AND"),
        ("a BETWEEN 9 AND 1", 10, "lower one comes first"),
        ("TRUE = 5", 7, "neither TRUE nor FALSE"),
        ("a IN 'x'", 5, "in parentheses"),
        ("a IN ()", 6, "single quotes"),
        ("a IN (5)", 6, "single quotes"),
        ("a IN ('x' 'y')", 10, "a comma"),
        ("a IN ('x',)", 10, "single quotes"),
        ("'a' IN ('x')", 0, "name of a property"),
        ("a = 'b' ')'", 8, "not ')'"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_place(
    text: str, position: int, reason: str
) -> None:
    with pytest.raises(sql92.Sql92Error) as refusal:
        sql92.compile(text)
    assert refusal.value.position == position
    assert reason in str(refusal.value)
    assert str(refusal.value).endswith(f"(at character {position + 1})")


def test_a_caret_points_at_the_place() -> None:
    with pytest.raises(sql92.Sql92Error) as refusal:
        sql92.compile("a > 5\n\tAND b != 'x'")
    assert refusal.value.pointer == "a > 5  AND b != 'x'\n             ^"


def test_the_pointer_shows_only_what_stands_around_the_place() -> None:
    text = "a = 'x' OR " * 100 + "b LIKE 'y'" + " OR a = 'x'" * 100
    with pytest.raises(sql92.Sql92Error) as refusal:
        sql92.compile(text)
    line, caret = refusal.value.pointer.split("\n")
    assert len(line) == 72
    assert line[len(caret) - 1 :].startswith("LIKE 'y'")


def test_depth_is_bounded_and_chains_are_not_depth() -> None:
    deepest = "(" * 25 + "NOT " * 25 + "TRUE" + ")" * 25
    assert sql92.compile(deepest).matches({}) is False
    with pytest.raises(sql92.Sql92Error, match="more than 50 deep"):
        sql92.compile("(" * 26 + "NOT " * 25 + "TRUE" + ")" * 26)
    with pytest.raises(sql92.Sql92Error, match="more than 50 deep"):
        sql92.compile("(" * 4096)
    assert sql92.compile(" OR ".join(["(FALSE)"] * 350 + ["(TRUE)"])).matches({}) is True


def test_length_is_bounded() -> None:
    longest = "a = '" + "x" * (sql92.CHARACTERS_MAX - 6) + "'"
    assert sql92.compile(longest).matches({"a": "x" * (sql92.CHARACTERS_MAX - 6)}) is True
    with pytest.raises(sql92.Sql92Error, match="longer than 4096") as refusal:
        sql92.compile(longest + " ")
    assert refusal.value.pointer.endswith("^")


def test_equal_texts_are_equal_expressions() -> None:
    assert sql92.compile("a > 5") == sql92.compile("a > 5")
    assert sql92.compile("a > 5") != sql92.compile("a > 6")
    assert len({sql92.compile("a > 5"), sql92.compile("a > 5")}) == 1


def test_only_the_properties_that_decide_are_read() -> None:
    read: list[str] = []

    class Noting(dict[str, str]):
        def get(self, name: str, *_: object) -> str:
            read.append(name)
            return self[name]

    properties = Noting(a="1", b="2", c="3")
    assert sql92.compile("a = '0' AND b = '2' OR c = '3'").matches(properties) is True
    assert read == ["a", "c"]


TEXTS = {
    "path": "orders/eu/42",
    "contains": "startswith",
    "Endswith": "x",
    "number": "1.50",
    "odd": "it's Straße",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path CONTAINS 'eu'", True),
        ("path CONTAINS 'EU'", False),
        ("path CONTAINS 'orders/eu/42'", True),
        ("path CONTAINS 'orders/eu/42/'", False),
        ("path STARTSWITH 'orders/'", True),
        ("path STARTSWITH 'eu'", False),
        ("path ENDSWITH '42'", True),
        ("path ENDSWITH 'orders'", False),
        ("path NOT CONTAINS 'eu'", False),
        ("path NOT CONTAINS 'us'", True),
        ("path NOT STARTSWITH 'orders'", False),
        ("path NOT STARTSWITH 'returns'", True),
        ("path NOT ENDSWITH '42'", False),
        ("path NOT ENDSWITH '43'", True),
        # Keywords have any case.
        ("path Contains 'eu' and path startsWith 'o' and path not endswith 'o'", True),
        # No pattern: these are letters.
        ("path CONTAINS '%'", False),
        ("path CONTAINS '.'", False),
        # A number is text here.
        ("number STARTSWITH '1.5'", True),
        ("number CONTAINS '1.5' AND number = 1.5", True),
        ("odd CONTAINS 't''s' AND odd ENDSWITH 'ße'", True),
        # A comparison with a missing property is unknown, and its negation too.
        ("missing CONTAINS 'x'", None),
        ("missing NOT CONTAINS 'x'", None),
        ("missing STARTSWITH 'x'", None),
        ("missing NOT STARTSWITH 'x'", None),
        ("missing ENDSWITH 'x'", None),
        ("missing NOT ENDSWITH 'x'", None),
        ("NOT (missing CONTAINS 'x')", None),
        ("missing CONTAINS 'x' OR path CONTAINS 'eu'", True),
        ("missing CONTAINS 'x' AND path CONTAINS 'us'", False),
        # Names of properties that are keywords elsewhere.
        ("contains = 'startswith'", True),
        ("contains CONTAINS 'art'", True),
        ("contains contains 'contains'", False),
        ("Endswith ENDSWITH 'x'", True),
        ("CONTAINS CONTAINS 'art'", None),
        ("contains IS NOT NULL AND CONTAINS IS NULL", True),
        ("contains IN ('startswith')", True),
        # NOT, AND and OR bind as with other comparisons.
        ("NOT path CONTAINS 'us'", True),
        ("NOT path NOT CONTAINS 'us'", False),
        ("NOT path CONTAINS 'us' AND path ENDSWITH '43'", False),
        ("path CONTAINS 'eu' OR path CONTAINS 'us' AND path ENDSWITH '43'", True),
        ("(path CONTAINS 'eu' OR path CONTAINS 'us') AND path ENDSWITH '43'", False),
        ("path CONTAINS 'eu' AND NOT path STARTSWITH 'returns' OR FALSE", True),
        # Of texts alone.
        ("'axb' CONTAINS 'x'", True),
        ("'axb' NOT CONTAINS 'x'", False),
        ("'axb' STARTSWITH 'ax' AND 'axb' ENDSWITH 'xb'", True),
        ("(path) CONTAINS 'eu'", True),
        ("path CONTAINS'eu'", True),
    ],
)
def test_what_texts_have_in_them_and_at_their_ends(text: str, expected: bool | None) -> None:
    expression = sql92.compile(text)
    assert expression.matches(TEXTS) is expected
    assert expression.matches_encoded(encode(TEXTS)) is expected
