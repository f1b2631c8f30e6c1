"""The checkers of `make faults` find faults; so do its page and its cuts."""

import ast
import random
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from faults import broken_service, page
from faults.broken_service import MECHANISMS
from faults.calls import Maker, methods
from faults.copies import ALONE, Adversary
from faults.disk_model import Deed, DiskModel, Kind
from faults.flips import Truth, facts
from faults.fuzz import MAY, ROLES
from faults.history import History
from faults.kills import side_by_side
from faults.page import Row
from faults.power import cut_at, cut_points
from faults.scenario import Outcome
from faults.scenarios import SCENARIOS, named
from faults.workload import RUN, Acknowledged, Books, Stored

from load import payload
from rockoon.consumer.pull import PullOutOfRange
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue
from rockoon_format.record import Record, encode_host, encode_record
from support import log_history

QUEUE = MessageQueue("t", "broker-a", 0)
STREAM = payload.stream_of(1, 0)
HOST = encode_host("127.0.0.1", 1)


def bodies(count: int, first: int = 0) -> list[bytes]:
    return payload.encode(RUN, STREAM, first, np.zeros(count, np.int64), 60)


def messages(contents: list[bytes], tags: str = "even") -> list[Message]:
    """As read from QUEUE, from offset 0 on."""
    records = [
        encode_record(
            Record(
                topic=b"t",
                body=body,
                queue_offset=offset,
                physical_offset=1000 * offset,
                properties=b"TAGS\x01" + tags.encode() + b"\x02",
                born_host=HOST,
                store_host=HOST,
            )
        )
        for offset, body in enumerate(contents)
    ]
    return list(Batch(QUEUE, b"".join(records), [len(record) for record in records]))


def stored(found: list[Message], damaged: list[int] | None = None) -> Stored:
    return Stored({QUEUE: found}, {QUEUE: damaged or []}, [])


def books(count: int) -> Books:
    made = Books("t")
    made.sent[STREAM] = count
    made.acknowledged = [Acknowledged(n, STREAM, n, QUEUE, n) for n in range(count)]
    return made


def test_messages_that_are_all_there_are_no_fault() -> None:
    assert books(5).judge(stored(messages(bodies(5)))) == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (bodies(5)[:4], "in no queue"),
        (bodies(5)[1:], "in no queue"),
        ([bodies(5)[1], bodies(5)[0], *bodies(5)[2:]], "sent later"),
        ([*bodies(5), bodies(1)[0]], "copies are stored"),
        ([*bodies(5), bodies(1, 9)[0]], "nobody sent"),
        ([b"x", *bodies(5)[1:]], "nobody sent"),
    ],
    ids=["the last is lost", "the first is lost", "order", "twice", "invented", "damaged"],
)
def test_what_is_lost_moved_doubled_or_made_up_is_found(found: list[bytes], fault: str) -> None:
    assert any(fault in sentence for sentence in books(5).judge(stored(messages(found))))


def test_a_message_that_has_moved_within_its_queue_is_found() -> None:
    found = messages([bodies(1)[0], *bodies(2)])
    faults = books(2).judge(stored(found))
    assert any("not where they were acknowledged" in sentence for sentence in faults)


def test_what_is_acknowledged_after_a_cut_is_not_asked_for() -> None:
    assert books(5).until(3).judge(stored(messages(bodies(3)))) == []
    assert books(5).until(4).judge(stored(messages(bodies(3)))) != []


def truth() -> Truth:
    found = messages(bodies(3))
    places = {(QUEUE, message.queue_offset): message for message in found}
    return Truth(
        {place: facts(message) for place, message in places.items()},
        dict.fromkeys(places, "even"),
        [],
    )


def test_damage_that_readers_are_told_of_is_no_fault() -> None:
    assert truth().compare(stored(messages(bodies(3)))) == []
    assert truth().compare(stored(messages(bodies(3))[:2], damaged=[2])) == []


def test_hidden_changed_and_made_up_messages_are_found() -> None:
    whole = messages(bodies(3))
    assert "never come" in truth().compare(stored(whole[:2]))[0]
    assert "never come" in truth().compare(stored([]), "even")[0]
    assert "another properties" in truth().compare(stored(messages(bodies(3), "odd")))[0]
    assert "another body" in truth().compare(stored(messages(bodies(3, 1))))[0]
    assert "never there" in truth().compare(stored(messages(bodies(4))))[0]
    assert "by mistake" in truth().compare(stored(whole), "odd")[0]


def test_processes_that_acknowledge_in_turns_are_found() -> None:
    assert side_by_side([(1, b"a"), (2, b"a"), (3, b"b")]) == []
    assert side_by_side([(1, b"a"), (2, b"b"), (3, b"a")]) != []


