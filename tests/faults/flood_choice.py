"""Choice of attacks, services and times for the scenario `http2`."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from support.http2_attacks import ATTACKS

NAMESERVER, BROKER, OFFSET, GATEWAY = SERVICES = ("nameserver", "broker", "offset", "gateway")


@dataclass(frozen=True)
class FloodChoice:
    """Choice of the scenario.

    Args:
        attacks: patterns of the names of attacks.
        services: in addition to grpcio's server.
        tls: whether connections are encrypted, in turns.
        connections: number of connections of the attacker, in turns.
        seconds: duration of each attack.
        out: page whose tables get the figures.
    """

    attacks: Sequence[str] = ("*",)
    services: Sequence[str] = SERVICES
    tls: Sequence[bool] = (False, True)
    connections: Sequence[int] = (1, 20)
    seconds: float = 3.0
    out: Path | None = None

    def __post_init__(self) -> None:
        """Raises ValueError: a name is unknown, or a page would get tables with gaps."""
        if unknown := set(self.services) - set(SERVICES):
            raise ValueError(f"unknown services {sorted(unknown)}: choose from {SERVICES}")
        if not self.chosen():
            raise ValueError(f"no attack is named like {self.attacks}: {', '.join(ATTACKS)}")
        if self.out is not None and tuple(self.services) != SERVICES:
            raise ValueError("the tables have all services: write them without SERVICES")

    def chosen(self) -> list[str]:
        """Names of attacks."""
        return [name for name in ATTACKS if any(fnmatch(name, each) for each in self.attacks)]


# For a run of all scenarios.
BRIEF = FloodChoice(tls=(False,), connections=(1,), seconds=1.0)
