"""Start positions as text: parses the values of `--from`."""

import re
from typing import TYPE_CHECKING

import typer

from rockoon.cli.arguments import parse_duration, parse_time

if TYPE_CHECKING:
    from rockoon.offsets.start import ConsumeFrom


def parse_start(text: str, *, further: str = "") -> "ConsumeFrom":
    """Return the start policy that a text describes.

    Args:
        text: "first", "last", "tail:100" (100 messages before the end of each queue), a time, a
            duration before now, or a name of RocketMQ's ConsumeFromWhere.
        further: further valid forms, for the error message.

    Raises:
        typer.BadParameter: the text has none of these forms.
    """
    from rockoon.offsets.start import ConsumeFrom

    if text in ("first", "last") or text.startswith("CONSUME_FROM_"):
        return _named(text)
    if tail := re.fullmatch(r"tail:(\d{1,18})", text):
        return ConsumeFrom.tail(int(tail[1]))
    try:
        return ConsumeFrom.ago(parse_duration(text))
    except typer.BadParameter:
        pass
    try:
        parse_time(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is none of: first, last, {further}a time (2026-01-31T12:00), a duration "
            "before now (2h), the last messages of each queue (tail:100), a name of RocketMQ's "
            "(CONSUME_FROM_LAST_OFFSET)",
            param_hint="--from",
        ) from None
    return ConsumeFrom.at(text)


def _named(text: str) -> "ConsumeFrom":
    from rockoon.errors import InvalidArgument
    from rockoon.offsets.start import ConsumeFrom

    try:
        return ConsumeFrom.of(text)
    except InvalidArgument as failure:
        raise typer.BadParameter(str(failure), param_hint="--from") from None
