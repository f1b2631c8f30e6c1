"""The generation of a leader that a copy uses instead of its own."""

from dataclasses import replace

import pytest

from rockoon_broker.replication.serving import may_replace
from rockoon_format.generation import LogTail, Manifest

OWN = Manifest(
    generation=7,
    replaces=6,
    created_ms=0,
    log_start=0,
    log_end=1000,
    log_tail=LogTail(0, 0, 0),
    topics=(),
    parts=(),
)


@pytest.mark.parametrize(
    ("number", "log_end", "taken"),
    [
        (8, 1000, True),
        (9, 2000, True),
        # Made by the next leader, which did not know this copy's generation.
        (7, 2000, False),
        # This copy may have deleted the records between.
        (8, 999, False),
    ],
)
def test_a_copy_takes_what_goes_on_behind_its_own(number: int, log_end: int, taken: bool) -> None:
    assert may_replace(replace(OWN, generation=number, log_end=log_end), OWN) is taken
