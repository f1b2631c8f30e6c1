"""Three copies of a log whose leaders change and whose machines lose power: they agree."""

import random
from pathlib import Path

import pytest

from rockoon_core.replication_rules import (
    Config,
    Report,
    committed_end,
    consistent_point,
    elected,
    rank_of,
)
from rockoon_format.log_marks import LOG_TOPIC, TOPIC_TAG, decode_topic_change
from rockoon_format.properties import PROPERTY_TAGS, decode
from rockoon_format.record import MAGIC_BLANK, decode_record
from rockoon_replica.messages import TAIL_BYTES
from support.replicas import Replica
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import PowerCutDisk

NAMES = ("a", "b", "c")
# Several per run, so that the record of an epoch, and a blank before it, often begins a file.
FILE_BYTES = 4096
CONFIG = Config(frozenset(NAMES), 2)
QUEUES = [(topic, queue_id) for topic in "TU" for queue_id in range(2)]


class Copies:
    """Replicas under one scheduler, which makes a member's decisions by the same rules.

    Attributes:
        committed: the log up to the highest committed offset.
    """

    def __init__(self, root: Path, choose: random.Random) -> None:
        self._root = root
        self._choose = choose
        self._cuts = 0
        self._homes = {name: root / name for name in NAMES}
        for home in self._homes.values():
            home.mkdir()
        self.replicas = {name: self._opened(name) for name in NAMES}
        self.committed = b""
        self._appended = 0
        self._epoch = self._epoch_start = 0
        self._leader: str | None = None
        self._matched: set[str] = set()
        # Topics whose messages must be deleted, and the offset of the record with the deletion.
        self._going: dict[str, int] = {}
        self.elect()

    def _opened(self, name: str) -> Replica:
        home = self._homes[name]
        return Replica(home, PowerCutDisk(home), commit_log_file_bytes=FILE_BYTES)

    def reopen(self, name: str) -> None:
        self.replicas[name].store.close()
        self.replicas[name] = self._opened(name)

    def elect(self) -> None:
        """Two of three report; a leader that learns late of its end appends once more."""
        former, choose = self._leader, self._choose
        reports = {
            name: Report(rank_of(store.boundaries(), store.durable_end), sound=True)
            for name in choose.sample(NAMES, 2)
            for store in [self.replicas[name].store]
        }
        self._leader = elected(CONFIG, reports)
        assert self._leader is not None
        if former is not None:
            if former not in reports and choose.random() < 0.5:
                self._append(former)
            self.reopen(former)
        self._epoch += 1
        self._going.clear()
        self._matched = {self._leader}
        self._epoch_start = self.replicas[self._leader].open_epoch(self._epoch)

    def append(self) -> None:
        if self._leader is not None:
            self._append(self._leader)

    def _append(self, name: str) -> None:
        self._appended += 1
        body = b"%d " % self._appended
        bodies = [
            body + bytes(self._choose.randrange(600)) for _ in range(self._choose.choice((1, 3)))
        ]
        topic, queue_id = self._choose.choice(QUEUES)
        if not self._is_going(topic):
            self.replicas[name].append(topic, queue_id, bodies)

    def _is_going(self, topic: str) -> bool:
        assert self._leader is not None
        return self.replicas[self._leader].store.visible_end < self._going.get(topic, 0)

    def begin_anew(self) -> None:
        """Delete a topic and create it again."""
        topic = self._choose.choice("TU")
        if self._leader is not None and not self._is_going(topic):
            self._going[topic] = self.replicas[self._leader].begin_anew(topic).end_offset

    def copy(self, name: str, pieces: int) -> None:
        """Match the logs, unless this was done in this epoch, and copy some of the following
        bytes."""
        if self._leader in (None, name):
            return
        leader, follower = self.replicas[self._leader or ""], self.replicas[name]
        if name not in self._matched:
            point = common_end(leader, follower)
            if point is None:
                follower = self._remake(name)
            elif point < follower.store.appended_end:
                follower.store.close_to_truncate(point)
                follower = self.replicas[name] = self._opened(name)
            self._matched.add(name)
        for _ in range(pieces):
            at = follower.store.appended_end
            data = leader.store.read_raw(at, self._choose.choice((1, 300, 3000)))
            if not data:
                break
            follower.store.write_raw(at, data)

    def _remake(self, name: str) -> Replica:
        """Begin again, empty: no record is common with the leader."""
        assert self.replicas[name].store.committed_end == 0
        self.replicas[name].store.close()
        self._cuts += 1
        self._homes[name] = self._root / f"{name}{self._cuts}"
        self._homes[name].mkdir()
        self.replicas[name] = self._opened(name)
        return self.replicas[name]

    def commit(self) -> None:
        if self._leader is None:
            return
        store = self.replicas[self._leader].store
        ends = {name: self.replicas[name].store.durable_end for name in self._matched}
        end = committed_end([CONFIG], ends, self._epoch_start, store.committed_end)
        log = self.replicas[self._leader].log_bytes(end)
        if end > len(self.committed):
            assert log.startswith(self.committed)
            self.committed = log
        for name in self._matched:
            self.replicas[name].store.confirm(min(end, self.replicas[name].store.appended_end))

    def cut_power(self, name: str) -> None:
        replica = self.replicas[name]
        durable_end = replica.store.durable_end
        disk = replica.disk
        assert isinstance(disk, PowerCutDisk)
        self._cuts += 1
        self._homes[name] = self._root / f"{name}{self._cuts}"
        disk.cut(self._homes[name], self._choose)
        replica.store.close()
        self.replicas[name] = self._opened(name)
        assert self.replicas[name].store.appended_end >= durable_end
        self._matched.discard(name)
        if name == self._leader:
            self._leader = None
            self.elect()

    def check(self) -> None:
        for replica in self.replicas.values():
            end = replica.store.committed_end
            assert replica.log_bytes(end) == self.committed[:end]
            assert replica.store.visible_end <= end
            listed = visible(self.committed[: replica.store.visible_end])
            for queue in QUEUES:
                # Remains of a deletion after a power cut are removed before the log is listed up to
                # there: the mark is at the start of the record with the deletion.
                mark = replica.store.dropped_marks.get(queue[0], 0)
                is_gone = mark >= replica.store.visible_end
                assert replica.bodies(*queue) == ([] if is_gone else listed.get(queue, []))

    def settle(self) -> None:
        """Copy the leader's whole log to all."""
        for _ in range(2):
            for name in NAMES:
                self.copy(name, 1000)
            for replica in self.replicas.values():
                replica.sync()
            self.commit()
        a, b, c = self.replicas.values()
        assert a.log_bytes() == b.log_bytes() == c.log_bytes() == self.committed
        for queue in QUEUES:
            assert a.bodies(*queue) == b.bodies(*queue) == c.bodies(*queue)

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.store.close()

    def problems(self) -> list[str]:
        return [each for home in self._homes.values() for each in verify_store(home)]


