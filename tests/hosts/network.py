"""A network of hosts on this machine: namespaces with an address each, joined by a bridge.

    runner (.254) ── bridge ──┬── etcd (.1)
                              ├── nameserver-a (.2) ...
                              └── client-a ...

All of it lives in namespaces of the process that made it (`apart`): its own network, its own
mounts, its own processes. The kernel takes everything away when that process ends, however it
ends, so nothing is ever left over and nothing outside is touched. Where the kernel lets ordinary
users make namespaces, no root is needed.

A cut is an entry in the sender's neighbour table: what it sends to the other host goes to a
hardware address that nobody has. So packets vanish without a word, in one direction only if
wanted, also those of connections that are open; nobody is told, as with a dead switch.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

# Of the form FROM, TO: what FROM sends to TO is lost.
Direction = tuple[str, str]

PREFIX = "10.77.0"
RUNNER_ADDRESS = f"{PREFIX}.254"
NAMES_FOLDER = "/run/netns"
TUN = "/dev/net/tun"
# A locally administered address that no interface here has.
NOBODY = "02:00:00:00:00:66"

# What a network needs of the kernel, tried out in namespaces that are gone right afterwards.
TRIAL = f"""
set -e
mkdir -p {NAMES_FOLDER}
mount -t tmpfs none {NAMES_FOLDER}
ip link add bridge type bridge
ip netns add trial
ip link add port type veth peer name eth0 netns trial
ip link set port master bridge up
ip -n trial addr add {PREFIX}.1/24 dev eth0
ip -n trial link set eth0 up
ip -n trial neigh replace {PREFIX}.2 lladdr {NOBODY} dev eth0 nud permanent
nsenter --net={NAMES_FOLDER}/trial true
"""


class NetworkError(Exception):
    """A step of building or changing the network failed; the text is what the tool said."""


def apart(command: Sequence[str]) -> list[str]:
    """A command that runs another one in namespaces of its own, and ends all in them with it."""
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["unshare", *as_user, *flags, "--", *command]


def why_not() -> str:
    """Why there can be no network of hosts here, in a sentence; empty when there can."""
    if sys.platform != "linux":
        return "hosts are made of Linux network namespaces, and this is no Linux"
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"hosts are made with `{program}` (util-linux, iproute2), which is not here"
    tried = subprocess.run(
        apart(["sh", "-c", TRIAL]), capture_output=True, text=True, timeout=60, check=False
    )
    if tried.returncode == 0:
        return ""
    said = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"this machine lets us make no network namespaces ({said})"


def why_no_wires() -> str:
    """Why wires cannot be made bad here, in a sentence; empty when they can."""
    if os.access(TUN, os.R_OK | os.W_OK):
        return ""
    return f"a bad wire is made of two taps, and {TUN} is not for us to open"


class Network:
    """The hosts; to be made by the first process of `apart`, and ends with it.

    Args:
        names: of the hosts, at most 200.
        on_wires: those of them whose way to the others can be made slow (`hosts.wire`).
    """

    def __init__(self, names: Iterable[str], on_wires: Collection[str] = ()) -> None:
        self._addresses = {name: f"{PREFIX}.{number}" for number, name in enumerate(names, 1)}
        self._on_wires = frozenset(on_wires)
        self._wires: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Host → its IPv4 address."""
        return self._addresses

    def make(self) -> None:
        """Make bridge and hosts."""
        os.makedirs(NAMES_FOLDER, exist_ok=True)
        run("mount", "-t", "tmpfs", "none", NAMES_FOLDER)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "addr", "add", f"{RUNNER_ADDRESS}/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")
        for number, (name, address) in enumerate(self._addresses.items(), 1):
            port = f"port{number}"
            run("ip", "netns", "add", name)
            if name in self._on_wires:
                self._make_wire(name, port)
            else:
                peer = ("peer", "name", "eth0", "netns", name)
                run("ip", "link", "add", port, "type", "veth", *peer)
            run("ip", "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def _make_wire(self, host: str, port: str) -> None:
        inner = f"{port}-inner"
        program = Path(__file__).with_name("wire.py")
        wire = subprocess.Popen(
            [sys.executable, str(program), inner, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert wire.stdout is not None
        if wire.stdout.readline() != b"ready\n":
            raise NetworkError(f"no wire can be made for {host}")
        run("ip", "link", "set", inner, "netns", host, "name", "eth0")
        self._wires[host] = wire

    def slow_down(self, hosts: Iterable[str], delay_ms: float, loss_percent: float) -> None:
        """From now on what hosts send and get comes late, or not at all.

        Args:
            hosts: some of `on_wires`.
            delay_ms: each way; 0 with no loss makes the wire good again.
            loss_percent: of packets, each way.
        """
        for host in hosts:
            stdin = self._wires[host].stdin
            assert stdin is not None
            stdin.write(f"{delay_ms} {loss_percent}\n".encode())
            stdin.flush()

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """A command that runs another one on a host, in the same process."""
        return ["nsenter", f"--net={NAMES_FOLDER}/{host}", *command]

    def cut(self, directions: Iterable[Direction]) -> None:
        """From now on packets vanish."""
        for sender, receiver in directions:
            address = self._addresses[receiver]
            entry = ("lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
            run("ip", "-n", sender, "neigh", "replace", address, *entry)

    def heal(self, directions: Iterable[Direction]) -> None:
        """From now on packets arrive again."""
        for sender, receiver in directions:
            address = self._addresses[receiver]
            run("ip", "-n", sender, "neigh", "del", address, "dev", "eth0")


def both_ways(some: Iterable[str], others: Iterable[str]) -> tuple[Direction, ...]:
    """Every direction between hosts of two sets."""
    receivers = tuple(others)
    pairs = [(one, other) for one in some for other in receivers]
    return (*pairs, *((other, one) for one, other in pairs))


def run(*command: str) -> None:
    """Run a tool; NetworkError with what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
