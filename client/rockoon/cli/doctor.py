"""`rockoon doctor`: checks of this machine and of a cluster, one line each."""

import ctypes
import os
import shutil
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rockoon.cli.service_settings import PrintedSettings

if TYPE_CHECKING:
    from rockoon.admin.descriptions import ClusterStatus, NodeStatus
    from rockoon.net.tls import Tls

OK, WARN, FAIL = "OK", "WARN", "FAIL"

CONNECT_SECONDS_MAX = 3.0
# Above it, times of messages and of log lines cannot be compared.
CLOCK_WARN_MS = 500
# Services refuse signed calls from 300 s on (`access_window_seconds`).
CLOCK_FAIL_MS = 60_000
DISK_WARN_RATIO = 0.75
DISK_FAIL_RATIO = 0.9
# A broker needs a descriptor for each connection, and for each open file of a queue.
OPEN_FILES_MIN = 65_536
# adjtimex(2): the kernel's clock is not synchronised.
_TIME_ERROR = 5
_TIMEX_BYTES = 512


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check.

    Attributes:
        state: OK, WARN or FAIL.
        subject: the checked object.
        advice: what to do; empty if the state is OK.
    """

    state: str
    subject: str
    finding: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.state:<4}  {self.subject}: {self.finding}{advice}"


def machine_checks() -> Iterator[Check]:
    """Check the installed packages, the clock and the limits of this machine."""
    yield _packages()
    from rockoon_format import kernel

    subject = "kernel"
    if advice := kernel.advice():
        yield Check(WARN, subject, f"{kernel.name()} is used, which costs more CPU", advice)
    else:
        yield Check(OK, subject, kernel.name())
    yield _own_clock()
    yield _open_files()


def own_version() -> str:
    return metadata.version("rockoon")


def _packages() -> Check:
    found = {
        each.name: each.version
        for each in metadata.distributions()
        if each.name and each.name.startswith("rockoon")
    }
    own = own_version()
    others = [f"{name} {each}" for name, each in sorted(found.items()) if each != own]
    if others:
        listed = ", ".join(others)
        advice = "install one version of all packages"
        return Check(FAIL, "packages", f"rockoon is {own}, but {listed}", advice)
    return Check(OK, "packages", f"{len(found)} packages of version {own}")


def _own_clock() -> Check:
    subject = "clock of this machine"
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex((ctypes.c_char * _TIMEX_BYTES)())
    except (OSError, AttributeError):
        state = -1
    if 0 <= state < _TIME_ERROR:
        return Check(OK, subject, "synchronised")
    finding = "not synchronised" if state == _TIME_ERROR else "the system does not report its state"
    return Check(WARN, subject, finding, "run chronyd or systemd-timesyncd on the host")


def _open_files() -> Check:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < OPEN_FILES_MIN:
        advice = f"raise it for services to {OPEN_FILES_MIN} or more (LimitNOFILE=, ulimit -Hn)"
        return Check(WARN, "open files", f"the hard limit is {most}", advice)
    return Check(OK, "open files", f"the hard limit is {most}")


def address_checks(subject: str, addresses: Sequence[str]) -> Iterator[Check]:
    """Check that names are known and that a process listens at each "host:port"."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        name = f"{subject} {address}"
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError) as failure:
            advice = "correct the address, or the name resolution of this machine"
            yield Check(FAIL, name, f"the address is not known ({failure})", advice)
            continue
        listed = ", ".join(sorted({str(each[4][0]) for each in found}))
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
        except OSError as failure:
            advice = "start the service, or open the port in firewalls between here and there"
            yield Check(FAIL, name, f"no connection to {listed} ({failure})", advice)
        else:
            yield Check(OK, name, f"a process listens at {listed}")


def cluster_checks(status: "ClusterStatus") -> Iterator[Check]:
    """Check etcd, nodes, versions, clocks and disks, as the nodes report them."""
    yield from _etcd(status)
    nodes = [
        *(("nameserver", each) for each in status.nameservers),
        *(("broker", each) for each in status.brokers),
        *(("offset service", each) for each in status.offset_services),
    ]
    yield from (_node(kind, each) for kind, each in nodes)
    for name in status.away_brokers:
        advice = "start it, or move its topics"
        yield Check(FAIL, f"broker {name}", "it has queues and is not registered", advice)
    for kind, present in (("broker", status.brokers), ("offset service", status.offset_services)):
        if not present:
            yield Check(FAIL, kind, "none is registered", f"start a rockoon-{kind.split()[0]}")
    yield from _logs(status)
    yield _versions([each for _, each in nodes])
    yield from (_clock(each) for _, each in nodes if each.error is None)
    for broker in status.brokers:
        if broker.broker is not None:
            used = broker.broker.disk_used_ratio
            yield disk_check(f"disk of broker {broker.name}", used)
    yield from _shared_settings(status)


