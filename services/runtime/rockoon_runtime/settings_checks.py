"""Checks for `--check-settings`: settings that are valid one by one, and the files that they name.

Each check yields faults. No check opens a port, or changes a file.
"""

import ipaddress
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rockoon_core.channels import Tls
from rockoon_core.pem_files import PemError, try_authorities, try_certificate
from rockoon_runtime.access.gate import cluster_credentials
from rockoon_runtime.settings import SettingsCheck, SettingsError, refused_by
from rockoon_runtime.telemetry.telemetry import TelemetrySettings
from rockoon_runtime.tls import TlsSettings, required, server_tls

PORT_MAX = 0xFFFF
# A service that listens there has no address for callers in this setting.
EVERY_ADDRESS = ("", "0.0.0.0", "::")


def addresses(*, listen: tuple[str, ...] = (), dialed: tuple[str, ...] = ()) -> SettingsCheck:
    """Return a check that addresses are "host:port".

    Args:
        listen: names of settings with an address to listen on; its host may be empty, its port 0.
        dialed: names of settings with addresses that are called; a list has at least one.
    """

    def check(settings: Any) -> Iterator[str]:
        for name in (*listen, *dialed):
            value = getattr(settings, name)
            if value == ():
                yield f"{name} is empty: expected at least one HOST:PORT"
            for address in value if isinstance(value, tuple) else filter(None, (value,)):
                host, _, port = address.rpartition(":")
                number = int(port) if port.isascii() and port.isdecimal() else -1
                least = 0 if name in listen else 1
                if not least <= number <= PORT_MAX or not (host or name in listen):
                    expected = f"HOST:PORT, with a port from {least} to {PORT_MAX}"
                    yield f"{name} = {address!r}: expected {expected}"

    return check


def advertised(listen: str, advertise: str) -> SettingsCheck:
    """Return a check that callers can dial the address that the service announces.

    Args:
        listen: name of the setting with the address to listen on; its value may be empty.
        advertise: name of the setting with the address that is announced instead.
    """

    def check(settings: Any) -> Iterator[str]:
        address = getattr(settings, listen)
        host = address.rpartition(":")[0].strip("[]")
        if address and host in EVERY_ADDRESS and not getattr(settings, advertise):
            yield f"{advertise} is empty, and callers cannot dial {listen} = {address!r}: set it"

    return check


def directory(name: str) -> SettingsCheck:
    """Return a check that a directory exists or can be created, and is writable."""

    def check(settings: Any) -> Iterator[str]:
        path: Path = getattr(settings, name).absolute()
        try:
            existing = next(each for each in (path, *path.parents) if each.exists())
        except OSError as failure:
            yield f"{name} = {path}: expected a directory: {failure.strerror}"
            return
        if not existing.is_dir():
            yield f"{name} = {path}: expected a directory, but {existing} is a file"
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield f"{name} = {path}: user id {os.geteuid()} may not write in {existing}"

    return check


def tls_files(settings: TlsSettings) -> Iterator[str]:
    """Yield the faults of the TLS settings and of their files."""
    if settings.tls == "off":
        yield from refused_by(server_tls)(settings)
        return
    is_mutual = settings.tls == "mutual"
    for name in ("tls_certificate", "tls_key", *(("tls_ca",) if is_mutual else ())):
        yield from refused_by(partial(required, name=name))(settings)
    certificate, key, ca = settings.tls_certificate, settings.tls_key, settings.tls_ca
    if certificate is not None and key is not None:
        yield from pem_fault("tls_certificate, tls_key", partial(try_certificate, certificate, key))
    if is_mutual and ca is not None:
        yield from pem_fault("tls_ca", partial(try_authorities, ca))


def caller_files(tls_of: Callable[[Any], Tls | None], prefix: str) -> SettingsCheck:
    """Return a check of the TLS files of connections that the service opens."""

    def check(settings: Any) -> Iterator[str]:
        try:
            tls = tls_of(settings)
        except SettingsError as fault:
            yield str(fault)
            return
        if tls is not None and tls.ca:
            yield from pem_fault(f"{prefix}_ca", partial(try_authorities, Path(tls.ca)))
        if tls is not None and tls.certificate and tls.key:
            own = Path(tls.certificate), Path(tls.key)
            trial = partial(try_certificate, *own, as_client=True)
            yield from pem_fault(f"{prefix}_certificate, {prefix}_key", trial)

    return check


def pem_fault(names: str, trial: Callable[[], object]) -> Iterator[str]:
    """Yield the fault of files, after their settings' names; `trial` raises PemError."""
    try:
        trial()
    except PemError as failure:
        yield f"{names}: {failure}"


def host_in_certificate(listen: str, advertise: str, server_name: str) -> SettingsCheck:
    """Return a check that the service's certificate has the host that callers require.

    Args:
        listen, advertise: see `advertised`.
        server_name: name of the setting with the name that callers require instead of the host.
    """

    def check(settings: Any) -> Iterator[str]:
        certificate, key = settings.tls_certificate, settings.tls_key
        is_served = settings.tls != "off" and getattr(settings, listen)
        if not is_served or certificate is None or key is None:
            return
        address = getattr(settings, advertise, "") or getattr(settings, listen)
        host = getattr(settings, server_name) or address.rpartition(":")[0].strip("[]")
        try:
            hosts = try_certificate(certificate, key).hosts
        except PemError:
            # `tls_files` reports it.
            return
        if host not in EVERY_ADDRESS and not any(covers(each, host) for each in hosts):
            listed = ", ".join(hosts) or "no host"
            yield (
                f"tls_certificate = {certificate} is for {listed}: expected {host}, the dialed host"
            )

    return check


def covers(name: str, host: str) -> bool:
    """Return whether a host is, or matches, a name of a certificate."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    if name.startswith("*."):
        # One label, as in RFC 6125.
        return host.partition(".")[2].lower() == name[2:].lower()
    return name.lower() == host.lower()


def telemetry_packages(settings: TelemetrySettings) -> None:
    """Raises SettingsError if a package for the exports of the settings is missing."""
    if settings.otlp_endpoint:
        from rockoon_runtime.telemetry import otlp

        otlp.require_sdk()


# Of every service.
CHECKS: tuple[SettingsCheck, ...] = (
    addresses(listen=("listen", "metrics_listen", "tls_health_listen")),
    tls_files,
    host_in_certificate("listen", "advertise", "tls_server_name"),
    refused_by(cluster_credentials),
    refused_by(telemetry_packages),
)
