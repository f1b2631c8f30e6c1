"""A real Prometheus, installed or extracted from Debian's package, and queries to it."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.compare.programs import ROOT, NotHere, is_made, mark, run
from rockoon.local.directory import choose_port
from support.waiting import DEADLINE_SECONDS, wait_until

CACHE = ROOT / ".conformance" / "prometheus"
PACKAGE = "prometheus"
RULES = ROOT / "deploy/prometheus/rockoon-alerts.yml"


def program(name: str) -> Path:
    """Return "prometheus" or "promtool": the installed one, or that of the package, extracted once.

    Raises:
        NotHere: there is neither.
    """
    if (installed := shutil.which(name)) is not None:
        return Path(installed)
    if not is_made(CACHE / "made", PACKAGE.encode()):
        if shutil.which("apt-get") is None:
            raise NotHere("there is no prometheus, and no apt-get to have it by")
        CACHE.mkdir(parents=True, exist_ok=True)
        for former in CACHE.glob("*.deb"):
            former.unlink()
        # As a user: it writes nothing but the working directory.
        done = subprocess.run(
            ["apt-get", "download", "-q", PACKAGE],
            cwd=CACHE,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotHere(f"Debian's package {PACKAGE} cannot be had: {done.stderr.strip()}")
        (package,) = CACHE.glob("*.deb")
        run(["dpkg-deb", "-x", package, CACHE])
        mark(CACHE / "made", PACKAGE.encode())
    return CACHE / "usr" / "bin" / name


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters}: {refused.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or fire now."""
        found: list[dict[str, Any]] = self._ask("alerts")["alerts"]
        return found


@contextmanager
def prometheus(
    directory: Path, targets: Mapping[str, list[str]], rules: Path = RULES
) -> Iterator[Prometheus]:
    """Run a Prometheus that reads pages every second, with alert rules.

    Args:
        directory: for its configuration and data.
        targets: job to "host:port" of its pages.
        rules: file of the alert rules.
    """
    built = program("prometheus")
    configuration = {
        "global": {
            "scrape_interval": "1s",
            "evaluation_interval": "1s",
            "external_labels": {"rockoon_docs": "https://docs.example.com"},
        },
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": pages}]}
            for job, pages in targets.items()
        ],
    }
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    address = f"127.0.0.1:{choose_port()}"
    command = [str(built), f"--config.file={directory / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={directory / 'samples'}", f"--web.listen-address={address}"]
    with (
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):

        def is_ready() -> bool:
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready") as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        try:
            wait_until(is_ready, "Prometheus is ready")
            yield Prometheus(address)
        finally:
            process.terminate()
