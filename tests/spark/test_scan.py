"""`rockoon.arrow.scan`: messages as Arrow record batches, without PySpark."""

import json
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rockoon.arrow
from rockoon.testing.disposable import DisposableCluster
from rockoon_broker.store.settings import Flush
from rockoon_spark.records.columns import COLUMNS, arrow_schema
from support.store_directory import NOW_MS, Owner, settings

PAGE = Path(__file__).parent.parent.parent / "docs" / "use" / "notebooks.md"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Message n of topics T0 and T1 is stored at NOW_MS + n seconds."""
    root = tmp_path_factory.mktemp("scan") / "broker-a"
    owner = Owner(settings(root, commit_log_file_bytes=16_384, flush=Flush.ASYNC))
    for n in range(100):
        owner.clock.time_ms = NOW_MS + 1000 * n
        owner.append(f"T{n % 2}", 0, [b"%d" % n + bytes(700)], tags="a" if n % 3 else "b")
    owner.store.close()
    return root


def numbers(place: object, *topics: str, **arguments: Any) -> list[int]:
    with rockoon.arrow.scan(place, topics or None, columns=["body"], **arguments) as reader:  # type: ignore[arg-type]
        return sorted(int(row["body"].rstrip(b"\0")) for row in reader.read_all().to_pylist())


def test_the_arguments_narrow_what_is_read(store: Path) -> None:
    assert numbers(store) == numbers(str(store)) == list(range(100))
    assert numbers(store, "T1") == list(range(1, 100, 2))
    assert numbers(store, "T0", "T1", tags=["b", "c"]) == list(range(0, 100, 3))
    middle = NOW_MS + 40_000
    when = datetime.fromtimestamp(middle / 1000, UTC)
    assert numbers(store, since=middle) == numbers(store, since=when) == list(range(40, 100))
    assert numbers(store, until=when.isoformat()) == list(range(40))
    assert numbers(store, options={"assign": '{"T1": [0]}'}) == numbers(store, "T1")
    reader = rockoon.arrow.scan(store)
    assert reader.schema == arrow_schema(list(COLUMNS))


def test_a_limit_ends_the_read(store: Path) -> None:
    assert numbers(store, limit=7) == list(range(7))
    assert numbers(store, limit=0) == []
    assert len(numbers(store, limit=1000)) == 100
    with rockoon.arrow.scan(store, "T0") as reader:
        assert reader.read_next_batch().num_rows


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"topics": "TO1"}, "topic 'TO1' does not exist; did you mean 'T1'"),
        ({"columns": ["bdoy"]}, "did you mean 'body'"),
        ({"since": "yesterday"}, "option startingTimestamp: 'yesterday' is neither"),
        ({"limit": -1}, "limit: -1 is negative"),
        ({"topics": "T1", "options": {"Topics": "T0"}}, "option topics: an argument of scan has"),
        ({"options": {"PATH": "/elsewhere"}}, "option path: an argument of scan has set it"),
        ({"options": {"maxOffsetsPerTrigger": "1"}}, "an option of streams, not of batch reads"),
    ],
)
def test_a_wrong_argument_is_refused_when_scan_is_called(
    store: Path, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        rockoon.arrow.scan(store, **arguments)


def test_neither_pyspark_nor_pandas_is_imported_and_a_missing_package_is_named(store: Path) -> None:
    script = f"""
        import sys, rockoon.arrow
        print(rockoon.arrow.scan({str(store)!r}, "T1", tags="a").read_all().num_rows)
        print(any(name.partition(".")[0] in ("pyspark", "py4j", "pandas") for name in sys.modules))
        for name in [each for each in sys.modules if each.startswith("rockoon_spark")]:
            del sys.modules[name]
        sys.modules["rockoon_spark"] = None
        try:
            rockoon.arrow.scan("127.0.0.1:9876")
        except ImportError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "33",
        "False",
        "rockoon.arrow.scan needs the package rockoon-spark",
    ]


def test_each_example_of_the_page_runs(
    cluster: DisposableCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.new_topic("notebook")
    with cluster.connect() as connection:
        for n in range(10):
            connection.send(topic, json.dumps({"amount": n}).encode(), keys=f"order-{n % 2}")
    text = PAGE.read_text()
    text = text.replace("127.0.0.1:9876", ",".join(cluster.nameservers))
    text = text.replace('"orders"', f'"{topic}"')
    names: dict[str, Any] = {"__name__": "example"}
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
    assert len(examples) == 5
    assert isinstance(names["table"], pa.Table)
    assert names["table"].num_rows == 10
    assert names["frame"].groupby("keys").size().to_dict() == {"order-0": 5, "order-1": 5}
    assert sum(amount for _, amount in names["amounts"]) == 45
    assert names["orders"].height == 10
    assert names["asyncio"].run(names["count"]()) == 10
    assert capsys.readouterr().out