def _etcd(status: "ClusterStatus") -> Iterator[Check]:
    if status.routes_in_file:
        yield Check(OK, "etcd", "not used: the nameserver stores the routes in a file")
        return
    for each in status.nameservers:
        subject = f"etcd at nameserver {each.name or each.address}"
        if each.cluster is None:
            continue
        if each.cluster.etcd_reachable:
            yield Check(OK, subject, "reachable")
        else:
            away = f"not reachable for {each.cluster.etcd_away_seconds:.0f} s"
            yield Check(FAIL, subject, away, "start etcd; until then nothing can be changed")


def _node(kind: str, node: "NodeStatus") -> Check:
    subject = f"{kind} {node.name or node.address}"
    if node.error is not None:
        return Check(FAIL, subject, str(node.error), "start it, and read its log")
    if node.problems:
        return Check(FAIL, subject, "; ".join(node.problems), "see docs/operate/alerts.md")
    return Check(OK, subject, f"answers at {node.address}")


def _logs(status: "ClusterStatus") -> Iterator[Check]:
    from rockoon.cli.logs import troubles

    for each in status.logs:
        subject, found = f"log {each.log.name}", list(troubles(each.log, each.standings))
        if each.is_well:
            yield Check(OK, subject, f"{len(each.log.replicas)} copies")
        else:
            finding = "; ".join(found) or "not all copies follow"
            yield Check(FAIL, subject, finding, "see docs/operate/logs.md")


def _versions(nodes: Iterable["NodeStatus"]) -> Check:
    found: dict[str, list[str]] = {own_version(): ["this machine"]}
    for each in nodes:
        version = each.cluster.version if each.cluster is not None else ""
        version = each.node.version if each.node is not None else version
        if each.error is None:
            found.setdefault(version or "unknown", []).append(each.name or each.address)
    listed = ", ".join(f"{version} ({', '.join(names)})" for version, names in found.items())
    if len(found) > 1:
        advice = "finish the upgrade (docs/operate/upgrade.md)"
        return Check(WARN, "versions", listed, advice)
    return Check(OK, "versions", listed)


def _clock(node: "NodeStatus") -> Check:
    subject, ahead_ms = f"clock of {node.name or node.address}", node.clock_ahead_ms
    if ahead_ms is None:
        return Check(WARN, subject, "unknown: a former version does not report it", "upgrade it")
    if abs(ahead_ms) < CLOCK_WARN_MS:
        return Check(OK, subject, "equal to the clock of this machine")
    side = "ahead of" if ahead_ms > 0 else "behind"
    finding = f"{abs(ahead_ms) / 1000:.1f} s {side} the clock of this machine"
    state = FAIL if abs(ahead_ms) >= CLOCK_FAIL_MS else WARN
    return Check(state, subject, finding, "synchronise both clocks; signed calls may be refused")


def disk_check(subject: str, used_ratio: float) -> Check:
    """Check the used share of a disk, from 0 to 1."""
    finding = f"{used_ratio:.0%} used"
    if used_ratio < DISK_WARN_RATIO:
        return Check(OK, subject, finding)
    state = FAIL if used_ratio >= DISK_FAIL_RATIO else WARN
    return Check(state, subject, finding, "enlarge it, or retain less (docs/operate/retention.md)")


def _shared_settings(status: "ClusterStatus") -> Iterator[Check]:
    for kind, nodes in (("brokers", status.brokers), ("offset services", status.offset_services)):
        values: dict[str, set[str]] = {}
        for each in nodes:
            for name, value in each.node.shared_settings.items() if each.node is not None else ():
                values.setdefault(name, set()).add(value)
        differing = sorted(name for name, found in values.items() if len(found) > 1)
        if differing:
            advice = "set them to the same value"
            yield Check(WARN, f"settings of {kind}", f"{', '.join(differing)} differ", advice)


def certificate_checks(
    tls: "Tls | None", addresses: Mapping[str, str], days_left: int
) -> Iterator[Check]:
    """Check when certificates of nodes and of this client end.

    Args:
        tls: TLS of the client; None: plain connections, nothing is checked.
        addresses: "host:port" of each node, by the name to print.
        days_left: warn if fewer days are left.
    """
    if tls is None:
        return
    from rockoon_core.channels import own_certificate, trust
    from rockoon_core.pem_files import PemError

    try:
        context, own = trust(tls).context, own_certificate(tls)
    except PemError as failure:
        yield Check(FAIL, "client certificate", str(failure), "renew the files")
        return
    if own is not None:
        yield _expiry("client certificate", own.expires, days_left)
    for name, address in addresses.items():
        subject = f"certificate of {name}"
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            with (
                socket.create_connection((host, int(port)), CONNECT_SECONDS_MAX) as plain,
                context.wrap_socket(plain, server_hostname=tls.server_name or host) as secured,
            ):
                seen: Any = secured.getpeercert()
        except ssl.SSLError as failure:
            finding = getattr(failure, "verify_message", "") or failure.reason or str(failure)
            yield Check(FAIL, subject, finding, "renew or replace it, or correct --tls-ca")
        except OSError as failure:
            yield Check(FAIL, subject, f"not seen: {failure}", "start the node")
        else:
            end = datetime.fromtimestamp(ssl.cert_time_to_seconds(seen["notAfter"]), UTC)
            yield _expiry(subject, end, days_left)


