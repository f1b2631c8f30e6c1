"""A network of hosts on this machine: namespaces with an address each, joined by a bridge.

    runner (.254) ── bridge ──┬── etcd (.1)
                              ├── nameserver-a (.2) ...
                              └── client-a ...

All of it is in namespaces of the process that created it (`apart`): its own network, mounts and
processes. The kernel removes everything when that process ends, in any way, so no part remains and
nothing outside is changed. If the kernel allows ordinary users to create namespaces, root is not
needed.

A cut is an entry in the sender's neighbour table: its packets to the other host go to an unused
hardware address. So packets vanish without an error, in one direction if requested, also those of
open connections, as with a dead switch.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

# Of the form FROM, TO: packets of FROM to TO are lost.
Direction = tuple[str, str]

PREFIX = "10.77.0"
RUNNER_ADDRESS = f"{PREFIX}.254"
NAMES_FOLDER = "/run/netns"
TUN = "/dev/net/tun"
# A locally administered address that no interface here has.
NOBODY = "02:00:00:00:00:66"

# Features of the kernel that a network needs, tested in namespaces that are removed immediately.
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
    """A step of building or changing the network failed; the text is the tool's output."""


def apart(command: Sequence[str]) -> list[str]:
    """Return a command that runs another one in its own namespaces, and ends all processes in
    them."""
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["unshare", *as_user, *flags, "--", *command]


def why_not() -> str:
    """Return the reason why no network of hosts is possible here, as a sentence; empty if it is."""
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
    """Return the reason why wires cannot be made bad here, as a sentence; empty if they can."""
    if os.access(TUN, os.R_OK | os.W_OK):
        return ""
    return f"a bad wire is made of two taps, and {TUN} is not for us to open"


class Network:
    """The hosts; created by the first process of `apart`, and removed with it.

    Args:
        names: names of the hosts, at most 200.
        on_wires: hosts whose connection can be made slow (`hosts.wire`).
    """

    def __init__(self, names: Iterable[str], on_wires: Collection[str] = ()) -> None:
        self._addresses = {name: f"{PREFIX}.{number}" for number, name in enumerate(names, 1)}
        self._on_wires = frozenset(on_wires)
        self._wires: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return host → its IPv4 address."""
        return self._addresses

    def make(self) -> None:
        """Create bridge and hosts."""
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
        """Delay or lose packets from and to hosts from now on.

        Args:
            hosts: some of `on_wires`.
            delay_ms: each way; 0 without loss makes the wire good again.
            loss_percent: of packets, each way.
        """
        for host in hosts:
            stdin = self._wires[host].stdin
            assert stdin is not None
            stdin.write(f"{delay_ms} {loss_percent}\n".encode())
            stdin.flush()

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one on a host, in the same process."""
        return ["nsenter", f"--net={NAMES_FOLDER}/{host}", *command]

    def cut(self, directions: Iterable[Direction]) -> None:
        """Let packets vanish from now on."""
        for sender, receiver in directions:
            address = self._addresses[receiver]
            entry = ("lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
            run("ip", "-n", sender, "neigh", "replace", address, *entry)

    def heal(self, directions: Iterable[Direction]) -> None:
        """Let packets arrive again from now on."""
        for sender, receiver in directions:
            address = self._addresses[receiver]
            run("ip", "-n", sender, "neigh", "del", address, "dev", "eth0")


def both_ways(some: Iterable[str], others: Iterable[str]) -> tuple[Direction, ...]:
    """Return every direction between hosts of two sets."""
    receivers = tuple(others)
    pairs = [(one, other) for one in some for other in receivers]
    return (*pairs, *((other, one) for one, other in pairs))


def run(*command: str) -> None:
    """Run a tool; NetworkError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
