"""A store joins the first cluster that it meets, and no other one by mistake."""

from pathlib import Path

import pytest

from rockoon_core.errors import StoreCorrupt
from rockoon_node.store_directory import StoreCluster, cluster_id
from rockoon_runtime.settings import SettingsError

OURS, OTHER = 0x1234, 0xABCD


def store(root: Path, accepted: int = 0) -> StoreCluster:
    return StoreCluster(root / "clusterId", write, accepted)


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_the_first_cluster_is_written_down_and_another_one_refused(tmp_path: Path) -> None:
    assert store(tmp_path).join(0) == ""
    assert not (tmp_path / "clusterId").exists()
    assert store(tmp_path).join(OURS) == ""
    assert (tmp_path / "clusterId").read_text() == "0000000000001234\n"
    assert store(tmp_path).known == OURS
    assert store(tmp_path).join(OURS) == ""
    # A nameserver of a former version sends none.
    assert store(tmp_path).join(0) == ""
    assert "belongs to cluster 0000000000001234" in store(tmp_path).join(OTHER)
    assert store(tmp_path).known == OURS


def test_a_store_goes_over_to_the_cluster_that_is_accepted_and_to_no_other(tmp_path: Path) -> None:
    assert store(tmp_path).join(OURS) == ""
    assert store(tmp_path, accepted=OTHER).join(OTHER + 1) != ""
    assert store(tmp_path, accepted=OTHER).join(OTHER) == ""
    assert store(tmp_path).known == OTHER


def test_a_store_that_serves_goes_on_when_its_cluster_becomes_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving = store(tmp_path)
    assert serving.join(OURS) == ""
    for _ in range(3):
        assert serving.join(OTHER) == ""
    assert caplog.text.count("the next start will be refused") == 1
    assert store(tmp_path).join(OTHER) != ""


@pytest.mark.parametrize("content", ["", "12", "x" * 16])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "clusterId").write_text(content)
    with pytest.raises(StoreCorrupt, match="16 hexadecimal digits"):
        store(tmp_path)


def test_a_setting_that_names_no_cluster_is_refused() -> None:
    assert cluster_id("accept_cluster_id", "") == 0
    assert cluster_id("accept_cluster_id", f"{OTHER:016x}") == OTHER
    with pytest.raises(SettingsError, match="accept_cluster_id: 'abcd' is not 16"):
        cluster_id("accept_cluster_id", "abcd")
