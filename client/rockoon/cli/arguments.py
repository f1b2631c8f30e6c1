"""Parsers for times, durations, pairs and start positions, and for `--watch [SECONDS]`."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rockoon.offsets.start import ConsumeFrom
    from rockoon_core.message_queue import MessageQueue

DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Whole numbers have 64 bits on the wire. int() refuses texts of more than 4,300 digits.
DIGITS_MAX = 18
# Queue ids have 32 bits on the wire.
QUEUE_IDS_MAX = 1 << 31
OFFSET_MAX = 1 << 62
DURATION_MS_MAX = 36_525 * DURATION_UNITS_MS["d"]

WATCH = "--watch"
WATCH_SECONDS = "2"
WATCH_SECONDS_MIN, WATCH_SECONDS_MAX = 0.1, 86_400.0


def parse_time(text: str) -> int:
    """Return the epoch milliseconds of "2026-01-31T12:00", "2026-01-31 12:00:00+01:00",
    "20260131120000" or "1769860800000".

    A time without a zone is in the local time zone. Raises typer.BadParameter: the text is not a
    time.
    """
    from rockoon.offsets.start import timestamp_ms_of

    try:
        return timestamp_ms_of(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00, optionally with a zone (+01:00 "
            "or Z; default: this machine's zone), or epoch milliseconds"
        ) from None


def parse_duration(text: str) -> int:
    """Return the milliseconds of "500ms", "30s", "15m", "2h", "1h30m" or "7d". Raises
    typer.BadParameter: the text is not a duration."""
    parts = re.findall(rf"(\d{{1,{DIGITS_MAX}}})(ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(
            f"{shortened(text)!r} is not a duration: write 30s, 15m, 2h, 1h30m or 7d"
        )
    duration_ms = sum(int(number) * DURATION_UNITS_MS[unit] for number, unit in parts)
    if duration_ms > DURATION_MS_MAX:
        raise typer.BadParameter(f"{shortened(text)!r} is longer than 100 years")
    return duration_ms


def shortened(text: str) -> str:
    """Return a text as error messages quote it: its first 80 characters."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def parse_number(text: str) -> int | None:
    """Return a whole number of at most 18 decimal digits; None if the text is no such number."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else None


def parse_moment(text: str, option: str) -> int:
    """Return the epoch milliseconds of a time, or of a duration before now. Raises
    typer.BadParameter: the text is neither."""
    from rockoon_core.clock import wall_clock_ms

    try:
        return wall_clock_ms() - parse_duration(text)
    except typer.BadParameter:
        pass
    try:
        return parse_time(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time (2026-01-31T12:00) nor a duration before now (2h)",
            param_hint=option,
        ) from None


def parse_queue(text: str) -> tuple[str, int]:
    """Return broker and queue id of a `--queue` value such as "broker-a:3". Raises
    typer.BadParameter: the text does not have this form."""
    broker, _, number = text.rpartition(":")
    queue_id = parse_number(number)
    if not broker or queue_id is None or queue_id >= QUEUE_IDS_MAX:
        raise typer.BadParameter(
            f"{shortened(text)!r} is not of the form BROKER:QUEUE", param_hint="--queue"
        )
    return broker, queue_id


def parse_topic_queue(text: str) -> "MessageQueue":
    """Return the queue of a text such as "orders@broker-a:3". Raises typer.BadParameter: the text
    does not have this form."""
    from rockoon_core.message_queue import MessageQueue

    topic, _, place = text.partition("@")
    broker, _, number = place.rpartition(":")
    queue_id = parse_number(number)
    if not (topic and broker) or queue_id is None or queue_id >= QUEUE_IDS_MAX:
        raise typer.BadParameter(f"{shortened(text)!r} is not of the form TOPIC@BROKER:QUEUE")
    return MessageQueue(topic, broker, queue_id)


def parse_pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """Return a mapping from texts of the form "name=value". `what`: the form, for the error
    message. Raises typer.BadParameter: a text has no equals sign or no name, or a name occurs
    twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} is not of the form {what}")
        if name in pairs:
            raise typer.BadParameter(f"{name!r} is given twice")
        pairs[name] = value
    return pairs


def parse_counts(texts: Iterable[str], what: str) -> dict[str, int]:
    """Same as `parse_pairs`, but each value is a whole number above 0."""
    counts: dict[str, int] = {}
    for name, value in parse_pairs(texts, what).items():
        count = parse_number(value)
        if not count:
            raise typer.BadParameter(
                f"{name}={shortened(value)}: the value must be a number above 0, with at most "
                f"{DIGITS_MAX} digits"
            )
        counts[name] = count
    return counts


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about a name that does not exist, with the nearest existing one."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"unknown {kind} {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def with_watch_seconds(arguments: Sequence[str]) -> list[str]:
    """Append the default to each `--watch` without a number: typer has no optional values."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    result = []
    for each, after in zip(arguments[:end], [*arguments[1:end], ""], strict=True):
        is_bare = each == WATCH and not after.replace(".", "", 1).isdecimal()
        result.append(f"{WATCH}={WATCH_SECONDS}" if is_bare else each)
    return [*result, *arguments[end:]]


def check_watch_seconds(seconds: float | None) -> float | None:
    """Return `seconds`; the callback of `--watch`. Raises typer.BadParameter: the number is out of
    range."""
    if seconds is not None and not WATCH_SECONDS_MIN <= seconds <= WATCH_SECONDS_MAX:
        raise typer.BadParameter(
            f"{seconds:g} is not a number of seconds from {WATCH_SECONDS_MIN:g} to "
            f"{WATCH_SECONDS_MAX:g}"
        )
    return seconds


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
        return _named_policy(text)
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


def _named_policy(text: str) -> "ConsumeFrom":
    from rockoon.errors import InvalidArgument
    from rockoon.offsets.start import ConsumeFrom

    try:
        return ConsumeFrom.of(text)
    except InvalidArgument as failure:
        raise typer.BadParameter(str(failure), param_hint="--from") from None
