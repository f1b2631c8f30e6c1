"""`make conformance`: RocketMQ's official clients, unmodified, against the gateway and a reference.

The reference is RocketMQ's own proxy. Each scenario is written once and runs with clients of each
language; docs/measurements/gateway-matrix.md has the last whole run of each language and target.
A client that this machine cannot run is skipped by name. Exit status 1 if a scenario fails on the
gateway and is not a known fault of its client (`known_faults.py`), or if a known fault has passed.
With --tls no page is changed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.compare.programs import NotHere
from conformance import documents, page
from conformance.known_faults import unexpected
from conformance.languages import CACHE, LANGUAGES, Prepared
from conformance.progress import Progress
from conformance.rocketmq_proxy import RocketMqProxy
from conformance.rockoon_gateway_cluster import RockoonGateway
from conformance.running import keep, kept, play_all
from conformance.scenarios import SCENARIOS, Scenario
from conformance.target import Target
from rockoon.local.directory import PortBlock

BESIDE = 4
TARGETS: Mapping[str, Callable[[Path, PortBlock, bool], Target]] = {
    "rockoon": lambda folder, ports, tls: RockoonGateway(folder, ports, tls=tls),
    "judge": lambda folder, ports, tls: RocketMqProxy(CACHE, folder, ports, tls=tls),
}
# Language → why its client is skipped with --tls.
WITHOUT_TLS = {"Rust": "its client 5.0.0 cannot connect with TLS"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--target", choices=list(TARGETS), help="one of them; both otherwise")
    parser.add_argument("--language", action="append", choices=list(LANGUAGES))
    parser.add_argument("--only", help="scenarios whose names contain this")
    parser.add_argument("--tls", action="store_true", help="clients use TLS, on the same port")
    parser.add_argument("--beside", type=int, default=BESIDE, help="languages at the same time")
    parser.add_argument("--folder", type=Path, help="keep stores and logs here")
    return parser.parse_args()


def prepared(names: Sequence[str]) -> tuple[list[Prepared], dict[str, str]]:
    """Return the clients that can run here, and why the others cannot."""
    found: list[Prepared] = []
    skipped: dict[str, str] = {}
    for name in names:
        print(f"fetching the client of {name}", flush=True)
        try:
            found.append(LANGUAGES[name]())
        except NotHere as reason:
            skipped[name] = str(reason)
            print(f"skipped: {name}: {reason}", flush=True)
    return found, skipped


def run_target(
    name: str, clients: Sequence[Prepared], given: argparse.Namespace, folder: Path, run: Progress
) -> list[str]:
    """Run all scenarios on one target; return the sentences that make the run fail.

    Raises:
        Stopped: the run was interrupted.
    """
    wrong: list[str] = []
    ports = PortBlock()
    target = TARGETS[name](folder / "server", ports, given.tls)
    run.add(target)
    try:
        target.start()
        run.say(f"{target.name} listens at {target.endpoint}")
        outcomes = play_all(target, chosen(given), clients, folder, given.beside, run)
        if name == "rockoon" and not given.only:
            wrong += documents.failures(target, clients, folder)
    finally:
        run.remove(target)
        target.stop()
        ports.close()
    if name == "rockoon":
        wrong += unexpected(outcomes)
    if not (given.only or given.tls):
        versions = {client.language: client.version for client in clients}
        keep(CACHE / f"{name}.json", {**target.versions(), **versions}, outcomes)
    run.say(f"{target.name}: all scenarios are played")
    return wrong


def chosen(given: argparse.Namespace) -> list[Scenario]:
    return [each for each in SCENARIOS if (given.only or "") in each.name]


def main() -> int:
    given = arguments()
    languages = given.language or list(LANGUAGES)
    clients, skipped = prepared(
        [each for each in languages if not (given.tls and each in WITHOUT_TLS)]
    )
    if given.tls:
        for language in WITHOUT_TLS.keys() & languages:
            print(f"skipped: {language}: {WITHOUT_TLS[language]}", flush=True)
    names = [given.target] if given.target else list(TARGETS)
    run = Progress(len(names) * len(clients) * len(chosen(given)))
    # Scenarios spend most of their time in waits for retries, timeouts and delays. Therefore both
    # targets are tested at the same time, with separate topics, groups and client processes.
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(len(names)) as pool:
        folder = given.folder or Path(temporary)
        playing = [
            pool.submit(run_target, name, clients, given, folder / name, run) for name in names
        ]
        try:
            wrong = [sentence for each in playing for sentence in each.result()]
        except BaseException:
            run.say("ending clients and servers")
            run.stop()
            raise
    ours, judge = (kept(CACHE / f"{name}.json") for name in TARGETS)
    if not (given.only or given.tls) and ours is not None and judge is not None:
        page.write(ours, judge, skipped)
    for sentence in wrong:
        print(f"not as it should be: {sentence}")
    run.say(f"{len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
