"""A whole run: a cluster if none is named, the processes of the load, the results."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import rockoon
from load.plan import Plan
from load.profile import Profile, commit_of, make_profile
from load.scenarios import DEFAULTS, SCENARIOS
from load.usage import UsageMeter
from rockoon.errors import GroupNotFound, TopicNotFound
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.local.process import NodeKind

ROOT = Path(__file__).parents[2]
LOOK_SECONDS = 1.0
STOP_SECONDS_MAX = 20.0


class LoadFailed(Exception):
    """A run did not end normally; the text names the failed process and its log."""


def plan_of(options: Namespace, endpoint: str) -> Plan:
    """Return the plan from the options."""
    scenario = SCENARIOS[options.scenario]
    numbers = {
        name: getattr(options, name)
        if getattr(options, name) is not None
        else scenario.number(name)
        for name in DEFAULTS
    }
    return Plan(
        scenario=options.scenario,
        endpoint=endpoint,
        run=random.getrandbits(32),
        seconds=options.minutes * 60,
        shape=options.shape,
        workers=options.workers,
        kill_seconds=options.kill_seconds,
        check=options.check,
        commit=options.commit or commit_of(ROOT),
        **numbers,
    )


def run(options: Namespace, say: Callable[[str], None]) -> tuple[Path, Profile]:
    """Execute a run.

    Args:
        options: of `load.options`.
        say: called with progress messages.

    Returns:
        The directory of the results, and its profile.

    Raises:
        LoadFailed: a process of the run failed.
        KeyboardInterrupt: before there was a load, or for the second time; the first one ends the
            run early.
    """
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        local = None
        endpoint = options.endpoint
        if endpoint is None:
            settings = {"broker": {"flush": options.flush, "commit_log_file_bytes": "256MiB"}}
            local = stack.enter_context(LocalCluster(brokers=options.brokers, settings=settings))
            endpoint = ",".join(local.nameservers)
        plan = plan_of(options, endpoint)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        directory = Path(options.dir) / f"{stamp}-{plan.scenario}-{plan.run:08x}"
        directory.mkdir(parents=True)
        (directory / "plan.json").write_text(plan.to_json())
        say(f"{plan.scenario} for {plan.seconds:.0f} s on {endpoint}; results in {directory}")
        # One loop for both: gRPC uses the first loop that it has seen.
        loop = stack.enter_context(asyncio.Runner())
        if local is None and not options.keep:
            stack.callback(lambda: loop.run(clean_up(plan)))
        loop.run(set_up(plan))
        meter = UsageMeter({n.name: n.pid for n in local.nodes if n.pid} if local else {})
        port = options.port or choose_port()
        processes = Processes(directory, meter)
        stack.callback(processes.end)
        processes.start("master", "master", "--dir", str(directory), "--port", str(port))
        if plan.check != "off":
            processes.start("auditor", "audit", "--dir", str(directory))
        if options.port is None:
            for number in range(plan.workers):
                processes.start(f"worker-{number}", "worker", "--port", str(port))
        killer = None
        if local is not None and plan.kill_seconds:
            killer = Killer(local, plan.kill_seconds, meter, say)
        stopped_early = False
        try:
            processes.wait(killer)
        except KeyboardInterrupt:
            stopped_early = True
            say("Stopping: what was sent is still read and checked. Ctrl-C again gives that up.")
            processes.stop_users()
            processes.wait()
    profile = make_profile(plan, directory, meter.usages, load_average)
    return directory, profile | {"stopped_early": stopped_early}


class Killer:
    """Kills processes of a cluster in turn, and starts them again immediately.

    Args:
        local: the cluster.
        seconds: between two kills.
        meter: receives the new processes.
        say: called with the name of the killed process.
    """

    def __init__(
        self, local: LocalCluster, seconds: float, meter: UsageMeter, say: Callable[[str], None]
    ) -> None:
        self._local = local
        self._seconds = seconds
        self._meter = meter
        self._say = say
        others = [
            node.name for node in local.nodes if node.kind in (NodeKind.OFFSET, NodeKind.NAMESERVER)
        ]
        self._victims = itertools.cycle([n for other in others for n in (*local.brokers, other)])
        self._next_at = time.monotonic() + seconds

    def look(self) -> None:
        """Kill the next one if it is due."""
        if time.monotonic() < self._next_at:
            return
        victim = next(self._victims)
        self._say(f"kill -9 {victim}")
        self._local.kill(victim)
        self._local.start(victim, wait=False)
        pid = self._local.node(victim).pid
        if pid is not None:
            self._meter.watch(victim, pid)
        self._next_at = time.monotonic() + self._seconds


class Processes:
    """The processes of a run, their logs, and their consumption.

    Args:
        directory: directory of the results.
        meter: measures them while they run.
    """

    def __init__(self, directory: Path, meter: UsageMeter) -> None:
        self._directory = directory
        self._meter = meter
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `python -m load` with arguments; its output is in `name`.log."""
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "load", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": path},
                # A terminal sends Ctrl-C to its whole process group; they end in order.
                process_group=0,
            )
        self._running[name] = process
        self._meter.watch(name, process.pid)

    def wait(self, killer: Killer | None = None) -> None:
        """Wait until all have ended.

        Args:
            killer: runs while users work.

        Raises:
            LoadFailed: one ended with another status than 0.
        """
        while self._running:
            self._meter.look()
            if killer is not None and "master" in self._running:
                killer.look()
            for name, process in list(self._running.items()):
                try:
                    status = process.wait(LOOK_SECONDS / len(self._running))
                except subprocess.TimeoutExpired:
                    continue
                del self._running[name]
                if status != 0:
                    raise LoadFailed(f"the {name} ended with {status}\n{self._tail(name)}")

    def stop_users(self) -> None:
        """Let the master end the run normally; the others end with it."""
        master = self._running.get("master")
        if master is not None:
            master.send_signal(signal.SIGINT)

    def end(self) -> None:
        """End the running ones."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _tail(self, name: str) -> str:
        path = self._directory / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([f"the end of its log {path}:", *lines])


async def set_up(plan: Plan) -> None:
    """Create the topics and groups of a run."""
    async with rockoon.connect(plan.endpoint) as cluster:
        for name in plan.topic_names:
            route = await cluster.admin.create_topic(name, queues_per_broker=plan.queues)
        await cluster.route(plan.topic_names[-1], min_revision=route.modified_revision)
        for name in plan.group_names:
            await cluster.admin.create_group(name)


async def clean_up(plan: Plan) -> None:
    """Delete them; those that were not created are skipped."""
    async with rockoon.connect(plan.endpoint) as cluster:
        for name in plan.group_names:
            with contextlib.suppress(GroupNotFound):
                await cluster.admin.delete_group(name)
        for name in plan.topic_names:
            with contextlib.suppress(TopicNotFound):
                await cluster.admin.delete_topic(name)
