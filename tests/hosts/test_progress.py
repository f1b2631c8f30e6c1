"""What is found in looks at stored progress."""

from hosts.progress import Progress

HANDLED = {"readers": {("q", 0): 10, ("q", 1): 20, ("q", 2): 40}}


def test_progress_that_follows_what_was_handled_is_right() -> None:
    progress = Progress()
    for epoch, offset, at_ns in ((1, 0, 5), (1, 2, 20), (2, 2, 30), (2, 3, 45)):
        progress.note("readers", "q", epoch, offset, at_ns)
    assert progress.faults == []
    assert progress.skipped(HANDLED) == []


def test_progress_never_passes_what_was_not_handled_yet() -> None:
    progress = Progress()
    progress.note("readers", "q", 1, 3, 30)
    progress.note("readers", "q", 1, 4, 50)
    assert progress.skipped(HANDLED) == [
        "readers q: 3 was stored before 2 was handled",
        "readers q: 4 was stored before 3 was handled",
    ]


def test_neither_progress_nor_its_epoch_goes_back() -> None:
    progress = Progress()
    for epoch, offset in ((2, 2), (2, 1), (1, 2), (3, 2)):
        progress.note("readers", "q", epoch, offset, 50)
        progress.note("writers", "q", epoch, 0, 50)
    assert progress.faults == [
        "readers q: (2, 2) went back to (2, 1)",
        "readers q: (2, 1) went back to (1, 2)",
        "writers q: (2, 0) went back to (1, 0)",
    ]
