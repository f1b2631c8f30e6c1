"""`make tables-spark`: the functions of docs/use/tables.md for foreachBatch, with real packages.

Iceberg and Delta have no package for the PySpark of the project, so a separate environment in
.compare has an older one; the jars come from Maven. A query is ended after the sink's commit and
before its own, again and again; each row must be in the table once.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from bench.compare.programs import CACHE, is_made, mark, maven, run

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "use" / "tables.md"
PYSPARK = "pyspark==4.1.4"
BATCHES = 3

PROGRAM = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession

kind, folder, jars = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.local.dir": str(folder / "scratch"),
}
if kind == "iceberg":
    settings |= {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
    }
else:
    settings |= {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
FUNCTION
if kind == "iceberg":
    spark.sql("CREATE TABLE lake.sales.orders (id bigint) USING iceberg")


class Died(Exception):
    pass


def append_and_die(frame, batch_id):
    append(frame, batch_id)
    if batch_id not in died:
        died.add(batch_id)
        raise Died


died = set()
source = folder / "source"
source.mkdir()
expected = set()
for number in range(BATCHES):
    rows = range(number * 10, number * 10 + 10)
    expected |= set(rows)
    spark.range(rows.start, rows.stop).write.parquet(str(source / f"part-{number}"))
stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
for _ in range(100):
    query = (
        stream.parquet(f"{source}/*")
        .writeStream.foreachBatch(append_and_die)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        break
    except Exception as error:
        if "Died" not in str(error):
            raise
if kind == "iceberg":
    table = spark.table("lake.sales.orders")
else:
    table = spark.read.format("delta").load(PLACE)
found = sorted(row["id"] for row in table.collect())
assert found == sorted(expected), (len(found), len(expected))
assert len(died) > 1
print(f"{kind}: {len(found)} rows, each once; {len(died)} batches were repeated")
"""


def main() -> None:
    python = CACHE / "spark-4.1" / "bin" / "python"
    if not is_made(CACHE / "spark-4.1" / "requirement", PYSPARK.encode()):
        run([sys.executable, "-m", "venv", "--clear", CACHE / "spark-4.1"])
        run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PYSPARK])
        mark(CACHE / "spark-4.1" / "requirement", PYSPARK.encode())
    libraries = maven(HERE / "spark_jars.xml", CACHE / "spark-tables")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for kind in sys.argv[1:] or ("iceberg", "delta"):
        (function,) = (each for each in blocks if f"def append_to_{kind}" in each)
        folder = CACHE / f"tables-{kind}"
        run(["rm", "-rf", folder])
        folder.mkdir(parents=True)
        place = str(folder / "lake")
        text = function.replace("/data/lake/orders", place) + f"\nappend = append_to_{kind}"
        program = PROGRAM.replace("FUNCTION", text).replace("BATCHES", str(BATCHES))
        program = textwrap.dedent(program.replace("PLACE", repr(place)))
        jars = ",".join(str(path) for path in libraries.glob(f"*{kind}*.jar"))
        subprocess.run([python, "-c", program, kind, folder, jars], check=True)


if __name__ == "__main__":
    main()
