"""Runs scenarios: languages in parallel, and scenarios that disturb others alone."""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.client_process import ClientFailed, NotOffered
from conformance.languages import Prepared
from conformance.progress import Progress
from conformance.scenarios import Scenario
from conformance.scene import Differs, Scene
from conformance.shared_restart import SharedRestart
from conformance.target import Target

OK, FAILED, NOT_OFFERED = "ok", "failed", "not offered"


@dataclass(frozen=True)
class Outcome:
    """Result of one scenario with one client.

    Attributes:
        kind: OK, FAILED or NOT_OFFERED.
        said: reason, unless the scenario passed.
        seconds: duration.
    """

    kind: str
    said: str
    seconds: float


Outcomes = dict[str, dict[str, Outcome]]  # by language, by scenario's name


def play(
    target: Target,
    scenario: Scenario,
    language: Prepared,
    folder: Path,
    others: Sequence[Prepared] = (),
    progress: Progress | None = None,
    restart: Callable[[], None] | None = None,
) -> Outcome:
    """Run one scenario with clients of one language.

    Args:
        others: clients of every language, for scenarios between them.
        progress: kills the clients if the run is interrupted.
        restart: restarts the target; None: `target.restart`.
    """
    if scenario.is_guarded:
        target = target.guarded()
    slug = "".join(letter if letter.isalnum() else "-" for letter in scenario.name)[:40]
    # Topics remain after a run of scenarios on the same target; their names have no "+".
    short = "".join(filter(str.isalnum, language.language))[:2].lower()
    prefix = f"{short}{time.monotonic_ns() % 10**9}-{slug[:20]}".strip("-")
    folder = folder / f"{language.language}-{slug}"
    scene = Scene(target, language, prefix, folder, others, progress, restart)
    began = time.monotonic()
    kind, said = OK, ""
    try:
        scenario.play(scene)
    except NotOffered as what:
        kind, said = NOT_OFFERED, f"the client has no such call: {what}"
    except (Differs, ClientFailed) as what:
        kind, said = FAILED, str(what)
    except Exception as bug:  # noqa: BLE001
        traceback.print_exc()
        kind, said = FAILED, f"bug of the scenario: {bug!r}"
    finally:
        scene.close()
    return Outcome(kind, " ".join(said.split())[:400], time.monotonic() - began)


def play_all(
    target: Target,
    scenarios: Sequence[Scenario],
    languages: Sequence[Prepared],
    folder: Path,
    beside: int,
    progress: Progress,
) -> Outcomes:
    """Run scenarios with each language.

    Args:
        beside: number of languages that run at the same time.
        progress: prints each scenario as it begins and ends.

    Raises:
        Stopped: the run was interrupted.
    """
    outcomes: Outcomes = {language.language: {} for language in languages}

    def turn(
        language: Prepared, mine: Iterable[Scenario], restart: Callable[[], None] | None = None
    ) -> None:
        for scenario in mine:
            what = f"{target.name:18} {language.language:8} {scenario.name}"
            progress.begins(what)
            outcome = play(target, scenario, language, folder, languages, progress, restart)
            outcomes[language.language][scenario.name] = outcome
            said = f"  {outcome.said}" if outcome.said else ""
            progress.ended(outcome.kind, outcome.seconds, what + said)

    shared = [scenario for scenario in scenarios if not scenario.is_alone]
    with ThreadPoolExecutor(beside) as pool:
        for done in [pool.submit(turn, language, shared) for language in languages]:
            done.result()
    # A restart disturbs all other scenarios; scenarios with a restart share it.
    restarting = [
        (language, scenario)
        for scenario in scenarios
        if scenario.is_alone
        for language in languages
    ]
    if restarting:
        restart = SharedRestart(target.restart, len(restarting))

        def restarted(language: Prepared, scenario: Scenario) -> None:
            try:
                turn(language, [scenario], restart.ask)
            finally:
                restart.leave()

        with ThreadPoolExecutor(len(restarting)) as pool:
            for done in [pool.submit(restarted, *each) for each in restarting]:
                done.result()
    return outcomes


def keep(path: Path, versions: Mapping[str, str], outcomes: Outcomes) -> None:
    """Store the results of whole runs of some languages, for the page."""
    before = kept(path)
    if before is not None:
        versions, outcomes = {**before[0], **versions}, {**before[1], **outcomes}
    found = {
        language: {name: asdict(outcome) for name, outcome in mine.items()}
        for language, mine in outcomes.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"versions": dict(versions), "outcomes": found}, indent=1))


def kept(path: Path) -> tuple[Mapping[str, str], Outcomes] | None:
    """Return the results that `keep` has stored; None without a file."""
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    outcomes = {
        language: {name: Outcome(**outcome) for name, outcome in mine.items()}
        for language, mine in found["outcomes"].items()
    }
    return found["versions"], outcomes
