"""Text of programs becomes valid Unicode of bounded length before it is sent."""

import pytest

from rockoon_core.errors import InvalidArgument, NotReady, from_wire
from rockoon_core.valid_text import exception_text, text_fault, valid_text


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "\ud800"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("Grüße 😀", "Grüße 😀"),
        ("cut \ud83d", r"cut \ud83d"),
        (7, "7"),
        (Textless(), "(no text: Textless.__str__ raised RuntimeError)"),
        (Word("word"), "word"),
    ],
)
def test_any_object_has_valid_text(value: object, text: str) -> None:
    assert valid_text(value) == text
    assert type(valid_text(value)) is str


def test_text_is_cut_behind_its_escape_sequences() -> None:
    assert valid_text("\ud83d" * 10, 8) == r"\ud83d\u"
    assert exception_text(ValueError("x" * 100), 20) == "ValueError: xxxxxxxx"


def test_text_of_errors_names_no_memory_address() -> None:
    class Thing: ...

    thing = Thing()
    place = hex(id(thing))
    assert place in repr(thing)
    assert place not in exception_text(ValueError(thing, [thing.__init__]))
    error = NotReady(service=thing, reason=f"{thing}, <TCPTransport closed=True {place}>")
    assert place not in str(error.to_wire())
    assert "Thing object>" in str(error)
    assert "<TCPTransport closed=True>" in str(error)
    # Numbers of programs stay.
    assert str(InvalidArgument(reason="tag 0x7f0123456789")).endswith("tag 0x7f0123456789")


def test_an_error_that_quotes_invalid_text_can_be_sent() -> None:
    error = InvalidArgument(reason="tag \ud83d")
    again = from_wire(error.to_wire())
    assert str(again) == r"the request is not valid: tag \ud83d"
    assert again.details == {"reason": r"tag \ud83d"}
    assert str(InvalidArgument("own sentence \ud83d").to_wire().message) == r"own sentence \ud83d"


def test_an_error_that_quotes_an_exception_without_text_can_be_sent() -> None:
    error = NotReady(service="the broker", reason=Textless())
    assert "no text: Textless.__str__ raised RuntimeError" in error.to_wire().message


def test_a_fault_names_the_character() -> None:
    assert text_fault("Grüße") is None
    assert text_fault("or\ud83dders") == (
        r"'or\ud83dders' is not valid Unicode: character 2 is the lone surrogate U+D83D"
    )
