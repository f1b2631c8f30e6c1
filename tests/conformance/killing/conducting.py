"""Crews at work while processes are killed, and the checks afterwards."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.killing.crew import Crew
from conformance.killing.killable_cluster import ALL, GATEWAY, KillableCluster
from conformance.known_faults import BLIND
from conformance.languages import Prepared
from conformance.scene import LOOK_SECONDS, Scene
from rockoon.local.directory import PortBlock
from support.settle_history import Kind, judge

VICTIMS = (GATEWAY, "broker", "offset")
# Messages of each crew before a kill, and after it.
ROUNDS = (3, 20)
GOES_ON_SECONDS_MAX = 150.0


@dataclass(frozen=True)
class Finding:
    """Result of the clients of one language.

    Attributes:
        client: language and version.
        copies: of the logs.
        kills: by victim.
        figures: counts of operations, by name.
        broken: promises that did not hold; must be empty.
    """

    client: str
    copies: int
    kills: Counter[str]
    figures: dict[str, int]
    broken: list[str] = field(default_factory=list)


class Conductor:
    """One cluster, crews on it, and kills.

    Args:
        target: the started cluster.
        crews: at work.
        chance: chooses the times of the kills.
    """

    def __init__(self, target: KillableCluster, crews: Sequence[Crew], chance: random.Random):
        self._target = target
        self._crews = crews
        self._chance = chance
        self.kills = Counter[str]()

    def kill(self, victim: str) -> None:
        """Kill a process while all crews work, and wait until all of them have continued."""
        before = self._chance.randint(*ROUNDS)
        if not self._rounds(before, f"before the kill of {victim}"):
            return
        self._target.kill(victim)
        self.kills[victim] += 1
        self._rounds(ROUNDS[1], f"after the kill of {victim}")
        self._all_come(f"after the kill of {victim}")

    def _rounds(self, count: int, when: str) -> bool:
        ends = [crew.rounds + count for crew in self._crews]
        deadline = time.monotonic() + GOES_ON_SECONDS_MAX
        for crew, end in zip(self._crews, ends, strict=True):
            if not crew.wait_rounds(end, max(deadline - time.monotonic(), 0)):
                crew.faults.append(f"{when}: sends are answered no more")
        return not any(crew.faults for crew in self._crews)

    def _all_come(self, when: str) -> None:
        """Wait until each group has received all messages that are acknowledged by now."""
        wanted = [crew.acknowledged() for crew in self._crews]
        for crew, its in zip(self._crews, wanted, strict=True):
            self._until(crew, lambda crew=crew, its=its: crew.missing(its), when)  # type: ignore[misc]

    def _until(self, crew: Crew, missing: Callable[[], list[str]], when: str) -> None:
        """Wait until nothing is missing; whatever is missing at the end is a fault."""
        deadline = time.monotonic() + GOES_ON_SECONDS_MAX
        while found := missing():
            if time.monotonic() > deadline or crew.faults:
                crew.faults += [f"{when}: {each}" for each in found]
                return
            time.sleep(LOOK_SECONDS)

    def settle(self) -> None:
        """Pause all crews, and wait until no group has unsettled messages."""
        for crew in self._crews:
            if not crew.rest(GOES_ON_SECONDS_MAX):
                crew.faults.append("at the end: sends are answered no more")
        self._all_come("at the end")
        for crew in self._crews:
            self._until(crew, lambda crew=crew: self._left(crew), "at the end")  # type: ignore[misc]
            if not crew.faults:
                crew.nothing_is_left()

    def _left(self, crew: Crew) -> list[str]:
        lags = {each.name: self._target.lag(each.name, each.sent.topic) for each in crew.groups}
        return [f"{name} has not settled {lag}" for name, lag in lags.items() if lag]

    def finish(self) -> None:
        """Settle all groups, kill everything at the same time, and check that only new messages are
        delivered."""
        self.settle()
        self._target.kill(ALL)
        self.kills[ALL] += 1
        for crew in self._crews:
            crew.work()
        self._rounds(ROUNDS[0], "after the kill of all")
        self.settle()

    def finding(self, crew: Crew) -> Finding:
        """Compare the stored messages with the answers to a crew's clients."""
        copies = Counter[str]()
        for sent in crew.topics:
            stored = self._target.stored(sent.topic)
            crew.faults += stored.troubles
            here = Counter(
                message.body.decode() for its in stored.messages.values() for message in its
            )
            groups = [group.history() for group in crew.groups if group.sent is sent]
            crew.faults += judge(sent.acknowledged, here, groups)
            copies += here
        deliveries = Counter(step.kind for group in crew.groups for _, step in group.steps)
        wanted = sum(len(group.delivered) for group in crew.groups)
        figures = {
            "acknowledged": sum(len(sent.acknowledged) for sent in crew.topics),
            "failed": crew.sends_failed,
            "stored twice": copies.total() - len(copies),
            "delivered": deliveries[Kind.DELIVERED],
            "again": deliveries[Kind.DELIVERED] - wanted,
            "settled": deliveries[Kind.SETTLED],
        }
        client = f"{crew.language.language} {crew.language.version}"
        return Finding(client, self._target.copies, self.kills, figures, crew.faults)


def run(
    languages: Sequence[Prepared], folder: Path, *, copies: int, kills: int, seed: int
) -> list[Finding]:
    """Run clients of all languages on one cluster at the same time.

    Args:
        folder: for stores and logs.
        kills: number of kills of each victim; then all are killed at the same time.
    """
    ports = PortBlock()
    target = KillableCluster(folder / "server", ports, copies)
    crews: list[Crew] = []
    scenes = []
    try:
        target.start()
        for language in languages:
            prefix = f"{language.language[:2].lower()}-killed"
            scenes.append(Scene(target, language, prefix, folder / language.language))
            crews.append(Crew(scenes[-1], language, blind=language.language in BLIND))
        chance = random.Random(seed)
        conductor = Conductor(target, crews, chance)
        plan = [*VICTIMS] * kills
        chance.shuffle(plan)
        for victim in plan:
            if any(crew.faults for crew in crews):
                break
            print(f"{copies} copies: {victim} is killed", flush=True)
            conductor.kill(victim)
        if not any(crew.faults for crew in crews):
            conductor.finish()
        return [conductor.finding(crew) for crew in crews]
    finally:
        for crew in crews:
            crew.close()
        for scene in scenes:
            scene.close()
        target.stop()
        ports.close()
