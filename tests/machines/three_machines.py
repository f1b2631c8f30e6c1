"""docs/operate/three-machines.md: its commands run as written, on three machines with systemd.

Blocks say where they run:

    <!-- build -->       in the clone, with the network of this machine, before there are machines
    <!-- packages -->    not run: machines start with the files of its Debian packages
    <!-- on: NAMES -->   on these machines, in a login shell of root
    (none)               in the clone; `ssh` enters the namespaces of a machine
"""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from deploy.page_runs import BLOCK, REPOSITORY, Block, run_block
from hosts.network import Network, run
from machines.machine import LOOK_SECONDS, Machine, entering

from rockoon import sync
from rockoon.net.access import AccessKey
from rockoon.net.tls import Tls

PAGE = REPOSITORY / "docs" / "operate" / "three-machines.md"
NAMES = ("rockoon-1", "rockoon-2", "rockoon-3")
LOST = "rockoon-3"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
BUILD_SECONDS_MAX = 1800.0
BLOCK_SECONDS_MAX = 900.0
LOAD_SECONDS = 0.02
TOPIC = "load"
QUIET_SECONDS = 10.0


def sections() -> Iterator[tuple[str, list[Block]]]:
    """Yield the headings of the page with their blocks."""
    text = PAGE.read_text()
    starts = [*HEADING.finditer(text)]
    ends = [*(each.start() for each in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=True):
        found = []
        for each in BLOCK.finditer(text, start.end(), end):
            if each["language"] == "sh":
                line = text.count("\n", 0, each.start("text")) + 1
                found.append(Block(PAGE.name, line, start[1], each["mark"] or "", each["text"]))
        yield start[1], found


def blocks(mark: str) -> list[Block]:
    return [each for _, found in sections() for each in found if each.mark == mark]


def timed(block: Block, environment: dict[str, str], seconds_max: float, where: str) -> str:
    """Run a block in the clone, print its time, and return its output. Raises PageError."""
    done = run_block(block, REPOSITORY, environment, seconds_max)
    print(f"{done.seconds:7.1f} s  {block.page}:{block.line}  {where}", flush=True)
    return done.output


def build(folder: Path) -> None:
    """Run the blocks that need the network of this machine, and get the Debian packages.

    Raises:
        PageError: a block failed.
        CalledProcessError: the packages cannot be had.
    """
    for block in blocks("build"):
        timed(block, dict(os.environ), BUILD_SECONDS_MAX, "build")
    packages, archives = folder / "packages", folder / "archives"
    (packages / "usr").mkdir(parents=True)
    (archives / "partial").mkdir(parents=True)
    for block in blocks("packages"):
        own = ("--download-only", "--quiet", "-o", f"Dir::Cache::archives={archives}")
        subprocess.run([*shlex.split(block.text), *own], check=True, stdout=subprocess.DEVNULL)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, packages], check=True)


class Load(threading.Thread):
    """A client outside of the machines: it sends one message after the other until it is ended.

    Args:
        cluster: a connection.
    """

    def __init__(self, cluster: sync.Cluster) -> None:
        super().__init__(name="load")
        self._cluster = cluster
        self._ended = threading.Event()
        self._sent: list[bytes] = []
        self.longest_seconds = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        while self.failure is None and not self._ended.wait(LOAD_SECONDS):
            body = str(len(self._sent)).encode()
            began = time.monotonic()
            try:
                self._cluster.send(TOPIC, body)
            except Exception as failure:  # noqa: BLE001 - raised by `check`
                self.failure = failure
            else:
                self._sent.append(body)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    def check(self) -> None:
        """End the client, and read everything. Raises an error if a call failed or one is lost."""
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        missing = set(self._sent)
        for message in self._cluster.consume(TOPIC, timeout=QUIET_SECONDS):
            missing.discard(message.body)
            if not missing:
                break
        assert not missing, f"{len(missing)} of {len(self._sent)} acknowledged messages are lost"
        print(
            f"{len(self._sent)} messages acknowledged, none lost, none failed; the longest send "
            f"lasted {self.longest_seconds:.1f} s"
        )


class Stage:
    """The machines and the workstation; to be made by the first process of `apart`.

    Args:
        folder: of the workstation and of the machines, with the result of `build`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        network = Network(NAMES)
        network.make()
        self.machines = {
            name: Machine(name, network, folder, folder / "packages") for name in NAMES
        }
        # Names are resolved here too; the file is bound in this process's namespaces only.
        hosts = folder / "hosts"
        addresses = {**network.addresses, "localhost": "127.0.0.1"}
        hosts.write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))
        run("mount", "--bind", str(hosts), "/etc/hosts")
        home, programs = folder / "home", folder / "programs"
        home.mkdir()
        programs.mkdir()
        ssh = programs / "ssh"
        words = shlex.join(entering("PID")).replace("PID", f'$(cat {folder}/"${{1#root@}}".pid)')
        ssh.write_text(f'#!/bin/sh\nenter="{words}"\nshift\nexec $enter sh -c "cd; $*"\n')
        ssh.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self._environment = {**os.environ, "HOME": str(home), "PATH": path}

    def start(self) -> None:
        """Start all machines that are down, one after the other."""
        for machine in self.machines.values():
            if not machine.is_up:
                began = time.monotonic()
                machine.start()
                print(f"{time.monotonic() - began:7.1f} s  {machine.name} has started", flush=True)

    def run(self, block: Block) -> list[str]:
        """Run a block where it says, and return the output of each machine. Raises PageError."""
        if not block.mark:
            return [timed(block, self._environment, BLOCK_SECONDS_MAX, "workstation")]
        kind, _, names = block.mark.partition(": ")
        if kind != "on":
            raise ValueError(f"{block.page}, line {block.line}: <!-- {block.mark} --> is not known")
        outputs = []
        for name in names.split():
            login = ["bash", "-lc", f"cd; set -euo pipefail\n{block.text}"]
            there = replace(block, text=shlex.join(self.machines[name].inside(*login)))
            outputs.append(timed(there, self._environment, BLOCK_SECONDS_MAX, name))
        return outputs

    def run_section(self, heading: str) -> list[str]:
        """Run all blocks of a section that are not run by `build`. Raises PageError."""
        found = dict(sections())[heading]
        mine = [each for each in found if each.mark not in ("build", "packages")]
        return [output for block in mine for output in self.run(block)]

    def connection(self) -> sync.Cluster:
        """A connection from outside of the machines, with the operators' key."""
        own = self._folder / "home" / "rockoon-machines" / NAMES[0] / "tls"
        secret = self.machines[NAMES[0]].run("cat", "/root/ops-secret").strip()
        return sync.connect(
            [f"{name}:9876" for name in NAMES],
            tls=Tls(ca=own / "ca.crt", certificate=own / "tls.crt", key=own / "tls.key"),
            access=AccessKey("ops", secret),
        )


