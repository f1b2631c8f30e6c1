"""A thousand connected push consumers; half of them vanish without a message, repeatedly."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

import rockoon.sync
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import PortBlock
from support.waiting import hold_up

TESTS = Path(__file__).resolve().parents[1]
COUNT = 500
TOPIC, GROUP = "vanishing", "vanishers"
LINE_SECONDS_MAX = 240.0
# A client that calls no gateway holds its messages for a minute.
BOUND_SECONDS = 60.0
# Allowance for a busy machine.
LATE_SECONDS_MAX = 60.0
# Time for which a silent client is known; two minutes by default.
KNOWN_SECONDS = 30
# The first two allocate memory that the process keeps.
ROUNDS = 3
GROWTH_BYTES_MAX = 8 << 20
LOOK_SECONDS = 0.2
# Pages with at least one used block are not returned.
LEFT_BYTES_MAX = 10 << 20
# Kept batches are dropped after a minute, the memory is returned 75 seconds after the clients left.
RETURN_SECONDS_MAX = 75.0 + 60.0


class ManyClients:
    """The program `many_clients`; a context manager."""

    def __init__(self, address: str, prefix: str, log: Path, count: int = COUNT) -> None:
        self._lines = queue.Queue[str]()
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gateway.many_clients"),
                    *(address, GROUP, TOPIC, prefix, str(count)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                text=True,
            )
        self._got = Counter[tuple[str, int]]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("got "):
                    _, body, attempt = line.split()
                    self._got[body, int(attempt)] += 1
                else:
                    self._lines.put(line.strip())

    @property
    def got(self) -> Counter[tuple[str, int]]:
        """Return further received messages: body and attempt."""
        return Counter(dict(list(self._got.items())))

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def line(self) -> str:
        return self._lines.get(timeout=LINE_SECONDS_MAX)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Gateway:
    """A cluster's gateway, by the system's figures and its metrics."""

    def __init__(self, local: LocalCluster, metrics: str) -> None:
        assert local.gateway is not None
        self.address = local.gateway
        self._metrics = metrics
        self._proc = Path(f"/proc/{local.node('gateway').pid}")

    @property
    def descriptors(self) -> int:
        return len(list((self._proc / "fd").iterdir()))

    @property
    def memory_bytes(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", (self._proc / "status").read_text())
        assert found is not None
        return int(found[1]) << 10

    def measure(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self._metrics}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = [line.rsplit(" ", 1)[1] for line in lines if re.match(rf"{name}[ {{]", line)]
        return round(sum(map(float, found)))


def until(what: str, holds: Callable[[], bool], seconds_max: float = LINE_SECONDS_MAX) -> float:
    """Wait until a condition is true; return seconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds_max, f"not in {seconds_max:.0f} s: {what}"
        hold_up(LOOK_SECONDS)
    return time.monotonic() - began


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[Gateway, rockoon.sync.Cluster]]:
    ports = PortBlock()
    metrics = f"127.0.0.1:{ports.choose()}"
    # The fullness of the test machine's disk must not matter.
    roomy = {"disk_full_percent": 100, "disk_forced_percent": 100}
    own = {"metrics_listen": metrics, "client_seconds_max": KNOWN_SECONDS}
    settings = {"gateway": own, "broker": roomy}
    try:
        with (
            LocalCluster(tmp_path / "cluster", gateway=0, settings=settings) as local,
            rockoon.sync.connect(local.nameservers) as cluster,
        ):
            cluster.call(cluster.admin.create_topic(TOPIC, queues_per_broker=8))
            yield Gateway(local, metrics), cluster
    finally:
        ports.close()


def send(cluster: rockoon.sync.Cluster, prefix: str) -> set[str]:
    bodies = {f"{prefix}{number}" for number in range(COUNT)}
    cluster.send_many(TOPIC, [body.encode() for body in bodies])
    return bodies


