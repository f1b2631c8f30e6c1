"""Settings of services on this machine, as the services print them, for `doctor` and `support`."""

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rockoon.cli.failures import CommandError

SERVICES = ("nameserver", "broker", "offset", "gateway")
PRINT_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class PrintedSettings:
    """The settings of one service, or the error of a service that refuses its file.

    Attributes:
        service: "broker", "nameserver", "offset" or "gateway".
        file: its TOML file.
        text: every setting with its source, without secrets; empty if there is an error.
        error: the refusal; empty if the settings are valid.
    """

    service: str
    file: Path
    text: str = ""
    error: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return tomllib.loads(self.text)

    @property
    def name(self) -> str:
        return f"{self.service} ({self.file})"


def parse_settings_option(option: str) -> tuple[str, Path]:
    """Parse SERVICE=FILE. Raises CommandError."""
    service, _, file = option.partition("=")
    if service not in SERVICES or not file:
        raise CommandError(
            f"--settings {option}: expected SERVICE=FILE, where SERVICE is {', '.join(SERVICES)}"
        )
    return service, Path(file)


def read_settings(option: str) -> PrintedSettings:
    """Let a service read its file and the environment, and print its settings.

    The service runs in a process of its own, because the SDK does not import services. Raises
    CommandError: the option is not SERVICE=FILE, or the service is not installed here.
    """
    service, file = parse_settings_option(option)
    command = [sys.executable, "-m", f"rockoon_{service}", "--config", str(file)]
    try:
        ran = subprocess.run(
            [*command, "--print-settings"],
            capture_output=True,
            text=True,
            timeout=PRINT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PrintedSettings(service, file, error="printing the settings takes too long")
    if "No module named" in ran.stderr:
        raise CommandError(
            f"rockoon-{service} is not installed for {sys.executable}: run this command with the "
            "Python of the service"
        )
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
        return PrintedSettings(service, file, error=lines[-1])
    return PrintedSettings(service, file, text=ran.stdout)
