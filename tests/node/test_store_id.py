"""A store's identity: created once, kept, and not replaced when it is damaged."""

from pathlib import Path

import pytest

from rockoon_core.errors import StoreCorrupt
from rockoon_node.store_directory import read_or_make_store_id


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_a_store_keeps_its_identity_and_another_has_another(tmp_path: Path) -> None:
    first = read_or_make_store_id(tmp_path / "a", write)
    assert len(first) == 32
    assert read_or_make_store_id(tmp_path / "a", write) == first
    assert read_or_make_store_id(tmp_path / "b", write) != first


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"nonsense", b"\xff" * 32, b"0" * 31, b"0" * 33, b"0" * 16 + b"\n" + b"0" * 15],
)
def test_a_damaged_identity_is_refused_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "id"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="id is damaged: it does not hold 32 hexadecimal"):
        read_or_make_store_id(path, write)
    assert path.read_bytes() == content


def test_an_identity_that_cannot_be_written_is_not_given_out(tmp_path: Path) -> None:
    def fails(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match="No space left"):
        read_or_make_store_id(tmp_path / "id", fails)
