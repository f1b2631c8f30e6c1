"""`make mixed`: services of two versions together, under load.

A cluster of a former commit's programs runs, with clients of both versions of the SDK. The services
are replaced one by one by those of this checkout, and back; then the same in the opposite order.
So each pair of services has run with each of the two being the newer one.

No call of a client may fail, and each acknowledged message must be received.

Exit status: 0 if all held, 1 if a call failed or a message is missing, 2 if this machine cannot
have the former programs.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from upgrade.former import programs

import rockoon
from bench.compare.programs import ROOT, NotHere, run
from bench.layers.checkout import COMMIT
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster

KINDS = ("nameserver", "broker", "offset", "gateway")
THIS = {"PYTHONPATH": str(ROOT)}
SECONDS_MAX = 150.0
LOOK_SECONDS = 0.2
CALLS_BETWEEN = 3
SETTINGS: dict[str, dict[str, object]] = {
    # Gateways of former commits have no `admin_listen`.
    "gateway": {"tls": "off", "create_groups": True, "admin_listen": None},
    "nameserver": {"node_lease_seconds": 5},
}


class Load:
    """A process with clients of one version; see `upgrade.load`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.done: dict[str, int] = {}
        self.failures: list[str] = []
        self.missing: dict[str, int] = {}
        self.result: dict[str, Any] | None = None

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = json.loads(raw)
            self.result = line.get("result", self.result)
            self.done = line.get("done", self.done)
            self.failures = line.get("failures", self.failures)
            self.missing = line.get("missing", self.missing)

    def has_continued(self, since: Mapping[str, int]) -> bool:
        """Return whether each client has made some calls since then."""
        if self.process.returncode is not None:
            raise AssertionError(f"the clients of {self.name} have ended")
        return bool(self.done) and all(
            self.done[name] > since.get(name, 0) + CALLS_BETWEEN for name in self.done
        )

    async def stop(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), SECONDS_MAX)
        except TimeoutError:
            missing = f"{self.name} has not received all messages: {self.missing}"
            raise AssertionError(missing) from None
        await until(lambda: self.result is not None, f"the result of {self.name}")
        assert self.result is not None
        return self.result


async def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up waiting for {what}")
        await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def load(
    folder: Path, name: str, version: Mapping[str, str], local: LocalCluster, *, gateway: bool
) -> AsyncIterator[Load]:
    command = [sys.executable, "-m", "upgrade.load", "--prefix", f"{name}-"]
    command += ["--nameservers", ",".join(local.nameservers)]
    if gateway and local.gateway is not None:
        command += ["--gateway", local.gateway]
    paths = {"PYTHONPATH": f"{version['PYTHONPATH']}:{ROOT / 'tests'}"}
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=os.environ | paths,
            limit=1 << 22,
        )
    found = Load(name, process)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(found.read())
        try:
            yield found
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            reading.cancel()


class Mixed:
    """A cluster whose services change their version.

    Args:
        local: the running cluster.
        former: environment of the former programs.
        loads: the clients.
    """

    def __init__(
        self, local: LocalCluster, former: Mapping[str, str], loads: Sequence[Load]
    ) -> None:
        self._local = local
        self._former = former
        self._loads = loads
        self.longest_seconds = 0.0

    def processes(self, kinds: Sequence[str]) -> list[str]:
        """Names of the nodes, kind by kind."""
        return [node.name for kind in kinds for node in self._local.nodes if str(node.kind) == kind]

    async def go(self, order: Sequence[str], version: Mapping[str, str]) -> None:
        """Replace each service of an order; the next one when all clients have continued."""
        for name in order:
            since = {each.name: dict(each.done) for each in self._loads}
            began = time.monotonic()
            node = self._local.node(name)
            await asyncio.to_thread(self._local.stop, name)
            node.environment["PYTHONPATH"] = version["PYTHONPATH"]
            await asyncio.to_thread(self._local.start, name, wait=False)
            await self._local.wait_ready(name)
            await self._well(name)
            for each in self._loads:
                done = since[each.name]
                what = f"the clients of {each.name} after {name}: {done} calls, now {each.done}"
                await until(partial(each.has_continued, done), what)
                if each.failures:
                    raise AssertionError(f"{each.name} after {name}: {each.failures}")
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    async def _well(self, name: str) -> None:
        """Wait until all copies of all logs are in sync."""
        deadline = time.monotonic() + SECONDS_MAX
        async with rockoon.connect(self._local.nameservers) as cluster:
            while True:
                try:
                    logs = await cluster.admin.logs.list()
                    if all(
                        log.leader is not None and len(log.in_sync) >= log.copies for log in logs
                    ):
                        return
                except RockoonError:
                    pass
                if time.monotonic() > deadline:
                    raise AssertionError(f"copies are not in sync after {name}")
                await asyncio.sleep(LOOK_SECONDS)


