"""Nodes of the cluster: network, mount and process namespaces of this machine."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from k8s.built import BIN, HYPER, NETPOL
from k8s.shell import HERE, STATE, Failed, environment_of, run, wait_for

MARK = "ROCKOON_K8S"
RUN = STATE / "run"
LOG = STATE / "log"
PKI = STATE / "pki"
CONTROL = "10.88.0.1"
OUTSIDE = "outside"
POD_NETWORK = "10.244.0.0/16"
BALANCERS = "10.99.0.0/24"
READY_SECONDS = 30.0


class Namespaces:
    """Network, mount, process and host name namespaces with a first process that holds them.

    Args:
        name: of the node, or `outside`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pid_file = RUN / f"{name}.pid"

    def holder(self) -> int | None:
        """Return the process id of the `unshare` that runs the first process; None if it ended."""
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if environment_of(pid).get(MARK) == self.name else None

    def first(self) -> int:
        """Return the process id of the first process.

        Raises:
            Failed: the namespaces do not exist.
        """
        holder = self.holder()
        if holder is not None:
            with suppress(OSError):
                found = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
                if found:
                    return int(found[0])
        raise Failed(f"{self.name} is not up")

    def create(self) -> None:
        if self.holder() is not None:
            return
        (RUN / f"{self.name}.ready").unlink(missing_ok=True)
        kinds = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc")
        script = (HERE / "first_process.sh", self.name, STATE)
        log = LOG / f"{self.name}.log"
        with log.open("wb") as stream:
            holder = subprocess.Popen(
                ["unshare", *kinds, "--kill-child=SIGKILL", "bash", *map(str, script)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=os.environ | {MARK: self.name},
                start_new_session=True,
            )
        self._pid_file.write_text(str(holder.pid))

        def attempts() -> Iterator[bool]:
            while True:
                if holder.poll() is not None:
                    raise Failed(f"{self.name} did not start:\n{log.read_text()}")
                yield (RUN / f"{self.name}.ready").exists()

        wait_for(f"{self.name} has its namespaces", attempts(), READY_SECONDS, 0.05)

    def network(self, *command: object) -> list[str]:
        """Return the words of a command that runs in the network namespace only."""
        return ["nsenter", "-t", str(self.first()), "-n", "--", *map(str, command)]

    def inside(self, *command: object) -> list[str]:
        """Return the words of a command that runs in all namespaces."""
        where = ("-n", "-m", "-p", "-i", "-u")
        return ["nsenter", "-t", str(self.first()), *where, "--", *map(str, command)]

    def ip(self, *words: object) -> None:
        run(*self.network("ip", *words))

    def start(self, name: str, *command: object) -> None:
        """Start a process of the node unless it runs; its output goes to the state's log folder."""
        script = (
            "p=/run/rk8s/$0.pid; [ -e $p ] && kill -0 $(cat $p) 2>/dev/null && exit; cd /; "
            'log=$1; shift; setsid "$@" > $log 2>&1 < /dev/null & echo $! > $p'
        )
        run(*self.inside("bash", "-c", script, name, LOG / f"{name}.log", *command))

    def stop(self, name: str) -> None:
        """End a process that `start` started, and wait for its end."""
        script = (
            "p=$(cat /run/rk8s/$0.pid) && kill $p; "
            "for _ in $(seq 100); do kill -0 $p 2>/dev/null || exit 0; sleep 0.05; done; kill -9 $p"
        )
        run(*self.inside("bash", "-c", script, name))

    def end(self) -> None:
        """Kill all processes of the namespaces."""
        holder = self.holder()
        if holder is None:
            return
        with suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(holder, 0)
        wait_for(f"{self.name} ends", (self.holder() is None for _ in iter(int, 1)), 30, 0.05)


class Node(Namespaces):
    """A node with containerd, kubelet and kube-proxy; node 0 also runs the control plane.

    Args:
        number: 0 to 3.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"node{number}")
        self.number = number
        self.address = f"10.88.0.{number + 1}"
        self.run_folder = RUN / self.name
        self.socket = self.run_folder / "containerd.sock"

    def create(self) -> None:
        """Create the namespaces, the network, and containerd."""
        super().create()
        shutil.rmtree(self.run_folder / "cni", ignore_errors=True)
        (self.run_folder / "cni").mkdir(parents=True)
        (STATE / self.name).mkdir(exist_ok=True)
        if self.number:
            self._connect()
        for name in ("containerd.toml", "kubelet.yaml", "proxy.yaml"):
            self._write_settings(name, self.run_folder / name)
        self._write_settings("bridge.conflist", self.run_folder / "cni" / "10-bridge.conflist")
        (self.run_folder / "resolv.conf").write_text(f"nameserver {CONTROL}\n")
        config = ("--config", self.run_folder / "containerd.toml")
        self.start(f"containerd{self.number}", "containerd", *config)
        wait_for(f"containerd of {self.name}", self._containerd_answers(), READY_SECONDS, 0.1)

    def _containerd_answers(self) -> Iterator[bool]:
        while True:
            try:
                self.ctr("version")
            except Failed:
                yield False
            else:
                yield True

    def _connect(self) -> None:
        """Connect the node to node 0's bridge, and route the pods' networks."""
        links = subprocess.run(self.network("ip", "link", "show", "lan"), capture_output=True)
        if links.returncode == 0:
            return
        control = Node(0)
        wire = f"to{self.number}"
        control.ip(
            "link", "add", wire, "type", "veth", "peer", "name", "lan", "netns", self.first()
        )
        control.ip("link", "set", wire, "master", "lan", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "lan")
        self.ip("link", "set", "lan", "up")
        self.ip("route", "add", "default", "via", CONTROL)
        for other in existing_nodes():
            if other.number != self.number:
                other.ip("route", "replace", f"10.244.{self.number}.0/24", "via", self.address)
                self.ip("route", "replace", f"10.244.{other.number}.0/24", "via", other.address)

    def _write_settings(self, name: str, target: Path) -> None:
        text = (HERE / "settings" / name).read_text()
        for word, value in (
            ("@N@", self.number),
            ("@IP@", self.address),
            ("@STATE@", STATE),
            ("@R@", self.run_folder),
        ):
            text = text.replace(word, str(value))
        target.write_text(text)

    def ctr(self, *words: object) -> str:
        """Call containerd's client on the images and containers of Kubernetes."""
        own = ("setsid", "-w", "ctr", "-a", self.socket, "-n", "k8s.io")
        return run(*self.inside(*own, *words))

    def start_kubelet(self) -> None:
        kubelet = (
            *("--config", self.run_folder / "kubelet.yaml"),
            *("--kubeconfig", PKI / f"{self.name}.kubeconfig"),
            *("--hostname-override", self.name, "--node-ip", self.address),
            *("--root-dir", STATE / self.name / "kubelet", "--cert-dir", self.run_folder / "pki"),
            *("--node-labels", f"topology.kubernetes.io/zone=zone{self.number}"),
        )
        self.start(f"kubelet{self.number}", HYPER, "kubelet", *kubelet)
        config = ("--config", self.run_folder / "proxy.yaml")
        self.start(f"proxy{self.number}", HYPER, "kube-proxy", *config)

    def start_netpol(self) -> None:
        """Enforce NetworkPolicies on this node."""
        words = (
            *("--kubeconfig", PKI / "admin.kubeconfig", "--hostname-override", self.name),
            *("--iptables-sync-period", "10s", "--service-cluster-ip-range", "10.96.0.0/16"),
        )
        self.start(f"netpol{self.number}", NETPOL, *words)

    def stop_netpol(self) -> None:
        """End the enforcement; empty chains admit all connections."""
        self.stop(f"netpol{self.number}")
        for chain in ("INPUT", "FORWARD", "OUTPUT"):
            run(*self.network("iptables", "-w", "-F", f"KUBE-ROUTER-{chain}"))


def existing_nodes() -> list[Node]:
    found = [Node(number) for number in range(4)]
    return [node for node in found if node.holder() is not None]


def remove_cgroups() -> None:
    """Remove the control groups of ended nodes."""
    for group in Path("/sys/fs/cgroup").glob("*/rk8s*"):
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def start_control_plane() -> None:
    """Start Kubernetes' own etcd, API server, controllers and scheduler on node 0."""
    node = Node(0)
    node.start("etcd", *etcd_words())
    node.start("apiserver", HYPER, "kube-apiserver", *apiserver_words())


def start_controllers() -> None:
    node = Node(0)
    local = ("--bind-address", "127.0.0.1", "--leader-elect=false")
    manager = PKI / "cm.kubeconfig"
    node.start(
        *("cm", HYPER, "kube-controller-manager", *local),
        *("--kubeconfig", manager, "--authentication-kubeconfig", manager),
        *("--authorization-kubeconfig", manager, "--use-service-account-credentials"),
        *("--service-account-private-key-file", PKI / "sa.key", "--root-ca-file", PKI / "ca.crt"),
        *("--cluster-cidr", POD_NETWORK, "--allocate-node-cidrs=false"),
        *("--cert-dir", RUN / "cm"),
    )
    scheduler = PKI / "sched.kubeconfig"
    node.start(
        *("sched", HYPER, "kube-scheduler", *local, "--kubeconfig", scheduler),
        *("--authentication-kubeconfig", scheduler, "--authorization-kubeconfig", scheduler),
    )


def etcd_words() -> list[object]:
    # Disks of this etcd are not synced: a power cut ends the whole test cluster.
    return [BIN / "etcd", "--data-dir", STATE / "etcd", "--unsafe-no-fsync", "--log-level", "warn"]


def apiserver_words() -> list[object]:
    header = "--requestheader"
    return [
        *("--etcd-servers", "http://127.0.0.1:2379", "--secure-port", 6443),
        *("--bind-address", CONTROL, "--advertise-address", CONTROL),
        *("--service-cluster-ip-range", "10.96.0.0/16", "--client-ca-file", PKI / "ca.crt"),
        *(
            "--tls-cert-file",
            PKI / "apiserver.crt",
            "--tls-private-key-file",
            PKI / "apiserver.key",
        ),
        *("--service-account-key-file", PKI / "sa.pub"),
        *("--service-account-signing-key-file", PKI / "sa.key"),
        *("--service-account-issuer", "https://kubernetes.default.svc"),
        *("--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction"),
        *("--kubelet-client-certificate", PKI / "admin.crt"),
        *("--kubelet-client-key", PKI / "admin.key"),
        *("--kubelet-certificate-authority", PKI / "ca.crt"),
        *("--kubelet-preferred-address-types", "InternalIP", "--cert-dir", RUN / "apiserver"),
        *(f"{header}-client-ca-file", PKI / "ca.crt", f"{header}-allowed-names", "front-proxy"),
        *(f"{header}-username-headers", "X-Remote-User"),
        *(f"{header}-group-headers", "X-Remote-Group"),
        *(f"{header}-extra-headers-prefix", "X-Remote-Extra-"),
        *("--proxy-client-cert-file", PKI / "front.crt"),
        *("--proxy-client-key-file", PKI / "front.key"),
        *("--enable-aggregator-routing", "--allow-privileged"),
    ]
