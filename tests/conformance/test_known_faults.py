"""`make conformance` fails if a scenario's result differs from the known faults."""

from conformance.known_faults import KNOWN_FAULTS, unexpected
from conformance.languages import LANGUAGES
from conformance.running import FAILED, NOT_OFFERED, OK, Outcome, Outcomes
from conformance.scenarios import SCENARIOS


def played(changed: dict[tuple[str, str], str]) -> Outcomes:
    """Return the outcomes of a run in which only the known faults failed, except `changed`."""
    kinds = dict.fromkeys(KNOWN_FAULTS, FAILED) | changed
    outcomes: Outcomes = {language: {} for language in LANGUAGES}
    for (language, name), kind in kinds.items():
        outcomes[language][name] = Outcome(kind, "why", 0.0)
    return outcomes


def test_a_run_in_which_only_known_faults_fail_is_good() -> None:
    assert unexpected(played({("Java", "delay"): OK, ("Rust", "push consumer"): NOT_OFFERED})) == []


def test_another_failure_fails_the_run() -> None:
    assert unexpected(played({("Java", "delay"): FAILED})) == ["Java, delay: why"]


def test_a_known_fault_that_fails_no_more_fails_the_run() -> None:
    for place in KNOWN_FAULTS:
        (said,) = unexpected(played({place: OK}))
        assert said.startswith(f"{place[0]}, {place[1]}: a known fault")


def test_known_faults_are_of_scenarios_and_languages_that_there_are() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    assert all(language in LANGUAGES and name in names for language, name in KNOWN_FAULTS)
