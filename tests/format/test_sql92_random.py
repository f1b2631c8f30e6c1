"""Random expressions against a slow evaluation of the trees they were written from."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from hypothesis import given, settings
from hypothesis import strategies as st

from rockoon_format import sql92
from rockoon_format.properties import encode
from support.random_messages import many_examples
from support.seeds import examples

NAMES = ["a", "b", "c", "Größe", "$d", "contains"]
NUMBERS = ["0", "5", "-5", "5.0", "0.5e1", "9007199254740993", "9007199254740992", "-.25"]
TEXT_TESTS = [
    f"{negated}{test}"
    for test in ("CONTAINS", "STARTSWITH", "ENDSWITH")
    for negated in ("", "NOT ")
]
TEXTS = [*NUMBERS, "x", "it's", "true", "FALSE", "not a number", "AND", ")"]


@dataclass(frozen=True)
class Tree:
    """One node: what it is, and its parts (names, literals as written, or trees)."""

    what: str
    parts: tuple[object, ...]


Value = str | Decimal | bool | None


def value(operand: Tree, properties: Mapping[str, str]) -> Value:
    (written,) = operand.parts
    match operand.what:
        case "name":
            return properties.get(str(written))
        case "number":
            return Decimal(str(written))
        case "bool":
            return written == "TRUE"
    return str(written)


def number(found: Value) -> Decimal | None:
    if not isinstance(found, str):
        return found if isinstance(found, Decimal) else None
    try:
        return Decimal(found)
    except InvalidOperation:
        return None


def compare(symbol: str, left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        one, other = (
            each if isinstance(each, bool) else str(each).lower() == "true"
            for each in (left, right)
        )
        return (one is other) is (symbol == "=")
    if symbol in ("=", "<>") and isinstance(left, str) and isinstance(right, str):
        return (left == right) is (symbol == "=")
    first, second = number(left), number(right)
    if first is None or second is None:
        return None
    sign = (first > second) - (first < second)
    return (
        sign
        in {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[symbol]
    )


def truth(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    """As the standard writes it down: 1, 0 and a half; AND is the least, OR the largest."""
    worth = {True: 1.0, None: 0.5, False: 0.0}
    meaning = {1.0: True, 0.5: None, 0.0: False}
    parts = tree.parts
    if tree.what in ("AND", "OR"):
        pick = min if tree.what == "AND" else max
        return meaning[pick(worth[truth(part, properties)] for part in parts)]  # type: ignore[arg-type]
    if tree.what == "NOT":
        return meaning[1.0 - worth[truth(parts[0], properties)]]  # type: ignore[arg-type]
    if tree.what == "constant":
        return parts[0] == "TRUE"
    operands = [value(each, properties) for each in parts if isinstance(each, Tree)]
    if tree.what == "IS NULL":
        return operands[0] is None
    if tree.what == "IN":
        return None if operands[0] is None else operands[0] in operands[1:]
    if tree.what in TEXT_TESTS:
        found, part = (None if each is None else str(each) for each in operands)
        has = found is not None and any(map(part.__eq__, parts_of(tree.what, found)))
        return None if found is None else has is ("NOT" not in tree.what)
    if tree.what == "BETWEEN":
        low, high = (compare(s, operands[0], operands[i]) for s, i in ((">=", 1), ("<=", 2)))
        return meaning[min(worth[low], worth[high])]
    return compare(tree.what, operands[0], operands[1])


def parts_of(test: str, text: str) -> list[str]:
    """All texts that another one has in it, at its beginning or at its end."""
    size = len(text) + 1
    starts = range(1) if "STARTSWITH" in test else range(size)
    ends = range(len(text), size) if "ENDSWITH" in test else range(size)
    return [text[start:end] for start in starts for end in ends if start < end]


PRECEDENCE = {"OR": 1, "AND": 2, "NOT": 3}


def written(tree: Tree, above: int = 0) -> str:
    parts = [
        written(each, PRECEDENCE.get(tree.what, 4)) for each in tree.parts if isinstance(each, Tree)
    ]
    match tree.what:
        case "name" | "number" | "bool" | "constant":
            return str(tree.parts[0])
        case "text":
            return "'" + str(tree.parts[0]).replace("'", "''") + "'"
        case "AND" | "OR":
            text = f" {tree.what} ".join(parts)
        case "NOT":
            text = f"not {parts[0]}"
        case "IS NULL":
            text = f"{parts[0]} is NULL"
        case "IN":
            text = f"{parts[0]} IN ({','.join(parts[1:])})"
        case "BETWEEN":
            text = f"{parts[0]} between {parts[1]} AND {parts[2]}"
        case word if word in TEXT_TESTS:
            text = f"{parts[0]} {word} {parts[1]}"
        case symbol:
            text = f"{parts[0]}{symbol}{parts[1]}"
    return f"({text})" if PRECEDENCE.get(tree.what, 4) < above else text


def leaf(what: str, of: list[str]) -> st.SearchStrategy[Tree]:
    return st.sampled_from(of).map(lambda each: Tree(what, (each,)))


names, texts, numbers = leaf("name", NAMES), leaf("text", TEXTS), leaf("number", NUMBERS)
bools = leaf("bool", ["TRUE", "FALSE"])
ordinals = names | numbers


def node(what: str, *parts: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.tuples(*parts).map(lambda each: Tree(what, each))


def bounds_in_order(tree: Tree) -> bool:
    low, high = (number(value(part, {})) for part in tree.parts[1:])  # type: ignore[arg-type]
    return low is None or high is None or low <= high


predicates = st.one_of(
    leaf("constant", ["TRUE", "FALSE"]),
    *[node(symbol, ordinals, ordinals) for symbol in ("<", "<=", ">", ">=", "=", "<>")],
    *[node(symbol, names | texts, names | texts | bools) for symbol in ("=", "<>")],
    *[node(symbol, names | texts, numbers) for symbol in ("=", "<>")],
    node("BETWEEN", ordinals, ordinals, ordinals).filter(bounds_in_order),
    node("IN", names, texts, texts),
    *[node(test, names | texts, texts) for test in TEXT_TESTS],
    node("IS NULL", names),
)
trees = st.recursive(
    predicates,
    lambda inner: st.one_of(
        node("AND", inner, inner), node("OR", inner, inner, inner), node("NOT", inner)
    ),
    max_leaves=8,
)
messages = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS))
words = [
    *NAMES,
    *NUMBERS,
    "'x'",
    "''''",
    "'",
    "(",
    ")",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "+",
    "-",
    "AND",
    "or",
    "NOT",
    "BETWEEN",
    "IN",
    "IS",
    "NULL",
    "TRUE",
    "LIKE",
    "CONTAINS",
    "endswith",
    "\n",
    "!",
    "\ud800",
]


@given(tree=trees, message=messages)
@settings(many_examples, max_examples=examples(500))
def test_an_expression_answers_what_its_tree_does(tree: Tree, message: dict[str, str]) -> None:
    expression = sql92.compile(written(tree))
    assert expression.matches(message) is truth(tree, message), written(tree)
    assert expression.matches_encoded(encode(message)) is truth(tree, message), written(tree)


@given(tokens=st.lists(st.sampled_from(words), max_size=12), joint=st.sampled_from(["", " "]))
@settings(many_examples, max_examples=examples(500))
def test_any_words_are_an_expression_or_refused_with_a_place(tokens: list[str], joint: str) -> None:
    compiles_or_says_where(joint.join(tokens))


@given(text=st.text(max_size=40), message=messages)
@many_examples
def test_any_text_is_an_expression_or_refused_with_a_place(
    text: str, message: dict[str, str]
) -> None:
    compiles_or_says_where(text)


@given(raw=st.binary(max_size=60) | st.text(alphabet="abc$\x01\x025", max_size=30).map(str.encode))
@many_examples
def test_any_bytes_have_an_answer(raw: bytes) -> None:
    for text in ("a > 5", "b = 'x' OR c IS NULL", "$d IN ('5') AND a = b"):
        assert sql92.compile(text).matches_encoded(raw) in (True, False, None)


def compiles_or_says_where(text: str) -> None:
    try:
        expression = sql92.compile(text)
    except sql92.Sql92Error as refusal:
        assert 0 <= refusal.position <= len(text)
        line, caret = refusal.pointer.split("\n")
        assert len(caret) <= len(line) + 1
        str(refusal).encode(errors="backslashreplace")
    else:
        assert expression.matches({}) in (True, False, None)
        assert expression.matches({"a": "5", "b": "x"}) in (True, False, None)