def common_end(leader: Replica, follower: Replica) -> int | None:
    """Return the common end of a follower's log and the leader's, as agreed when it connects.

    Where the record of an epoch did not fit, one log has a blank, and the other may have records.
    """
    point = consistent_point(leader.store.boundaries(), follower.store.boundaries())
    while point is not None:
        blank = leader.store.blank_at(point)
        point = point if blank is None else blank
        size = min(point, TAIL_BYTES)
        if leader.store.tail_crc(point, size) == follower.store.tail_crc(point, size):
            break
        point = follower.store.blank_at(point - 1)
        assert point is not None, "other bytes of the same epoch"
    return point


def visible(log: bytes) -> dict[tuple[str, int], list[bytes]]:
    """Return the visible messages of each queue, derived record by record."""
    found: dict[tuple[str, int], list[bytes]] = {}
    at = 0
    while at < len(log):
        size, magic = int.from_bytes(log[at : at + 4]), int.from_bytes(log[at + 4 : at + 8])
        if magic != MAGIC_BLANK & 0xFFFFFFFF:
            record = decode_record(log[at : at + size])
            topic = record.topic.decode()
            if topic != LOG_TOPIC:
                queue = found.setdefault((topic, record.queue_id), [])
                assert record.queue_offset == len(queue)
                queue.append(record.body)
            elif decode(record.properties)[PROPERTY_TAGS] == TOPIC_TAG:
                over = decode_topic_change(record.body).restarted
                found = {queue: bodies for queue, bodies in found.items() if queue[0] not in over}
        at += size
    return found


def run(root: Path, seed: int, steps: int) -> None:
    choose = random.Random(seed)
    copies = Copies(root, choose)
    for _ in range(steps):
        name, dice = choose.choice(NAMES), choose.random()
        if dice < 0.3:
            copies.append()
        elif dice < 0.6:
            copies.copy(name, choose.randrange(1, 6))
        elif dice < 0.75:
            copies.replicas[name].sync()
        elif dice < 0.9:
            copies.commit()
        elif dice < 0.94:
            copies.cut_power(name)
        elif dice < 0.96:
            copies.elect()
        elif dice < 0.98:
            copies.begin_anew()
        else:
            copies.replicas[name].write_point()
        copies.check()
    copies.settle()
    copies.close()
    assert copies.problems() == []


@pytest.mark.parametrize("seed", seeds(2))
def test_copies_agree_on_all_that_was_ever_committed(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(40))
def test_copies_agree_for_long(tmp_path: Path, seed: int) -> None:
    """Needs some seconds for each seed."""
    run(tmp_path, seed, 200)
