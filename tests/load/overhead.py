"""Whether the load itself is the limit: cost of a message in its sender's process, in three ways.

The bare SDK (`send` in a loop, `drain` at times, as `make bench` does it); `load.sender` without
Locust; and `load.sender` as a user in a worker of Locust. One sender each, in turns, on one
cluster, with bodies of one size. If other programs use the machine, CPU time is a better measure
than rates.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rockoon
from load import payload
from load.account import Account
from load.options import parser
from load.plan import Plan
from load.run import plan_of, set_up
from load.sender import SEND, Lane, Sender
from rockoon.local import LocalCluster

WAYS = ("the SDK bare", "the sender alone", "the sender under Locust")
REPORT_SECONDS = 0.5
DRAIN_EVERY = 500


@dataclass(frozen=True)
class Cost:
    """Of one turn."""

    cpu_us: float
    """Of the sending process, for each acknowledged message."""
    per_second: float


def measure(directory: Path, seconds: float, turns: int) -> dict[str, Cost]:
    """Measure all ways in turns; the cheapest turn of each counts.

    Args:
        directory: parent of the results of runs under Locust.
        seconds: of each turn.
        turns: of each way.
    """
    directory.mkdir(parents=True, exist_ok=True)
    best: dict[str, Cost] = {}
    settings = {"broker": {"flush": "async", "commit_log_file_bytes": "1GiB"}}
    with LocalCluster(brokers=1, settings=settings) as local:
        endpoint = ",".join(local.nameservers)
        for _ in range(turns):
            for name in WAYS:
                cost = _turn(name, endpoint, directory, seconds)
                if name not in best or cost.cpu_us < best[name].cpu_us:
                    best[name] = cost
    return best


def _turn(name: str, endpoint: str, directory: Path, seconds: float) -> Cost:
    arguments = ["run", "--scenario", "produce", "--minutes", str(seconds / 60)]
    arguments += ["--endpoint", endpoint, "--users", "1", "--workers", "1", "--check", "off"]
    arguments += ["--dir", str(directory)]
    if name == WAYS[2]:
        known = set(directory.iterdir())
        _load(*arguments)
        (made,) = set(directory.iterdir()) - known
        profile = json.loads((made / "profile.json").read_text())
        sent = profile["operations"][SEND]
        return Cost(profile["workers_cpu_seconds"] / sent["count"] * 1e6, sent["per_second"])
    plan = plan_of(parser({}).parse_args(arguments), endpoint)
    (directory / "plan.json").write_text(replace(plan, scenario=name).to_json())
    return Cost(**json.loads(_load("alone", "--dir", str(directory))))


def _load(*arguments: str) -> str:
    """Return the output of `python -m load`."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "load", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return done.stdout


async def send_alone(plan: Plan) -> dict[str, float]:
    """Run one sender in this process; return the fields of a Cost."""
    await set_up(plan)
    topic = plan.topic_names[0]
    async with rockoon.connect(plan.endpoint) as cluster:
        queues = (await cluster.route(topic)).queues
        began, cpu_began = time.perf_counter(), time.process_time()
        if plan.scenario == WAYS[0]:
            count = await _send_bare(cluster, topic, plan)
        else:
            account = Account()
            streams = [payload.stream_of(0, number) for number in range(len(queues))]
            lanes = [
                Lane(topic, stream, {"queue": queue})
                for stream, queue in zip(streams, queues, strict=True)
            ]
            sender = Sender(
                cluster,
                account,
                plan.run,
                lanes,
                body_bytes=plan.body_bytes,
                window=plan.window,
            )
            count = await _send_some(sender, account, plan.seconds)
        cpu_seconds, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    return {"cpu_us": cpu_seconds / count * 1e6, "per_second": count / seconds}


async def _send_bare(cluster: rockoon.Cluster, topic: str, plan: Plan) -> int:
    body = b"x" * plan.body_bytes
    count = 0
    async with cluster.producer() as producer:
        began = time.perf_counter()
        while time.perf_counter() - began < plan.seconds:
            for _ in range(DRAIN_EVERY):
                producer.send(topic, body)
            count += DRAIN_EVERY
            await producer.wait_capacity()
    return count


async def _send_some(sender: Sender, account: Account, seconds: float) -> int:
    stop = asyncio.Event()
    count = 0

    def take() -> int:
        found: Any = account.take().latencies.get(SEND, ())
        return len(found)

    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(sender.run(stop), name="sender")
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and not sending.done():
            await asyncio.sleep(REPORT_SECONDS)
            count += take()
        stop.set()
    return count + take()
