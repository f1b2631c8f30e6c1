"""`rockoon support bundle`: versions, settings, status, metrics and logs in one file, without
secrets."""

import io
import json
import os
import platform
import re
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rockoon.cli.doctor import all_checks
from rockoon.cli.service_settings import PrintedSettings
from rockoon_core.valid_text import redacted

MASK = "***"
# The end of each log file.
LOG_BYTES_MAX = 4 << 20
METRICS_BYTES_MAX = 16 << 20
METRICS_SECONDS_MAX = 5.0
# Shorter texts of a secret file are words such as the name of a key.
SECRET_CHARACTERS_MIN = 8

_SECRET_VARIABLE = re.compile(r"SECRET|PASSWORD|TOKEN", re.IGNORECASE)
# Without the lookbehind, the time would grow with the square of the length of a word.
_ASSIGNED = re.compile(
    r"""(?P<name>(?<![\w-])[\w-]*(?:secret|password|passwd|token)["']?\s*[=:]\s*)"""
    r"""(?:"[^"]*"|'[^']*'|[^\s,;]+)""",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(r"(?P<name>authorization\s*[=:]\s*).*", re.IGNORECASE)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a support bundle.

    Attributes:
        nameservers: "host:port,...".
        settings: settings of services on this machine.
        metrics: "host:port" of metrics pages, in addition to those in `settings`.
        directory: directory of a local cluster (`rockoon up`); None: none.
        environment: usually `os.environ`.
    """

    nameservers: str
    settings: Sequence[PrintedSettings]
    logs: Sequence[Path]
    metrics: Sequence[str]
    directory: Path | None
    environment: Mapping[str, str]


class Redactor:
    """Removes secrets from texts: known ones wherever they are, others by the words before them.
    `secrets`: known secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first, because one secret may contain another.
        known = sorted({each for each in secrets if each}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _PRIVATE_KEY.sub(MASK, text)
        text = _AUTHORIZATION.sub(rf"\g<name>{MASK}", text)
        return redacted(_ASSIGNED.sub(rf"\g<name>{MASK}", text))


def known_secrets(sources: Sources) -> Iterator[str]:
    """Yield the secrets of the environment, and those in secret files that the sources name."""
    files = []
    for name, value in sources.environment.items():
        if name.startswith("ROCKOON_") and _SECRET_VARIABLE.search(name):
            if name.endswith("_FILE"):
                files.append(Path(value))
            else:
                yield value
    for each in sources.settings:
        for name, value in each.values.items():
            if value and isinstance(value, str) and _SECRET_VARIABLE.search(name):
                files.append(Path(value))
    if sources.directory is not None:
        files += (sources.directory / "access").glob("*")
    for file in files:
        with suppress(OSError):
            words = file.read_text(errors="replace").split()
            yield from (word for word in words if len(word) >= SECRET_CHARACTERS_MIN)


class Bundle:
    """Collects the files of a bundle. A part that cannot be had becomes a line of `missing.txt`."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    def add(self, name: str, make: Callable[[], str]) -> None:
        """Add a file whose text is returned by `make`."""
        try:
            text = make()
        except Exception as failure:  # noqa: BLE001 - a part that fails must not cost the others
            self.missing.append(self._redact(f"{name}: {type(failure).__name__}: {failure}"))
            return
        self.files[name] = self._redact(text).encode()

    def write(self, path: Path, now_ms: int) -> None:
        """Write the bundle, readable for its owner only. Raises OSError."""
        if self.missing:
            self.files["missing.txt"] = ("\n".join(self.missing) + "\n").encode()
        top = path.name.removesuffix(".tar.gz")
        partial = path.with_name(path.name + ".partial")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with (
                os.fdopen(descriptor, "wb") as file,
                tarfile.open(fileobj=file, mode="w:gz") as archive,
            ):
                for name, content in sorted(self.files.items()):
                    entry = tarfile.TarInfo(f"{top}/{name}")
                    entry.size, entry.mtime, entry.mode = len(content), now_ms // 1000, 0o600
                    archive.addfile(entry, io.BytesIO(content))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def collect(sources: Sources, days_left: int) -> Bundle:
    """Make a bundle. `days_left`: see `certificate_checks`."""
    bundle = Bundle(Redactor(known_secrets(sources)))
    bundle.add("versions.txt", versions)
    bundle.add("environment.txt", lambda: environment_text(sources.environment))
    bundle.add("status.json", lambda: cluster_status(sources.nameservers))
    bundle.add("doctor.txt", lambda: doctor_text(sources, days_left))
    pages = list(sources.metrics)
    for number, each in enumerate(sources.settings, start=1):
        name = f"settings/{number}-{each.service}.toml"
        bundle.add(name, partial(settings_text, each))
        if page := each.values.get("metrics_listen"):
            pages.append(page)
    for page in dict.fromkeys(pages):
        bundle.add(f"metrics/{file_name(page)}.txt", partial(metrics_page, page))
    logs = list(sources.logs)
    if sources.directory is not None:
        directory = sources.directory
        logs += sorted((directory / "logs").glob("*.log"))
        bundle.add("cluster.json", lambda: (directory / "cluster.json").read_text())
    for number, path in enumerate(logs, start=1):
        name = f"logs/{number:02}-{file_name(path.name)}"
        bundle.add(name, partial(log_end, path))
    return bundle


def default_name(now_ms: int) -> str:
    moment = time.gmtime(now_ms / 1000)
    return f"rockoon-support-{time.strftime('%Y%m%dT%H%M%SZ', moment)}.tar.gz"


def file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)


def versions() -> str:
    from rockoon_format import kernel

    packages = sorted(
        f"{each.name} {each.version}"
        for each in metadata.distributions()
        if each.name and re.match(r"rockoon|grpcio|protobuf|uvloop|numpy|h2\b", each.name)
    )
    head = [f"Python {sys.version}", platform.platform(), f"kernel {kernel.name()}"]
    return "\n".join([*head, *packages]) + "\n"


def environment_text(environment: Mapping[str, str]) -> str:
    """Return Rockoon's variables; secrets are masked, names of secret files are not."""
    lines = []
    for name, value in sorted(environment.items()):
        if name.startswith("ROCKOON_"):
            is_secret = _SECRET_VARIABLE.search(name) and not name.endswith("_FILE")
            lines.append(f"{name} {MASK if is_secret else value}")
    return "\n".join(lines) + "\n"


def cluster_status(nameservers: str) -> str:
    from rockoon.cli.session import with_admin
    from rockoon.cli.status import status_json

    found: dict[str, Any] = status_json(with_admin(nameservers, lambda admin: admin.status()))
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def doctor_text(sources: Sources, days_left: int) -> str:
    checks = all_checks(sources.nameservers, sources.settings, days_left)
    return "".join(f"{each}\n" for each in checks)


def settings_text(settings: PrintedSettings) -> str:
    return f"# {settings.file}\n{settings.error or settings.text}"


def metrics_page(page: str) -> str:
    """Return the metrics that a service serves at "host:port"."""
    host, _, port = page.rpartition(":")
    if host in ("", "0.0.0.0", "[::]"):
        host = "127.0.0.1"
    address = f"http://{host}:{port}/metrics"
    with urllib.request.urlopen(address, timeout=METRICS_SECONDS_MAX) as reply:
        content: bytes = reply.read(METRICS_BYTES_MAX)
    return content.decode(errors="replace")


def log_end(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        return file.read().decode(errors="replace")