def _expiry(subject: str, end: datetime, days_left: int) -> Check:
    finding, left = f"valid until {end:%Y-%m-%d %H:%M}Z", end - datetime.now(UTC)
    if left <= timedelta():
        return Check(FAIL, subject, f"expired at {end:%Y-%m-%d %H:%M}Z", "renew it now")
    if left < timedelta(days=days_left):
        advice = "renew it; services and clients read the new files without a restart"
        return Check(WARN, subject, f"{finding}, {left.days} days", advice)
    return Check(OK, subject, finding)


def settings_checks(settings: PrintedSettings, days_left: int) -> Iterator[Check]:
    """Check a service on this machine: its settings, store, port, certificate and etcd."""
    subject = f"settings of {settings.name}"
    if settings.error:
        yield Check(FAIL, subject, settings.error, "correct the file")
        return
    yield Check(OK, subject, "valid")
    values = settings.values
    for name in ("store_path", "routes_path"):
        if values.get(name):
            yield from _store(settings.service, Path(values[name]))
    if values.get("listen"):
        yield _port(settings.service, values["listen"])
    certificate, key = values.get("tls_certificate"), values.get("tls_key")
    if values.get("tls") != "off" and certificate and key:
        yield _certificate_file(settings.service, Path(certificate), Path(key), days_left)
    if settings.service == "nameserver" and not values.get("routes_path"):
        yield from address_checks("etcd", values.get("etcd", ()))
    elif nameservers := values.get("nameservers"):
        yield from address_checks("nameserver", nameservers)


def _store(service: str, path: Path) -> Iterator[Check]:
    # The service creates missing directories.
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK):
        advice = f"run this command as the user of the service, or give this user {there}"
        yield Check(FAIL, f"store of {service}", f"{there} is not writable", advice)
    usage, blocks = shutil.disk_usage(there), os.statvfs(there)
    yield disk_check(f"disk of {service} ({path})", usage.used / (usage.used + usage.free))
    if blocks.f_files:
        used = 1 - blocks.f_favail / blocks.f_files
        yield disk_check(f"files of the disk of {service} ({path})", used)


def _port(service: str, listen: str) -> Check:
    subject = f"port of {service} ({listen})"
    host, _, port = listen.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except OSError as failure:
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX).close()
        except OSError:
            advice = "listen on an address of this machine, and on a port that the user may use"
            return Check(FAIL, subject, f"it cannot be used ({failure.strerror})", advice)
        return Check(OK, subject, "in use by a running process")
    return Check(OK, subject, "free")


def _certificate_file(service: str, certificate: Path, key: Path, days_left: int) -> Check:
    from rockoon_core.pem_files import PemError, try_certificate

    subject = f"certificate of {service} ({certificate})"
    try:
        found = try_certificate(certificate, key)
    except PemError as failure:
        return Check(FAIL, subject, str(failure), "renew the files")
    return _expiry(subject, found.expires, days_left)


def node_addresses(status: "ClusterStatus") -> dict[str, str]:
    """Return "host:port" of all nodes, by the name to print."""
    nodes = (*status.nameservers, *status.brokers, *status.offset_services)
    return {each.name or each.address: each.address for each in nodes if each.address}


def all_checks(
    nameservers: str, settings: Iterable[PrintedSettings], days_left: int
) -> Iterator[Check]:
    """Run all checks, and yield each result as soon as it is known."""
    from rockoon.cli.failures import CommandError
    from rockoon.cli.session import with_admin
    from rockoon.errors import RockoonError
    from rockoon.net.addresses import parse_addresses
    from rockoon.net.tls import from_environment

    yield from machine_checks()
    for each in settings:
        yield from settings_checks(each, days_left)
    addresses = parse_addresses(nameservers)
    yield from address_checks("nameserver", addresses)
    try:
        status = with_admin(nameservers, lambda admin: admin.status())
    except (RockoonError, CommandError) as failure:
        yield Check(FAIL, "cluster", str(failure), "repair the connection; nodes were not checked")
        nodes = {address: address for address in addresses}
    else:
        yield from cluster_checks(status)
        nodes = node_addresses(status)
    yield from certificate_checks(from_environment(os.environ), nodes, days_left)
