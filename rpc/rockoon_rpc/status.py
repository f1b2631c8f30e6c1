"""Status texts of failed calls."""

import re

TEXT_CHARACTERS_MAX = 64 << 10
# Python writes an object that has no text with its memory address, which helps an attacker:
# "<object object at 0x7f0123456789>", by uvloop "<TCPTransport closed=True 0x55d012345678>".
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{6,16}\b| 0x[0-9A-Fa-f]{6,16}(?=>)")


def without_addresses(text: str) -> str:
    """Return a text without the memory addresses that Python prints for objects."""
    return _ADDRESS.sub("", text)


def failure_text(failure: BaseException, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return "ExceptionType: its text" as valid Unicode. Never raises an `Exception`."""
    name = type(failure).__name__[:200]
    try:
        text = str.__str__(str(failure))[:characters_max]
    except Exception as other:  # noqa: BLE001 - `__str__` is code of the program
        text = f"(no text: {name}.__str__ raised {type(other).__name__[:200]})"
    valid = text.encode(errors="backslashreplace").decode()
    return without_addresses(f"{name}: {valid}")[:characters_max]