def test_a_cut_stands_right_behind_what_was_acknowledged(tmp_path: Path) -> None:
    deeds = [Deed(Kind.WRITE, time, 1, 0, "", b"%d" % time) for time in range(0, 100, 10)]
    points = cut_points(deeds, [35], 4, random.Random(1))
    assert points[1] == points[3] == 4
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"x")
    inode = (root / "file").stat().st_ino
    model = DiskModel(root)
    done = [each._replace(inode=inode) for each in deeds]
    done[2:3] = [done[2]._replace(kind=Kind.SYNC_BEGIN), done[2]._replace(kind=Kind.SYNC_END)]
    assert cut_at(model, done, 5, tmp_path / "cut", None) == 40
    assert (tmp_path / "cut" / "file").read_bytes() == b"10"


def test_every_call_has_its_callers_and_every_mechanism_its_scenarios() -> None:
    assert set(MAY) == {method.name for method in methods()}
    assert all(callers <= set(ROLES) for callers in MAY.values())
    for mechanism in MECHANISMS.values():
        assert mechanism.noticed_by
        for name in mechanism.noticed_by:
            assert named(name)


@cache
def used_names() -> dict[str, set[str]]:
    """Return names used by each module of the services, their own or of an object."""
    root, used = Path(__file__).parents[2], {}
    for packages in ("core", "rpc", "services/*", "protos"):
        for path in root.glob(f"{packages}/rockoon_*/**/*.py"):
            parts = path.with_suffix("").parts
            first = next(at for at, part in enumerate(parts) if part.startswith("rockoon_"))
            used[".".join(parts[first:])] = {
                node.id if isinstance(node, ast.Name) else node.attr
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    return used


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_broken_on_purpose_is_what_services_use(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a mechanism replaced an unused name, no scenario could notice it."""
    replaced: list[tuple[str, Any]] = []
    monkeypatch.setattr(broken_service, "replace", lambda path, made: replaced.append((path, made)))
    MECHANISMS[mechanism].break_it()
    assert replaced
    for path, made in replaced:
        module, _, name = path.partition(":")
        *owners, last = name.split(".")
        owner: Any = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        assert callable(made(getattr(owner, last)))
        if module in used_names() and not owners:
            # Only this module's name refers to the replacement: modules that import it from
            # elsewhere have the original.
            assert last in used_names()[module], f"{path} is not used there"
        else:
            wanted = owners[-1] if last == "__init__" else last
            assert any(wanted in names for names in used_names().values()), (
                f"{path} is used nowhere"
            )


def test_alone_is_among_the_acts_of_every_length() -> None:
    adversary = Adversary(cast(Any, None), cast(Any, None), random.Random(1))
    for count in (1, 2, len(adversary.acts), 3 * len(adversary.acts)):
        chosen = adversary.choose(count)
        assert len(chosen) == count
        assert ALONE in chosen
        assert count < len(adversary.acts) or set(chosen) == {*adversary.acts}


def test_any_request_can_be_made() -> None:
    maker = Maker(random.Random(1), {"topic": ("t",)})
    for method in methods():
        raw = maker.message(method.descriptor.input_type).SerializeToString()
        method.request().ParseFromString(raw)
        assert isinstance(maker.mutated(raw), bytes)


def test_a_page_gets_its_table_between_the_marks(tmp_path: Path) -> None:
    rows = [
        Row(each, Outcome(1, 2, 3000, pause_seconds=4.5), seed=7, scale=0.5) for each in SCENARIOS
    ]
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\na stale row\n{page.END}\nafter\n")
    page.write(rows, path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert "| 3,000 | 4.5 s | 0 | `make faults ONLY=kills SEED=7 SCALE=0.5` |" in text
    # The other lines stay unchanged.
    page.write([Row(named("fuzz"), Outcome(9, 9, 9, ["broken"]), seed=8, scale=1)], path)
    later = path.read_text()
    assert "| 9 | 9 | 9 |  | 1 | `make faults ONLY=fuzz SEED=8` |" in later
    assert "| 3,000 | 4.5 s | 0 | `make faults ONLY=kills SEED=7 SCALE=0.5` |" in later
    assert later.count("| fuzz |") == 1


def test_what_was_answered_of_a_topic_is_judged_as_a_history() -> None:
    promised = books(5)
    promised.began_ns = {(STREAM, number): 0 for number in range(5)}
    history = History(promised)
    history.at_the_end(stored(messages(bodies(5))), 10)
    history.given(messages(bodies(5))[4])
    assert history.judge() == []
    history.pulled(QUEUE, 5, time.monotonic_ns(), PullOutOfRange(QUEUE, 5, 0, 4))
    history.given(messages(bodies(5, 1))[0])
    kinds = {each.partition(" (")[0] for each in history.judge()}
    assert kinds >= {log_history.BEYOND, log_history.NOT_SEEN, log_history.CHANGED}, kinds
