"""One Spark session and one cluster for all tests of this directory: they take seconds to start."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.session import session
from support.spark_processes import BRIEF_JAVA, BRIEF_PYTHON, BRIEF_SETTINGS


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", BRIEF_PYTHON, prepend=os.pathsep)
        found = session(
            "local[2,4]",
            spark__ui__enabled="false",
            spark__sql__shuffle__partitions=2,
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__local__dir=scratch,
            spark__sql__warehouse__dir=scratch / "warehouse",
            spark__driver__memory="1g",
            spark__driver__extraJavaOptions=BRIEF_JAVA,
            **BRIEF_SETTINGS,
        )
    yield found
    found.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(brokers=2) as running:
        yield running
