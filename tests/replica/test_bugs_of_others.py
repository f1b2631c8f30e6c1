"""What went wrong in other systems, under the names by which it is known, and what holds here.

Each docstring says what happened, then what this test shows. Reports of RocketMQ are numbers of its
issues, as are those of BookKeeper and NATS; KIP and KAFKA are Kafka's.
"""

from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.replication_rules import Config, Report, elected, rank_of
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support.replicas import opened
from support.store_directory import crashed_copy

THREE = Config(frozenset({"a", "b", "c"}), 2)


def flip(path: Path, position: int) -> None:
    """Change a bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_nats_7549_one_bit_on_one_copy_elects_nobody_without_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    """A bit flipped in the files of a minority lost acknowledged messages of the whole stream.

    Here a start that has to cut whole records for it says so before it cuts, and the copy counts in
    no election until it has copied again: not even together with one that never had the messages.
    """
    with opened(tmp_path / "a", commit_log_file_bytes=1 << 20) as a:
        a.open_epoch(1)
        behind = a.append().end_offset
        a.store.confirm(behind)
        a.write_point()
        first = a.append(bodies=[b"acknowledged by a and b"])
        a.append(bodies=[b"this one too"])
        a.sync()
        boundaries, end = a.store.boundaries(), a.store.durable_end
        crashed_copy(tmp_path / "a", tmp_path / "after")
    root, log = tmp_path / "after", tmp_path / "after" / "commitlog" / f"{0:020}"
    flip(log, first.first_physical_offset + 95)
    damaged = log.read_bytes()
    (root / "config").mkdir(exist_ok=True)
    file = ReplicaFile(root / "config", Disk())
    file.write(ReplicaFacts(promised=1))

    def lost(_: str) -> None:
        assert log.read_bytes() == damaged
        file.doubt()

    with opened(root, commit_log_file_bytes=1 << 20, on_loss=lost) as again:
        assert again.store.durable_end == first.first_physical_offset
        facts = file.read()
        assert facts is not None
        told = {
            "a": Report(rank_of(again.store.boundaries(), again.store.durable_end), facts.sound),
            "c": Report(rank_of(boundaries, behind), sound=True),
        }
    assert elected(THREE, told) is None
    told["b"] = Report(rank_of(boundaries, end), sound=True)
    assert elected(THREE, told) == "b"
