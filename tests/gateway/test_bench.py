"""`make bench-gateway`: what its table says, and its page."""

from pathlib import Path

from bench.compare.figures import NONE
from bench.compare.page import between
from bench.gateway.figures import Figures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway-bench.md"


def test_a_cell_is_the_range_of_the_rounds_and_a_sum_says_what_it_is_of() -> None:
    figures = Figures(["ours", "theirs"])
    for gateway in (100.0, 140.0):
        figures.add("ours", "send", {"calls/s": gateway * 10})
        figures.add_sum("ours", "send", "CPU", {"gateway": gateway, "broker": 60.0, "etcd": 0.5})
    figures.add("theirs", "send", {"calls/s": 500.0})
    figures.add_sum("theirs", "send", "CPU", {"the JVM": 300.0})
    assert figures.table().splitlines() == [
        "| measure | unit | ours | theirs |",
        "|---|---|---|---|",
        f"| send | calls/s | 1,000 {NONE} 1,400 | 500 |",
        f"| | CPU | 160 {NONE} 200 | 300 |",
        f"| | of it | gateway 120, broker 60.0 | {NONE} |",
    ]


def test_its_page_has_the_place_for_it() -> None:
    assert between(PAGE)
