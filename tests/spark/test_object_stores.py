"""Stores in S3: all forms of an address, settings by options, and errors that name the option."""

import pickle
import re
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from rockoon_broker.store.settings import Flush
from rockoon_spark.export.target import ExportTarget
from rockoon_spark.files import list_log, read_bytes
from rockoon_spark.object_stores import StoreReadError, child, with_s3_settings
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.source.log_source import DataLost
from rockoon_spark.source.option_table import OptionError
from support.store_directory import Owner, settings

SECRET = "SEC/RET+key"
KEYS = {"s3AccessKey": "reader", "s3SecretKey": SECRET, "s3Region": "eu-west-1"}
ROWS = list(range(40))


@dataclass
class Server:
    """A local S3 server with a store at bucket/stores/broker-a."""

    address: str

    def options(self, **changes: str) -> dict[str, str]:
        return {
            "path": "s3://bucket/stores/broker-a",
            "s3Endpoint": self.address,
            **KEYS,
            **changes,
        }

    def files(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key="reader",
            secret_key=SECRET,
            endpoint_override=self.address,
            region="eu-west-1",
            allow_bucket_creation=True,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("s3") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=16_384, flush=Flush.ASYNC))
    for n in ROWS:
        owner.append("orders" if n % 2 else "bills", 0, [b"%d" % n + bytes(700)])
    owner.store.close()
    running = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    found = Server(f"http://{host}:{port}")
    files = found.files()
    files.create_dir("bucket")
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        with files.open_output_stream(f"bucket/stores/broker-a/{path.relative_to(root)}") as out:
            out.write(path.read_bytes())
    yield found
    running.stop()


def read(options: dict[str, str]) -> list[int]:
    source = RockoonDataSource({"columns": "body", **options})
    reader = source.reader(source.schema())
    bodies = [
        body
        for partition in pickle.loads(pickle.dumps(reader.partitions()))
        for batch in reader.read(partition)
        for body in batch.column("body").to_pylist()
    ]
    return sorted(int(body.rstrip(b"\0")) for body in bodies)


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/stores/broker-a",
        "s3a://bucket/stores/broker-a",
        "S3A://bucket/stores/broker-a/",
        "s3://bucket/stores/broker-a?region=eu-central-1&scheme=http",
    ],
)
def test_each_form_of_an_address_is_the_store(server: Server, path: str) -> None:
    assert read(server.options(path=path)) == ROWS
    assert read(server.options(path=path, topics="orders")) == ROWS[1::2]


def test_key_and_settings_may_be_in_the_address(server: Server) -> None:
    host = server.address.removeprefix("http://")
    for path in (
        f"s3a://reader:{SECRET}@bucket/stores/broker-a?endpoint_override={server.address}",
        f"s3://reader:x@bucket/stores/broker-a?endpoint_override={host}&scheme=http",
    ):
        assert read({"path": path}) == ROWS


def test_a_dataframe_reads_it_in_tasks(spark: SparkSession, server: Server) -> None:
    frame = spark.read.format("rockoon").options(**server.options(s3Timeout="5")).load()
    assert frame.count() == len(ROWS)


def test_an_export_finds_its_directory_in_it(server: Server) -> None:
    place = with_s3_settings("s3a://bucket/lake", {"s3Endpoint": server.address, **KEYS})
    target = ExportTarget.of(place)
    target.make("_staging/run")
    target.write("_staging/run/manifest.json", b"{}")
    assert target.read("_staging/run/manifest.json") == b"{}"
    assert SECRET not in target.shown


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def failing(options: dict[str, str]) -> str:
    with pytest.raises((OptionError, StoreReadError)) as told:
        read(options)
    text = str(told.value)
    assert SECRET not in text
    assert "retention" not in text
    return text


def test_a_wrong_setting_is_an_error_that_names_its_option(server: Server, silent: str) -> None:
    def wrong(**changes: str) -> str:
        return failing(server.options(**changes))

    assert "check option s3Endpoint" in wrong(s3Endpoint="http://127.0.0.1:1")
    https = server.address.replace("http:", "https:")
    assert "check option s3Endpoint" in wrong(s3Endpoint=https)
    assert "s3Endpoint has scheme 'ftp'" in wrong(s3Endpoint="ftp://127.0.0.1:1")
    assert "s3Endpoint is not of the form http://host:port" in wrong(s3Endpoint="http://a b")
    assert "options s3Endpoint and s3Timeout" in wrong(s3Endpoint=silent, s3Timeout="0.2")
    assert "option s3Timeout is 'soon', expected seconds" in wrong(s3Timeout="soon")
    assert "option path" in wrong(path="s3://elsewhere/stores/broker-a")
    assert "option path" in wrong(path="s3://bucket/stores/broker-b")
    assert "option path names no bucket" in wrong(path="s3://")
    assert "parameter 'regoin' is unknown" in wrong(path="s3a://bucket/x?regoin=eu-west-1")
    assert "option s3Region: it is empty" in wrong(s3Region="")
    only_key = server.options()
    del only_key["s3SecretKey"]
    assert "both of the options s3AccessKey and s3SecretKey" in failing(only_key)
    assert "cannot be used with /tmp: it is for s3:// and s3a://" in wrong(path="/tmp")


def test_a_wrong_key_is_an_error_that_names_the_options(server: Server) -> None:
    def check_keys(after_calls: str) -> None:
        request = urllib.request.Request(
            f"{server.address}/moto-api/reset-auth",
            after_calls.encode(),
            {"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(request).close()

    check_keys("0")
    try:
        text = failing(server.options(s3AccessKey="stranger"))
    finally:
        check_keys("inf")
    assert "check options s3AccessKey, s3SecretKey and s3SessionToken" in text


def test_a_store_that_fails_during_a_read_is_not_reported_as_retention(server: Server) -> None:
    options = server.options()
    source = RockoonDataSource({"columns": "body", **options})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    place = with_s3_settings(options.pop("path"), options)
    first = list_log(place)[0]
    assert first.uri == child(place, "commitlog/00000000000000000000")
    elsewhere = re.sub(r"endpoint_override=[^&]*", "endpoint_override=127.0.0.1%3A1", first.uri)
    with pytest.raises(StoreReadError, match="check option s3Endpoint"):
        read_bytes(elsewhere, 0, 10)
    files = server.files()
    name = "bucket/stores/broker-a/commitlog/00000000000000000000"
    files.copy_file(name, "bucket/kept")
    files.delete_file(name)
    try:
        with pytest.raises(DataLost, match="was deleted by retention"):
            list(reader.read(partitions[0]))
    finally:
        files.move("bucket/kept", name)


def test_a_child_of_a_place_keeps_its_parameters() -> None:
    assert child("/store/", "a/b") == "/store/a/b"
    assert child("/st?re", "a") == "/st?re/a"
    assert child("s3://b/store/?region=x", "a") == "s3://b/store/a?region=x"
    assert with_s3_settings("s3a://b/c", {}) == "s3a://b/c"
    assert Path(with_s3_settings("/store", {})) == Path("/store")
