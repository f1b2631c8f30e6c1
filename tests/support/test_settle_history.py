"""Tests of the judge of deliveries and acknowledgements: what it reports, and what it accepts."""

from collections.abc import Sequence

import pytest

from support.settle_history import (
    CAME_BACK,
    INVENTED,
    LOST,
    NEVER,
    OVERTAKEN,
    TURNED_BACK,
    UNSETTLED_BEFORE,
    GroupHistory,
    Kind,
    Step,
    judge,
)

STORED = {"a-0": 1, "a-1": 1, "b-0": 1}
KINDS = {"<": Kind.DELIVERED, "?": Kind.TRIED, "+": Kind.SETTLED}


def steps(text: str) -> list[Step]:
    """Parse steps: `<a-0@7` delivered by reply 7 (`<a-0`: unknown), `?a-0` acknowledged, `+a-0`
    acknowledgement got its reply, `.` no message is left."""
    found = []
    for word in text.split():
        message, _, batch = word[1:].partition("@")
        kind = KINDS.get(word[0], Kind.ALL_SETTLED)
        found.append(Step(kind, message, int(batch or 0)))
    return found


def found(
    text: str, *, copies: dict[str, int] = STORED, fifo: bool = False, tells: bool = True
) -> list[str]:
    group = GroupHistory("g", steps(text), is_fifo=fifo, tells=tells)
    return judge(STORED, copies, [group])


@pytest.mark.parametrize(
    "text",
    [
        "<a-0 ?a-0 +a-0 <b-0 ?b-0 +b-0 <a-1 ?a-1 +a-1 .",
        # Its acknowledgement got no reply: it is delivered again.
        "<a-0 ?a-0 <a-0 ?a-0 +a-0 <a-1 ?a-1 +a-1 <b-0 ?b-0 +b-0 .",
        # One reply had both. The first one failed; the second one is delivered again although
        # settled.
        "<a-0@1 <a-1@1 ?a-1 +a-1 <a-0@2 <a-1@2 ?a-0 +a-0 ?a-1 +a-1 <b-0 ?b-0 +b-0 .",
        # As before, and the second one is delivered again by a separate reply.
        "<a-0@1 <a-1@1 ?a-1 +a-1 <a-0@2 ?a-0 +a-0 <a-1@3 ?a-1 +a-1 <b-0 ?b-0 +b-0 .",
        # Its acknowledgement got no reply and counts.
        "<a-0 ?a-0 <a-1 ?a-1 +a-1 <b-0 ?b-0 +b-0 .",
    ],
)
def test_what_at_least_once_allows_is_no_finding(text: str) -> None:
    assert found(text, fifo=True) == []


def test_two_copies_of_a_message_are_delivered_and_settled_twice() -> None:
    text = "<a-0 ?a-0 +a-0 <a-1 ?a-1 +a-1 <a-0 ?a-0 +a-0 <b-0 ?b-0 +b-0 ."
    assert found(text, copies={**STORED, "a-0": 2}, fifo=True) == []


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("<a-1 +a-1 <b-0 +b-0", {"copies": {"a-1": 1, "b-0": 1}}, [LOST]),
        ("<a-0 <a-1 <b-0 <x-0", {}, [INVENTED]),
        ("<a-0 <b-0", {}, [NEVER]),
        ("<a-0 +a-0 <a-1 <b-0 <a-0", {}, [CAME_BACK]),
        ("<a-0 <a-1 <b-0 . <a-0", {"tells": False}, [CAME_BACK]),
        ("<a-1 ?a-1 <a-0 <b-0", {"fifo": True}, [OVERTAKEN, TURNED_BACK]),
        ("<a-1 <a-0 <b-0", {"fifo": True, "tells": False}, [OVERTAKEN]),
        ("<a-0 ?a-0 <a-1 <a-0 <b-0", {"fifo": True}, [TURNED_BACK]),
        ("<a-0@1 ?a-0 <a-1@2 <a-0@3 <b-0", {"fifo": True}, [TURNED_BACK]),
        ("<a-0@1 <a-1@2 <b-0", {"fifo": True}, [UNSETTLED_BEFORE]),
        ("<a-0@1 <a-1@1 ?a-0 +a-0 ?a-1 +a-1 <a-1@2 <b-0", {"fifo": True}, [CAME_BACK]),
        ("<a-0 <a-1 ?a-0 <b-0", {"fifo": True}, [UNSETTLED_BEFORE]),
    ],
)
def test_a_broken_promise_is_found(
    text: str, options: dict[str, object], wanted: Sequence[str]
) -> None:
    said = found(text, **options)  # type: ignore[arg-type]
    assert [any(kind in sentence for sentence in said) for kind in wanted] == [True] * len(wanted)
    assert len(said) == len(wanted)
