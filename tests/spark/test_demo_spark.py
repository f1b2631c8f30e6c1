"""`make demo-spark`: its data, the order of versions, and its steps on a part of the data."""

import random
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from rockoon.testing.disposable import DisposableCluster
from tools.demo_spark import __main__ as demo
from tools.demo_spark.records import PackageRecord, Version, newest, read_records


@pytest.fixture(scope="module")
def records() -> list[PackageRecord]:
    return read_records()


def test_versions_sort_as_debian_sorts_them() -> None:
    ascending = [
        "0~~",
        "0~a",
        "0",
        "0a",
        "0a1",
        "0+b1",
        "0.0",
        "0.9-1~deb12u1",
        "0.9-1",
        "0.9-1+b1",
        "0.9-1+deb12u2",
        "0.9-1+deb12u10",
        "0.9-2",
        "0.10-1",
        "1.0-rc1-1",
        "1:0.1-1",
    ]
    shuffled = random.Random(1).sample(ascending, len(ascending))
    assert sorted(shuffled, key=Version) == ascending
    assert Version("1.0") == Version("0:1.0-0") == Version("01.0")


def test_the_data_are_the_whole_index_and_versions_of_a_package_ascend(
    records: list[PackageRecord],
) -> None:
    found = newest(records)
    assert (len(records), len(found)) == (66_481, 63_666)
    versions: dict[str, list[Version]] = {}
    for record in records:
        versions.setdefault(record.package, []).append(Version(record.version))
    assert all(a <= b for each in versions.values() for a, b in pairwise(each))
    last = {record.package: record for record in records}
    assert last == found
    assert {demo.WITHDRAWN, *demo.ASKED_FOR} <= found.keys()


# `make demo-spark` does the same with all data, and prints each check that fails.
@pytest.mark.soak
def test_every_claim_holds(
    spark: SparkSession, records: list[PackageRecord], tmp_path: Path
) -> None:
    # All versions of a sixteenth of the packages, and of those that the steps name.
    named = {demo.WITHDRAWN, *demo.ASKED_FOR}
    some = [
        each for each in records if each.package in named or not crc32(each.package.encode()) % 16
    ]
    with DisposableCluster(brokers=2) as cluster:
        story = demo.SparkStory(cluster, spark, some, tmp_path)
        story.tell()
    assert len(story.verified.rows) == 10
    assert [row for row in story.verified.rows if not row[0]] == []