async def trial(
    folder: Path, commit: str, copies: int, orders: Sequence[Sequence[str]]
) -> list[str]:
    """Run one cluster through orders of services, up and back; return the faults."""
    former = programs(commit)
    local = LocalCluster(
        folder / "cluster",
        nameservers=2,
        brokers=1,
        replicas=copies,
        gateway=0,
        settings=SETTINGS,
        environment=dict.fromkeys(KINDS, former),
        durable=False,
    )
    wrong: list[str] = []
    async with (
        local,
        load(folder, "former", former, local, gateway=False) as old,
        load(folder, "present", THIS, local, gateway=True) as new,
    ):
        loads = (old, new)
        mixed = Mixed(local, former, loads)
        try:
            for each in loads:
                await until(partial(each.has_continued, {}), f"the start of {each.name}")
            for order in orders:
                for way, version in (("up", THIS), ("back", former)):
                    await mixed.go(mixed.processes(order), version)
                    print(f"    {way}: {', '.join(order)}: no call failed", flush=True)
            results = [await each.stop() for each in loads]
        except (AssertionError, rockoon.local.LocalClusterError, TimeoutError) as failure:
            return [str(failure)]
    for each, result in zip(loads, results, strict=True):
        faults = ("failures", "missing", "out of order", "stored twice")
        wrong += [f"{each.name}: {name}: {result[name]}" for name in faults if result[name]]
        print(f"    {each.name}: {result['acknowledged']} messages acknowledged and received")
    print(f"    the longest replacement of a service took {mixed.longest_seconds:.1f} s")
    return wrong


async def run_step(folder: Path, say: Callable[[str], None]) -> None:
    """The step of `make day2`: three copies, commit 8e2a733, each service first and last.

    Raises:
        AssertionError: a call failed, or a message is missing.
    """
    try:
        wrong = await trial(folder, COMMIT, 3, [KINDS, KINDS[::-1]])
    except NotHere as reason:
        say(f"not run: {reason}")
        return
    assert not wrong, "; ".join(wrong)
    say(f"up and back between commit {COMMIT[:7]} and this checkout: no call failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mixed", description=__doc__)
    parser.add_argument(
        "--commit", action="append", help=f"a former one; default: {COMMIT[:7]}, HEAD~1"
    )
    parser.add_argument("--copies", type=int, choices=(1, 3), help="of each log; default: both")
    parser.add_argument("--all-orders", action="store_true", help="24 orders instead of two")
    parser.add_argument("--keep", type=Path, help="directory for stores and logs")
    arguments = parser.parse_args()
    commits = arguments.commit or [COMMIT, run(["git", "-C", ROOT, "rev-parse", "HEAD~1"]).strip()]
    orders = list(itertools.permutations(KINDS))
    if not arguments.all_orders:
        orders = [KINDS, KINDS[::-1]]
    failed = False
    numbers = (1, 3) if arguments.copies is None else (arguments.copies,)
    for commit, copies in itertools.product(commits, numbers):
        print(f"commit {commit[:7]}, {copies} copies of each log", flush=True)
        with tempfile.TemporaryDirectory(prefix="rockoon-mixed-") as name:
            folder = (arguments.keep or Path(name)) / f"{commit[:7]}-{copies}"
            folder.mkdir(parents=True)
            try:
                wrong = asyncio.run(trial(folder, commit, copies, orders))
            except NotHere as reason:
                print(f"make mixed cannot run: {reason}", file=sys.stderr)
                return 2
        for line in wrong:
            print(f"    FAILED: {line[:2000]}", flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
