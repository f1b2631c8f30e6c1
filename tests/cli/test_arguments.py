"""Times, durations and pairs as people type them."""

import datetime
import time
from collections.abc import Iterator

import pytest
import typer

from rockoon.cli.arguments import (
    parse_counts,
    parse_duration,
    parse_pairs,
    parse_queue,
    parse_time,
    parse_topic_queue,
)
from rockoon.cli.output import duration, for_humans, local_time
from rockoon.cli.produce import parse_delay
from rockoon.errors import InvalidArgument
from rockoon.net.addresses import parse_addresses


def test_times_have_the_zone_they_name_or_the_local_one() -> None:
    assert parse_time("2026-01-31T12:00:00Z") == 1769860800000
    assert parse_time("2026-01-31 13:00+01:00") == 1769860800000
    assert parse_time("1769860800000") == 1769860800000
    here = datetime.datetime(2026, 1, 31, 12).astimezone()
    assert parse_time("2026-01-31T12:00") == int(here.timestamp() * 1000)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("utc", "shown"),
    [
        ("2026-01-31T11:00:00Z", "2026-01-31T12:00:00+01:00"),
        ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00+02:00"),
        ("2026-10-25T01:30:00Z", "2026-10-25T02:30:00+01:00"),
    ],
    ids=["winter", "repeated hour, first", "repeated hour, second"],
)
def test_a_time_that_is_shown_can_be_typed_back(utc: str, shown: str) -> None:
    epoch_ms = parse_time(utc)
    assert local_time(epoch_ms) == shown
    assert parse_time(shown) == epoch_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("0s", 0), ("15m", 900_000), ("1h30m", 5_400_000), ("7d", 604_800_000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


# int() refuses texts of more than 4,300 digits.
ENDLESS = "9" * 5_000


@pytest.mark.parametrize("text", ["", "15", "h", "-1h", "1h 30m", "1.5h", "2w", f"{ENDLESS}d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        parse_duration(text)


def test_pairs_and_counts() -> None:
    assert parse_pairs(["a=b=c", "d="], "NAME=VALUE") == {"a": "b=c", "d": ""}
    assert parse_counts(["broker-a=3"], "BROKER=QUEUES") == {"broker-a": 3}
    with pytest.raises(typer.BadParameter, match="given twice"):
        parse_pairs(["a=1", "a=2"], "NAME=VALUE")
    for wrong in ("0", "-1", "many", ENDLESS):
        with pytest.raises(typer.BadParameter, match="above 0"):
            parse_counts([f"broker-a={wrong}"], "BROKER=QUEUES")


def test_numbers_that_no_message_can_carry_are_refused() -> None:
    assert parse_topic_queue("orders@broker-a:3").queue_id == 3
    assert parse_queue("broker-a:2147483647") == ("broker-a", 2147483647)
    for wrong in ("2147483648", "9" * 18, ENDLESS, "-1", ""):
        with pytest.raises(typer.BadParameter, match="BROKER:QUEUE") as refused:
            parse_topic_queue(f"orders@broker-a:{wrong}")
        assert len(str(refused.value)) < 200
        with pytest.raises(typer.BadParameter, match="BROKER:QUEUE"):
            parse_queue(f"broker-a:{wrong}")
    with pytest.raises(typer.BadParameter, match="not a delay level"):
        parse_delay(f"level:{ENDLESS}", None)
    with pytest.raises(typer.BadParameter, match="longer than 100 years"):
        parse_duration("36526d")
    with pytest.raises(InvalidArgument, match="not of the form host:port"):
        parse_addresses(f"localhost:{ENDLESS}")


def test_figures_are_short() -> None:
    assert [duration(ms) for ms in (None, 5, 2_000, 90_000, 7_200_000)] == [
        None,
        "5 ms",
        "2 s",
        "1.5 min",
        "2 h",
    ]
    assert [for_humans(size) for size in (0, 1023, 1536, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]
