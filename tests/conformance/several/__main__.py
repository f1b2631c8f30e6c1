"""`make several-gateways`: official clients of five gateways that are killed and drained.

Go's clients connect through a balancer that cuts each connection once, Node.js's through a
balancer that spreads calls, Java's and Python's through a balancer that spreads connections.
Listeners work for up to 100 seconds on a message. Each message must be handled once; again only
after a kill of its own client. Exit status 1 if a promise is broken (`judge.py`).
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from conformance.__main__ import prepared
from conformance.languages import Prepared
from conformance.progress import Progress
from conformance.scene import Scene
from conformance.several.balancers import Balancer, Balancers, CallBalancer
from conformance.several.crew import Crew
from conformance.several.fleet import Fleet
from conformance.several.judge import Group, summary, violations
from rockoon.local.directory import PortBlock

GATEWAYS = 5
MESSAGES = 10_000
SECONDS = 240.0
LANGUAGES = ("Java", "Go", "Node.js", "Python")
# Kind of balancer; clients of another language connect through the one by connection.
WAYS: Mapping[str, str] = {"Go": "cut", "Node.js": "call"}
# Pause between two faults: clients connect again.
PAUSE_SECONDS = (3.0, 12.0)
REPORT_SECONDS = 10.0
# A lost message is delivered again after its invisible time, and is then handled.
SETTLED_SECONDS_MAX = 300.0
SHOWN_MAX = 40


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make several-gateways", description=__doc__)
    parser.add_argument("--language", action="append", choices=LANGUAGES)
    parser.add_argument("--gateways", type=int, default=GATEWAYS)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of all languages together")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for which they are sent")
    parser.add_argument("--seed", type=int, help="of cuts, faults and work; chosen otherwise")
    parser.add_argument("--folder", type=Path, help="keep stores and logs here")
    return parser.parse_args()


class Faults:
    """Kills and drains gateways, and kills clients, while messages are handled.

    Args:
        fleet: started.
        crews: at work.
        chance: chooses gateways.
        say: prints a line.
    """

    def __init__(
        self, fleet: Fleet, crews: Sequence[Crew], chance: random.Random, say: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._chance = chance
        self._say = say
        self._plan: list[Callable[[], None]] = [self._kill, self._drain, self._roll]
        self._kills = [crew.kill_client for crew in crews]
        self.done = Counter[str]()

    def next(self) -> None:
        """Kill, drain or roll a gateway; every third call kills a client."""
        if self.done.total() % 3 == 2 and self._kills:
            self._kills.pop()()
            self.done["clients killed"] += 1
            self._say("a consumer is killed")
            return
        self._plan.append(self._plan.pop(0))
        self._plan[-1]()

    def _away(self, number: int, how: signal.Signals, what: str) -> None:
        self._say(f"gateway {number} is {what}")
        self._fleet.away(number, how)
        self.done[f"gateways {what}"] += 1

    def _kill(self) -> None:
        number = self._chance.randrange(len(self._fleet.gateway_ports))
        self._away(number, signal.SIGKILL, "killed")

    def _drain(self) -> None:
        number = self._chance.randrange(len(self._fleet.gateway_ports))
        self._away(number, signal.SIGTERM, "drained")

    def _roll(self) -> None:
        for number in range(len(self._fleet.gateway_ports)):
            self._away(number, signal.SIGTERM, "rolled")


def play(
    clients: Sequence[Prepared], given: argparse.Namespace, folder: Path, seed: int, run: Progress
) -> tuple[list[Group], list[str]]:
    """Run the crews under faults; return the history, and faults of the run itself."""
    chance = random.Random(seed)
    with ExitStack() as opened:
        ports = opened.enter_context(PortBlock())
        fleet = Fleet(folder, ports, given.gateways)
        opened.callback(fleet.stop)
        fleet.start()
        balancers = opened.enter_context(Balancers())
        cutting = Balancer(fleet.gateway_ports, random.Random(seed))
        ways = {
            "connection": balancers.serve(Balancer(fleet.gateway_ports), ports.choose()),
            "cut": balancers.serve(cutting, ports.choose()),
            "call": balancers.serve(CallBalancer(fleet.gateway_ports), ports.choose()),
        }
        crews = []
        for client in clients:
            slug = "".join(filter(str.isalnum, client.language)).lower()
            scene = Scene(fleet, client, slug, folder / slug, progress=run)
            opened.callback(scene.close)
            way = WAYS.get(client.language, "connection")
            run.say(f"{client.language} {client.version}: balanced by {way}")
            crew = Crew(
                scene,
                client,
                ways[way],
                count=given.messages // len(clients),
                seconds=given.seconds,
                chance=random.Random(f"{seed} {slug}"),
            )
            opened.callback(crew.close)
            crews.append(crew)
        faults = Faults(fleet, crews, chance, run.say)
        while any(crew.is_sending for crew in crews):
            time.sleep(chance.uniform(*PAUSE_SECONDS))
            faults.next()
            report(crews, run)
        run.say(f"{dict(faults.done)}, {cutting.cuts} connections cut; the rest is handled")
        settle(fleet, crews, run)
        histories = [history(fleet, crew) for crew in crews]
        return histories, [fault for crew in crews for fault in crew.faults]


def report(crews: Sequence[Crew], run: Progress) -> None:
    counts = (f"{crew.name} {crew.sent} sent, {crew.handled} handled" for crew in crews)
    run.say("; ".join(counts))


def settle(fleet: Fleet, crews: Sequence[Crew], run: Progress) -> None:
    """Wait until every message is acknowledged, or for a while."""
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    while time.monotonic() < deadline:
        lag = {crew.name: fleet.lag(crew.group, crew.topic) for crew in crews}
        if not any(lag.values()):
            return
        run.say(f"not acknowledged: {lag}")
        time.sleep(REPORT_SECONDS)


def history(fleet: Fleet, crew: Crew) -> Group:
    """Return the history of a crew's messages, for the judge."""

    def bodies(topic: str) -> list[str]:
        stored = fleet.stored(topic)
        queues = stored.messages.values() if stored is not None else ()
        return [message.body.decode() for queue in queues for message in queue]

    copies = Counter(bodies(crew.topic))
    dead_letters = bodies(f"%DLQ%{crew.group}")
    return crew.history(copies, dead_letters, fleet.lag(crew.group, crew.topic))


def main() -> int:
    given = arguments()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    clients, _ = prepared(given.language or LANGUAGES)
    run = Progress(0)
    run.say(f"SEED={seed}")
    with tempfile.TemporaryDirectory(prefix="rockoon-several-") as temporary:
        try:
            groups, wrong = play(clients, given, given.folder or Path(temporary), seed, run)
        except BaseException:
            run.stop()
            raise
    for group in groups:
        handled = sum(each.handled is not None for each in group.deliveries)
        found = list(violations(group))
        run.say(f"{group.name}: {len(group.sent)} sent, {handled} handled, {len(found)} violations")
        wrong += found
    for sentence in wrong[:SHOWN_MAX]:
        print(f"does not hold: {sentence}")
    run.say(f"SEED={seed}: {len(wrong)} violations {dict(summary(wrong))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
