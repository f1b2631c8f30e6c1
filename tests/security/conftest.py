"""Authorities for tests of encrypted connections."""

from pathlib import Path

import pytest

from rockoon.local.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that no client or service trusts."""
    return Authority(tmp_path / "stranger")