@pytest.mark.soak
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
def test_half_of_a_thousand_clients_vanish_and_the_others_get_what_they_held(
    how: signal.Signals, gateway: tuple[Gateway, rockoon.sync.Cluster], tmp_path: Path
) -> None:
    at, cluster = gateway
    idle = at.descriptors
    send(cluster, "kept")
    log = tmp_path / "clients.log"
    with ManyClients(at.address, "stays", log) as staying:
        assert staying.line() == "holding"
        descriptors, memory = [], []
        for number in range(ROUNDS):
            before = staying.got
            wanted = send(cluster, f"held{number}-")
            with ManyClients(at.address, f"goes{number}", log) as going:
                assert going.line() == "holding"
                most = at.descriptors, at.memory_bytes
                for each in (staying, going):
                    each.tell("park")
                until(
                    "all wait",
                    lambda: at.measure("rockoon_gateway_parked_receivers") == 2 * COUNT,
                )
                going.signal(how)
                seconds = until(
                    "what was held comes to the others",
                    lambda: {body for body, _ in staying.got - before} >= wanted,  # noqa: B023
                    BOUND_SECONDS + LATE_SECONDS_MAX,
                )
                until(
                    "descriptors return",
                    lambda: at.descriptors <= idle + COUNT + 20,
                    BOUND_SECONDS + LATE_SECONDS_MAX,
                )
                assert staying.got - before == Counter({(body, 2): 1 for body in wanted})
                # No call waits for the vanished clients: the others get new messages immediately.
                until(
                    "only the others wait",
                    lambda: at.measure("rockoon_gateway_parked_receivers") <= COUNT,
                )
                before = staying.got
                wanted = send(cluster, f"new{number}-")
                until("what is new comes", lambda: (staying.got - before).total() >= COUNT)  # noqa: B023
                assert staying.got - before == Counter({(body, 1): 1 for body in wanted})
            until(
                "the vanished are forgotten",
                lambda: at.measure("rockoon_gateway_clients") == COUNT,
            )
            staying.tell("rest")
            assert staying.line() == "resting"
            descriptors.append(at.descriptors)
            memory.append(at.memory_bytes)
            print(
                f"{how.name}: {most[0]} descriptors and {most[1] >> 20} MiB with all, "
                f"{descriptors[-1]} and {memory[-1] >> 20} MiB after {seconds:.0f} s"
            )
        in_flight = cluster.call(cluster.admin.in_flight(GROUP, TOPIC))
        assert sum(each.in_flight for each in in_flight.queues) == COUNT
        staying.tell("settle")
        assert staying.line() == f"settled {COUNT}"
        assert cluster.call(cluster.admin.lag(GROUP, TOPIC)).total_lag == 0
    assert memory[-1] - memory[1] < GROWTH_BYTES_MAX, memory
    until("all descriptors return", lambda: at.descriptors <= idle + 20)


@pytest.mark.soak
def test_the_memory_of_500_clients_returns_when_they_have_left(
    gateway: tuple[Gateway, rockoon.sync.Cluster], tmp_path: Path
) -> None:
    at, cluster = gateway
    before = most = 0
    # The first client loads modules, which stay.
    for count in (1, COUNT):
        send(cluster, f"returned{count}-")
        with ManyClients(at.address, f"leaves{count}", tmp_path / "clients.log", count) as clients:
            assert clients.line() == "holding"
            clients.tell("settle")
            assert clients.line() == f"settled {count}"
            most = at.memory_bytes
        until("all are forgotten", lambda: at.measure("rockoon_gateway_clients") == 0)
        if count == 1:
            before = at.memory_bytes
    with suppress(AssertionError):
        until(
            "the memory returns",
            lambda: at.memory_bytes <= before + LEFT_BYTES_MAX,
            RETURN_SECONDS_MAX + LATE_SECONDS_MAX,
        )
    print(f"{before >> 20} MiB, {most >> 20} with all, {at.memory_bytes >> 20} after they left")
    assert at.memory_bytes <= before + LEFT_BYTES_MAX
