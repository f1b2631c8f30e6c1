"""Fixture of index tests: a store whose messages have keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.key_index import Indexed, small_settings


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[Indexed]:
    owner = Indexed(small_settings(tmp_path / "store"))
    yield owner
    owner.close()
