"""Two profiles side by side, as ratios."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from load.profile import Profile

THRESHOLD = 0.15
OPERATIONS = ("send", "receive")
LEVELS = ("p50", "p99", "p99.9")


@dataclass(frozen=True)
class Ratio:
    """One figure of both runs.

    Args:
        name: name of the figure.
        a, b: values of the first run and of the second.
        higher_is_better: True for throughput, False for latency, CPU and memory.
        is_judged: whether a deterioration beyond the threshold counts.
    """

    name: str
    a: float
    b: float
    higher_is_better: bool
    is_judged: bool

    @property
    def ratio(self) -> float:
        """Return B divided by A; 1 if both are 0."""
        if self.a == self.b:
            return 1.0
        return self.b / self.a if self.a else float("inf")

    def is_worse(self, threshold: float) -> bool:
        """Return whether B is worse by more than this share of A."""
        if not self.is_judged:
            return False
        return self.ratio < 1 - threshold if self.higher_is_better else self.ratio > 1 + threshold


def _ratio(
    name: str, both: Sequence[float], *, is_judged: bool, higher_is_better: bool = False
) -> Ratio:
    a, b = both
    return Ratio(name, a, b, higher_is_better, is_judged)


def ratios(a: Profile, b: Profile) -> Iterator[Ratio]:
    """Return all figures that both have."""
    for name in OPERATIONS:
        if name not in a["operations"] or name not in b["operations"]:
            continue
        first, second = a["operations"][name], b["operations"][name]
        rates = (first["per_second"], second["per_second"])
        yield _ratio(f"{name}, messages/s", rates, is_judged=True, higher_is_better=True)
        for level in LEVELS:
            levels = (first["latency_ms"][level], second["latency_ms"][level])
            # One late message in a thousand may be random.
            yield _ratio(f"{name}, {level}, ms", levels, is_judged=level != LEVELS[-1])
    sent = [each["operations"].get("send", {}).get("count", 0) for each in (a, b)]
    for name in a["processes"].keys() & b["processes"].keys():
        first, second = a["processes"][name], b["processes"][name]
        if all(sent):
            # Of services; the load's own consumption does not count.
            judged = not name.startswith(("worker", "master", "auditor"))
            costs = [
                each["cpu_seconds"] / count * 1e6
                for each, count in zip((first, second), sent, strict=True)
            ]
            yield _ratio(f"{name}, CPU µs/message", costs, is_judged=judged)
        sizes = (first["memory_mib_max"], second["memory_mib_max"])
        yield _ratio(f"{name}, MiB", sizes, is_judged=False)


def differences(a: Profile, b: Profile) -> list[str]:
    """Return the reason why two profiles should not be compared; empty if they may be."""
    found = [
        f"the machines differ: {name} is {a['machine'].get(name)} and {b['machine'].get(name)}"
        for name in a["machine"].keys() | b["machine"].keys()
        if a["machine"].get(name) != b["machine"].get(name)
    ]
    own = {"run", "commit", "endpoint"}
    found += [
        f"the runs differ: {name} is {a['plan'].get(name)} and {b['plan'].get(name)}"
        for name in a["plan"].keys() | b["plan"].keys()
        if name not in own and a["plan"].get(name) != b["plan"].get(name)
    ]
    found += [
        f"{name} was stopped after {each['seconds']:.0f} s"
        for name, each in (("A", a), ("B", b))
        if each.get("stopped_early")
    ]
    busy = [each["load_average_before"] for each in (a, b)]
    if max(busy) > a["machine"]["cores"] / 2:
        found.append(f"somebody else was at work: load averages {busy[0]} and {busy[1]} before")
    return sorted(found)
