"""`rockoon offsets clone`: a group starts where another one has committed."""

from typing import Any

import pytest
from cli.test_confirmed_resets import terminal

from rockoon.cli import clone
from rockoon.cli.clone import not_revertible
from rockoon_core.reset_bounds import RESET_OFFSETS_MAX, RESETS_MAX
from rockoon_offset.progress.ledger_state import AppliedResets
from rockoon_offset.progress.records import ResetApplied
from rockoon_proto.v1.offset_pb2 import ResetPlan, ResetStep


@pytest.fixture
def groups(rockoon: Any, filled: str) -> tuple[str, str]:
    """A group that has committed 2 on each of the topic's two queues, and one without progress."""
    topic = filled
    source, group = f"{topic}-a", f"{topic}-b"
    for name in (source, group):
        rockoon("group", "create", name)
    rockoon("offsets", "reset", source, topic, "--to-offset", "2", "--yes")
    return source, group


def offsets(rockoon: Any, group: str) -> list[int | None]:
    found = rockoon("offsets", "show", group, "--json").json["queues"]
    return [each["committed_offset"] for each in found]


def test_a_clone_shows_its_plan_and_why_names_the_other_group(
    rockoon: Any, topic: str, groups: tuple[str, str]
) -> None:
    source, group = groups
    shown = rockoon("offsets", "clone", source, group, "--plan")
    assert ["reset", "of", "group", group] == [shown.words[0][0], *shown.words[0][2:5]]
    assert "planned" in shown.out
    assert [line[4] for line in shown.words if line[:1] == [topic]] == ["2", "2"]
    assert offsets(rockoon, group) == []
    assert "confirm with --yes" in rockoon("offsets", "clone", source, group, status=1).err
    assert offsets(rockoon, group) == []

    (done,) = rockoon("offsets", "clone", source, group, "--yes", "--json").json
    assert (done["topic"], done["applied"]) == (topic, True)
    assert offsets(rockoon, group) == [2, 2]
    why = rockoon("offsets", "why", group, "--json").json["queues"]
    assert len(why) == 2
    for each in why:
        assert each["progress"]["start_reason"] == "RESET"
        said = f"to 2, cloned from group {source}, which had committed 2"
        assert each["progress"]["start_explanation"].endswith(said)
    rockoon("offsets", "undo", done["reset_id"])
    assert offsets(rockoon, group) == []


def test_a_clone_of_what_is_not_there_is_refused_before_anything_changes(
    rockoon: Any, topic: str, taken: str, groups: tuple[str, str]
) -> None:
    source, group = groups
    both = "--topic", topic, "--topic", taken
    refused = rockoon.fails("offsets", "clone", source, group, *both, "--yes")
    assert f"group '{source}' has no progress on '{taken}' to clone" in refused
    assert offsets(rockoon, group) == []
    assert rockoon.fails("offsets", "clone", group, source, "--plan") == (
        f"group {group} has no progress to clone"
    )
    assert "does not exist" in rockoon.fails("offsets", "clone", source, "nowhere", "--plan")
    assert "does not exist" in rockoon.fails("offsets", "clone", "nowhere", group, "--plan")


def test_a_group_that_moves_during_the_question_is_not_cloned_and_earlier_topics_are_named(
    rockoon: Any, topic: str, taken: str, groups: tuple[str, str]
) -> None:
    source, group = groups
    for name in (source, group):
        rockoon("offsets", "reset", name, taken, "--to-earliest", "--yes")
    names = "--topic", topic, "--topic", taken
    with terminal(rockoon, "offsets", "clone", source, group, *names) as person:
        person.until("[y/N]:")
        rockoon("offsets", "reset", group, taken, "--to-latest", "--yes")
        person.say("y")
        assert person.end() == 1
    assert f"{taken} was not cloned" in person.shown
    assert f"topics cloned before: {topic} (undo " in " ".join(person.shown.split())
    shown = rockoon("offsets", "show", group, "--json").json["queues"]
    assert {each["committed_offset"] for each in shown if each["topic"] == topic} == {2}


@pytest.mark.parametrize(
    "offsets_of_topics",
    [
        [RESET_OFFSETS_MAX // 2] * 2,
        [RESET_OFFSETS_MAX // 2 + 1] * 2,
        [1, RESET_OFFSETS_MAX + 1],
        [1] * RESETS_MAX,
        [1] * (RESETS_MAX + 2),
    ],
    ids=["two large ones", "too large", "newest too large", "many", "too many"],
)
def test_a_clone_names_the_topics_whose_resets_the_service_does_not_keep(
    offsets_of_topics: list[int],
) -> None:
    kept, plans, step = AppliedResets(), [], ResetStep()
    for number, offsets in enumerate(offsets_of_topics):
        topic = f"t{number}"
        # The service counts the steps and reads no field of a step.
        steps: Any = (None,) * offsets
        kept.apply(ResetApplied(topic, "g", topic, "", 0, steps, undone=False))
        plans.append(ResetPlan(topic=topic, steps=[step] * offsets))
    lost = not_revertible(plans)
    assert lost == [each.topic for each in plans if kept.get(each.topic) is None]


def test_a_clone_beyond_the_bound_says_before_it_begins_what_cannot_be_reverted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone, "RESET_OFFSETS_MAX", 3)
    plans = [ResetPlan(topic=topic, steps=[ResetStep()] * 2) for topic in ("a", "b")]
    clone.warn_not_revertible(plans)
    assert capsys.readouterr().err.startswith("rockoon: a will be moved and cannot be reverted: ")
    clone.show_done(plans)
    assert capsys.readouterr().out.splitlines() == [
        "a done; cannot be reverted",
        "b done; to revert: `rockoon offsets undo `",
    ]