def run_page(stage: Stage) -> None:
    """Run the page from its third step on; a machine is lost before it is replaced.

    Raises:
        PageError: a block failed.
        AssertionError: a promise of the page does not hold.
    """
    stage.start()
    for heading in ("2. Certificates and settings", "3. Install", "4. Start", "5. Access keys"):
        stage.run_section(heading)
    *_, shown = stage.run_section("6. Check")
    assert shown.endswith("one coffee\n"), shown
    for heading in ("Logs", "Restart, upgrade, settings"):
        stage.run_section(heading)
    with stage.connection() as cluster:
        cluster.call(cluster.admin.create_topic(TOPIC, if_absent=True))
        load = Load(cluster)
        load.start()
        try:
            stage.machines[LOST].lose()
            print(f"           {LOST} is lost with its disk", flush=True)
            # The new machine of this name: bare.
            stage.start()
            *_, shown = stage.run_section("Replace a machine")
        finally:
            load.check()
    assert shown.endswith("one coffee\n"), shown
    stage.run_section("More logs")
    # With `existing`, a member of etcd that loses its disk again would start, and vote.
    for machine in stage.machines.values():
        machine.run("grep", "^ETCD_INITIAL_CLUSTER_STATE=new$", "/etc/rockoon/etcd.env")


UNITS = (
    "rockoon-etcd",
    "rockoon-nameserver",
    "rockoon-broker@broker-a",
    "rockoon-offset",
    "rockoon-gateway",
)
SINCE = re.compile(r"exposure level for (\S+)\.service: (\S+) (\w+)")


def property_of(machine: Machine, unit: str, name: str) -> str:
    return machine.run("systemctl", "show", unit, f"--property={name}", "--value").strip()


def wait_active(machine: Machine, unit: str, restarts: int, seconds_max: float = 180.0) -> None:
    """Wait until a unit has been restarted so often and is ready. Raises AssertionError."""
    deadline = time.monotonic() + seconds_max
    found = ("", "")
    while time.monotonic() < deadline:
        found = property_of(machine, unit, "NRestarts"), property_of(machine, unit, "ActiveState")
        if found == (str(restarts), "active"):
            return
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"{unit} of {machine.name}: restarts and state are {found}")


def run_faults(stage: Stage) -> None:
    """Processes and a machine fail; systemd starts them again. Raises AssertionError."""
    machine = stage.machines[NAMES[1]]
    for name, each in stage.machines.items():
        for unit in UNITS:
            assert property_of(each, unit, "NRestarts") == "0", f"{unit} of {name} was restarted"
            assert property_of(each, unit, "NotifyAccess") == "main"
    broker, gateway = UNITS[2], UNITS[4]
    machine.run("systemctl", "kill", "--signal=KILL", broker)
    wait_active(machine, broker, 1)
    folder = f"/run/systemd/system/{gateway}.service.d"
    machine.run("mkdir", "-p", folder)
    machine.run("sh", "-c", f"printf '[Service]\\nWatchdogSec=2\\n' >{folder}/watchdog.conf")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", gateway)
    machine.run("systemctl", "kill", "--signal=STOP", gateway)
    wait_active(machine, gateway, 1)
    machine.cut_power()
    stage.start()
    for unit in UNITS:
        wait_active(machine, unit, 0)
    waiting = "until rockoon status; do sleep 1; done"
    healthy = Block("after a power cut", 1, "", f"on: {NAMES[0]}", waiting)
    stage.run(healthy)


def exposures(machine: Machine) -> list[tuple[str, str, str]]:
    """Unit, exposure and rating, as `systemd-analyze security` prints them.

    Raises:
        CalledProcessError: `systemd-analyze verify` finds a fault.
    """
    found = []
    for unit in UNITS:
        machine.run("systemd-analyze", "verify", "--man=no", f"{unit}.service")
        text = machine.run("systemd-analyze", "security", "--no-pager", f"{unit}.service")
        (line,) = SINCE.findall(text)
        found.append(line)
    return found


def write_exposures(rows: Sequence[tuple[str, str, str]]) -> None:
    """Write the table of the page."""
    text = PAGE.read_text()
    before, _, rest = text.partition("<!-- security -->\n")
    _, _, after = rest.partition("<!-- end -->")
    lines = [f"| `{unit}` | {level} | {rating} |" for unit, level, rating in rows]
    table = "\n".join(["", "| unit | exposure | rating |", "|---|---|---|", *lines, "", ""])
    PAGE.write_text(f"{before}<!-- security -->\n{table}<!-- end -->{after}")
