"""Groups under torture: members join, leave, are killed, are stopped; queues are added; brokers and
the offset service are killed. Real processes; the rules are in `judge.py`.

    ROCKOON_TEST_SEEDS=1234 .venv/bin/python -m pytest tests/torture

repeats the choices of a seed (not the timing).
"""

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
from torture.chaos import MemberProcess, Members
from torture.judge import Call, Span, Verdict, judge

import rockoon
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from support.seeds import seeds

TOPIC = "tortured"
GROUPS = ("plain", "orderly")
SETTINGS: dict[str, dict[str, object]] = {
    "offset": {"heartbeat_seconds": 0.4, "lease_seconds": 2.0, "handover_seconds_max": 2.0},
    "broker": {"flush": "sync"},
}
QUEUES_MAX = 12
SEND_SECONDS = 0.01
WATCH_SECONDS = 0.1
SETTLE_SECONDS_MAX = 90.0


class Load:
    """Messages at a steady pace, and the positions of the acknowledged ones."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acknowledged: dict[str, set[int]] = defaultdict(set)
        self.stopping = False

    async def run(self) -> None:
        pending: list[Receipt] = []
        number = 0
        while not self.stopping:
            for _ in range(3):
                pending.append(self._producer.send(TOPIC, b"%d" % number))
                number += 1
            await asyncio.sleep(SEND_SECONDS)
            while pending and pending[0].done:
                await self._take(pending.pop(0))
        for receipt in pending:
            await self._take(receipt)

    async def _take(self, receipt: Receipt) -> None:
        try:
            result = await receipt
        except RockoonError as error:
            # Not acknowledged: it may or may not be stored.
            assert error.retriable, error
        else:
            self.acknowledged[str(result.queue)].add(result.queue_offset)


class Torture:
    """One run."""

    def __init__(self, local: LocalCluster, cluster: rockoon.Cluster, members: Members) -> None:
        self.local = local
        self.cluster = cluster
        self.members = members
        self.stopping = False
        self.deeds: dict[str, int] = defaultdict(int)
        self._stored: dict[tuple[str, str], tuple[int, int]] = {}

    async def watch_progress(self) -> None:
        """No stored offset and no epoch ever decreases: there is no reset here."""
        while not self.stopping:
            try:
                await self.check_progress()
            except RockoonError as error:
                assert error.retriable, error
            await asyncio.sleep(WATCH_SECONDS)

    async def check_progress(self) -> None:
        for group in GROUPS:
            for each in await self.cluster.admin.progress(group, TOPIC):
                key, now = (group, str(each.queue)), (each.epoch, each.offset)
                before = self._stored.setdefault(key, now)
                assert now[0] >= before[0], f"{key}: epoch went back from {before} to {now}"
                assert now[1] >= before[1], f"{key}: progress went back from {before} to {now}"
                self._stored[key] = now

    async def is_all_stored(self) -> bool:
        """Return whether every group's progress is at the end of every queue."""
        try:
            ends = {
                (each.queue.topic, each.queue.broker, each.queue.queue_id): each.state.max_offset
                for each in (await self.cluster.admin.describe_topic(TOPIC)).queues
                if each.state is not None
            }
            for group in GROUPS:
                stored = {
                    (each.queue.topic, each.queue.broker, each.queue.queue_id): each.offset
                    for each in await self.cluster.admin.progress(group, TOPIC)
                }
                if stored != ends:
                    return False
        except RockoonError as error:
            assert error.retriable, error
            return False
        return True

    async def hurt(self, seconds: float, processes_max: int, chance: random.Random) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            running = self.members.running
            deeds = ["start"] * 3 + ["leave", "kill", "stop"] * (len(running) > 2)
            deeds += ["go on"] * 3 * bool(self.members.stopped) + ["expand", "offset", "broker"]
            deed = chance.choice(deeds)
            if deed == "start" and len(running) >= processes_max:
                continue
            self.deeds[deed] += 1
            await self._do(deed, chance)
            await asyncio.sleep(chance.uniform(0.1, 0.8))

    async def _do(self, deed: str, chance: random.Random) -> None:
        members = self.members
        match deed:
            case "start":
                groups = [chance.choice(GROUPS) for _ in range(chance.randint(1, 4))]
                members.start(groups)
            case "leave":
                members.leave(chance.choice(members.running))
            case "kill":
                members.kill(chance.choice(members.running))
            case "stop":
                members.stop(chance.choice(members.running))
            case "go on":
                members.go_on(chance.choice(members.stopped))
            case "expand":
                if len((await self.cluster.route(TOPIC)).queues) < QUEUES_MAX:
                    broker = chance.choice(self.local.brokers)
                    await self.cluster.admin.update_topic(TOPIC, add={broker: 1})
            case "offset":
                await self._restart("offset", "offset service down")
            case "broker":
                await self._restart(chance.choice(self.local.brokers), "broker down")

    async def _restart(self, node: str, what: str) -> None:
        from_ns = time.monotonic_ns()
        await asyncio.to_thread(self.local.kill, node)
        await asyncio.to_thread(self.local.start, node)
        self.members.outage(what, from_ns)

    async def settle(self) -> None:
        """Resume all processes, and wait until all messages are handled and committed."""
        for each in self.members.stopped:
            self.members.go_on(each)
        self.members.start(GROUPS)
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not await self.is_all_stored():
            assert time.monotonic() < deadline, (
                f"not all is handled: {await self.cluster.admin.progress('', TOPIC)}\n"
                f"{self.members.errors()}"
            )
            await asyncio.sleep(WATCH_SECONDS)
        leaving: list[MemberProcess] = self.members.running
        for each in leaving:
            self.members.leave(each)
        for each in leaving:
            await self.members.wait_left(each)


