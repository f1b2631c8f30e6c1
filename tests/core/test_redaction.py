"""Addresses with secrets, as they appear in error texts."""

import pytest

from rockoon_core.valid_text import redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://KEY:SECRET@bucket/logs", "s3://***@bucket/logs"),
        ("S3://KEY:SECRET@bucket", "S3://***@bucket"),
        ("s3://KEY:SE/CR+ET@bucket/logs", "s3://***@bucket/logs"),
        ("s3://KEY:SE/CR@ET@bucket/logs", "s3://***@bucket/logs"),
        ("abfss://:SECRET@store.dfs.example/c", "abfss://***@store.dfs.example/c"),
        ("hdfs://someone@name-node:8020/lake", "hdfs://***@name-node:8020/lake"),
        ("http://user:SECRET@collector:4317", "http://***@collector:4317"),
        ("abfs://store/c?sv=2024&sig=SECRET%2B&se=1", "abfs://store/c?sv=2024&sig=***&se=1"),
        ("s3://b/x?region=eu&secret_key=SECRET", "s3://b/x?region=eu&secret_key=***"),
        ("s3://b/x?Access_Key=SECRET#part", "s3://b/x?Access_Key=***#part"),
        (
            "Cannot parse URI: 's3://KEY:SE/CRET@bucket/x' due to syntax error, nor s3://A:SECRET@b",
            "Cannot parse URI: 's3://***@bucket/x' due to syntax error, nor s3://***@b",
        ),
        (ValueError("s3://KEY:SECRET@bucket"), "s3://***@bucket"),
    ],
)
def test_a_secret_of_an_address_is_masked(text: object, expected: str) -> None:
    assert "SECRET" not in expected
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "/var/lib/rockoon/store",
        "s3://bucket/logs/a@b",
        "hdfs://name-node:8020/lake",
        "http://127.0.0.1:9090/metrics?design=1",
        "queue orders@broker-a:0 was deleted; see http://host/x of broker 'a@b'",
        "gs://bucket/x?region=eu",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text
