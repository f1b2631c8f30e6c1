"""Text for messages, RPCs and log lines: valid Unicode, and addresses without their secrets.

A Python string may hold lone surrogates, for example from a JSON body that was cut inside an emoji.
UTF-8 encoders refuse them: protobuf raises UnicodeEncodeError for a string with one in a field. The
`__str__` of an exception is code of the program and may raise, too.

A URI may have a user name and a password in front of its host (`s3://KEY:SECRET@bucket/logs`), or a
signature among its parameters (`abfs://…?sig=…`). Parsers of URIs quote them in their errors.
"""

import re
import traceback

from rockoon_rpc.status import without_addresses

TEXT_CHARACTERS_MAX = 64 << 10


def valid_text(value: object, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    r"""Return `str(value)` as valid Unicode. Never raises an `Exception`.

    Args:
        value: any object. If its `__str__` raises, the result states that.
        characters_max: longer text is cut.

    Returns:
        The text. A lone surrogate appears as its escape sequence, for example `\ud83d`.
    """
    try:
        # A subclass of str may override its methods; a slice of `str.__str__` is a plain string.
        text = str.__str__(value if isinstance(value, str) else str(value))[:characters_max]
    except Exception as failure:  # noqa: BLE001 - `__str__` is code of the program
        text = f"(no text: {_type_name(value)}.__str__ raised {_type_name(failure)})"
    if text.isascii():
        return text[:characters_max]
    return text.encode(errors="backslashreplace").decode()[:characters_max]


def exception_text(failure: BaseException, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return "ValueError: its text" as valid Unicode, without addresses of objects in memory.
    Never raises an `Exception`."""
    text = f"{_type_name(failure)}: {valid_text(failure, characters_max)}"
    return without_addresses(text)[:characters_max]


def loggable(failure: BaseException) -> BaseException:
    """Return an exception to log: the given one, or a substitute with valid text.

    A log handler that encodes strictly, for example one that writes a file, drops a line with a
    lone surrogate.
    """
    if text_fault("".join(traceback.format_exception(failure))) is None:
        return failure
    replaced = Exception(f"{exception_text(failure)} (invalid characters are escaped)")
    return replaced.with_traceback(failure.__traceback__)


def text_fault(text: str) -> str | None:
    """Return why a text cannot be sent, as a sentence; None if it can."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        return encoding_fault(failure)
    return None


def encoding_fault(failure: UnicodeEncodeError) -> str:
    """Return an error sentence for a text that cannot be encoded as UTF-8."""
    code = ord(failure.object[failure.start])
    around = failure.object[max(failure.start - 20, 0) : failure.start + 20]
    return (
        f"{around!r} is not valid Unicode: character {failure.start} is the lone surrogate "
        f"U+{code:04X}"
    )


def _type_name(value: object) -> str:
    return type(value).__name__[:200]


_MASK = "***"
# A password of S3 may have slashes, which a valid URI would escape: with a colon before the first
# slash, everything up to the last @ is masked. This may mask a path too, but never too little.
_USER = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?:[^\s/'"@:]*:[^\s'"]*@|[^\s/'"@]*@)""", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"""(?P<name>[?&](?:sig|[^=&\s'"]*(?:secret|passw|token|credential|signature|access_?key"""
    r"""|account_?key)[^=&\s'"]*)=)[^&\s'"#]*""",
    re.IGNORECASE,
)


def redacted(text: object) -> str:
    """Replace user names, passwords and signatures of URIs in a text by asterisks.

    Args:
        text: an address, an exception, or a sentence with addresses.
    """
    return _PARAMETER.sub(rf"\g<name>{_MASK}", _USER.sub(rf"\g<scheme>{_MASK}@", str(text)))