async def torture(directory: Path, seed: int, seconds: float, processes_max: int) -> Verdict:
    chance = random.Random(seed)
    async with (
        LocalCluster(brokers=2, settings=SETTINGS) as local,
        rockoon.connect(local.nameservers) as cluster,
        cluster.producer() as producer,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
        members = Members(local, directory, TOPIC)
        run, load = Torture(local, cluster, members), Load(producer)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(run.watch_progress())
                sending = tasks.create_task(load.run())
                members.start(GROUPS)
                members.start(GROUPS)
                await run.hurt(seconds, processes_max, chance)
                load.stopping = True
                await sending
                await run.settle()
                run.stopping = True
                await watching
        finally:
            members.end()
        verdict = judge(members.calls(), GROUPS, load.acknowledged, members.spans)
        sent = sum(map(len, load.acknowledged.values()))
    print(
        f"{sent} messages acknowledged, {verdict.calls} calls in {len(members.processes)} "
        f"processes, {verdict.changes_of_owner} changes of owner; {dict(run.deeds)}; "
        f"duplicates {dict(verdict.duplicates)}, late calls {dict(verdict.late)}"
    )
    assert not verdict.faults, "\n".join(verdict.faults[:20])
    assert not members.errors()
    assert verdict.changes_of_owner
    return verdict


@pytest.mark.parametrize("seed", seeds(1))
async def test_groups_lose_nothing_and_share_nothing_whatever_is_done_to_them(
    tmp_path: Path, seed: int
) -> None:
    await torture(tmp_path, seed, seconds=7, processes_max=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
async def test_fifty_members_under_torture_for_minutes(tmp_path: Path, seed: int) -> None:
    await torture(tmp_path, seed, seconds=180, processes_max=16)


# The judge finds each kind of violation.


def call(member: str, epoch: int, offset: int, begin: int, **more: object) -> Call:
    end = more.get("end", begin + 1)
    group = str(more.get("group", "orderly"))
    return Call(group, member, "q", epoch, offset, begin, end)  # type: ignore[arg-type]


def faults(calls: list[Call], spans: tuple[Span, ...] = (), acknowledged: int = 0) -> list[str]:
    groups = {each.group for each in calls} or {"orderly"}
    return judge(calls, groups, {"q": range(acknowledged)}, spans).faults


def test_a_message_that_nobody_handled_or_whose_handling_was_cut_off_is_missed() -> None:
    calls = [call("a", 1, 0, 0), call("a", 1, 1, 10, end=None)]
    assert faults(calls, acknowledged=1) == []
    assert "never handled q [1]" in faults(calls, acknowledged=2)[0]


def test_a_former_owner_that_begins_a_call_is_found_and_excused_only_where_there_is_no_order() -> (
    None
):
    calls = [call("a", 1, 0, 0), call("b", 2, 1, 10), call("a", 1, 1, 20)]
    stopped, down = Span("stopped", "a", 5, 15), Span("offset service down", "", 5, 15)
    assert any("owns the queue" in fault for fault in faults(calls, (stopped, down)))
    plain = [each._replace(group="plain") for each in calls]
    assert any("owns the queue" in fault for fault in faults(plain, (stopped,)))
    assert faults(plain, (down,)) == []


def test_a_gap_a_step_back_and_two_at_once_are_no_order() -> None:
    for second in (call("a", 1, 2, 10), call("a", 1, 0, 10)):
        assert any("comes next" in each for each in faults([call("a", 1, 0, 0), second]))
    calls = [call("a", 1, 0, 0, end=20), call("a", 1, 1, 10)]
    assert any("begins within" in fault for fault in faults(calls))
    plain = [each._replace(group="plain") for each in calls]
    assert faults(plain) == []


def test_handling_again_is_a_fault_unless_the_member_was_killed_before_it_could_store() -> None:
    calls = [call("a", 1, 0, 0), call("b", 2, 0, 10)]
    assert any("and again" in fault for fault in faults(calls))
    assert faults(calls, (Span("killed", "a", 5, 15),)) == []
    assert faults(calls, (Span("killed", "b", 5, 15),)) != []
