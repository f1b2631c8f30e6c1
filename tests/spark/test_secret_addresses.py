"""Secrets in the addresses of stores and exports: no error text has them. Without Spark."""

import json
import traceback
from collections.abc import Callable

import pytest

from rockoon_spark.commands.running import main
from rockoon_spark.export.reading import file_problem
from rockoon_spark.export.target import (
    MANIFESTS,
    ExportedFile,
    ExportManifest,
    ExportTarget,
    ExportTargetError,
    manifests,
    newest_manifest,
    publish,
)
from rockoon_spark.files import LogFile, StoreReadError, list_log, list_topics
from rockoon_spark.generations.directory_generation import DirectoryGeneration
from rockoon_spark.object_stores import file_system, with_s3_settings
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.file_partition import deleted_text
from rockoon_spark.source.option_table import OptionError
from rockoon_spark.source.options import SourceOptions

# The file system of this scheme is in memory; its host and user mean nothing.
PLACE = "mock://KEY:SECRET@bucket/lake"
# A wrong parameter. The secret has a slash, which a valid URI would escape.
UNPARSED = "s3://KEY:SEC/RET@bucket/lake?regoin=eu-west-1"
UNKNOWN = "floppy://KEY:SECRET@bucket/lake"


def whole_text(error: BaseException) -> str:
    """An exception as Python and PySpark show it, with its causes."""
    return "".join(traceback.format_exception(error))


def exported(name: str) -> ExportTarget:
    """A target in memory with a file of some content."""
    target = ExportTarget(PLACE)
    target.make(name.rpartition("/")[0])
    with target.create(name) as stream:
        stream.write(b"something else")
    return target


def published_twice() -> None:
    target = ExportTarget(PLACE)
    for run_id in ("first", "second"):
        target.make(target.staging(run_id))
        publish(target, ExportManifest(1, run_id, {}, {}, [], []))


def read_whole(path: str) -> None:
    source = RockoonDataSource({"path": path})
    source.reader(source.schema()).partitions()


@pytest.mark.parametrize(
    "fail",
    [
        lambda: ExportTarget(UNPARSED).files,
        lambda: ExportTarget(UNKNOWN).files,
        lambda: newest_manifest(exported("strange/file")),
        lambda: newest_manifest(exported(f"{MANIFESTS}/00000001.json")),
        lambda: manifests(exported(f"{MANIFESTS}/00000002.json")),
        published_twice,
        lambda: list_log(UNPARSED),
        lambda: list_log(PLACE),
        lambda: list_topics(UNPARSED),
        lambda: read_whole(UNPARSED),
    ],
)
def test_an_error_about_a_place_does_not_have_its_secret(fail: Callable[[], object]) -> None:
    with pytest.raises((ExportTargetError, OptionError, StoreReadError)) as told:
        fail()
    text = whole_text(told.value)
    assert "SEC" not in text
    assert "RET@" not in text


def test_sentences_about_files_of_a_place_do_not_have_its_secret() -> None:
    file = LogFile(f"{PLACE}/commitlog/{0:020}", 0, 100)
    target = ExportTarget(PLACE)
    sentences = [
        deleted_text(file),
        file.shown,
        DirectoryGeneration(PLACE, "broker-a", 1).name,
        file_problem(target, ExportedFile("topic=T/x.parquet", "broker-a", 1, 1, 0, 0, 0)),
    ]
    for sentence in sentences:
        assert sentence is not None
        assert "***@bucket/lake" in sentence
        assert "SECRET" not in sentence


def test_the_broker_name_taken_from_a_place_does_not_have_its_secret() -> None:
    options = SourceOptions.parse({"path": "s3://KEY:SECRET@bucket"})
    assert getattr(options.source, "broker", "") == "***@bucket"


@pytest.mark.parametrize("user", ["", "KEY:SECRET@", "KEY:SEC/RET@"])
def test_an_at_sign_in_a_directory_does_not_change_the_bucket(user: str) -> None:
    place = with_s3_settings(
        f"s3://{user}bucket/stores@2/a:b@3",
        {"s3Region": "eu-west-1", "s3AccessKey": "KEY", "s3SecretKey": "SECRET"},
    )
    assert file_system(place)[1] == "bucket/stores@2/a:b@3"


@pytest.mark.parametrize("place", [UNPARSED, PLACE])
def test_a_command_does_not_print_the_secret_of_its_store(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--store", place, "--target", "/nowhere"]) == 1
    printed = capsys.readouterr()
    text = json.dumps([printed.out, printed.err])
    assert "***@bucket" in text or "commitlog" in text
    assert "SEC" not in text
