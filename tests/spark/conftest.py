"""One Spark session and one cluster for all tests of this directory: they take seconds to start."""

import os
import socket
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.session import session
from support.forks import Forks
from support.spark_processes import BRIEF_PYTHON, BRIEF_SETTINGS


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
            # The same process serves clients of Spark Connect.
            spark__plugins="org.apache.spark.sql.connect.SparkConnectPlugin",
            spark__connect__grpc__binding__address="127.0.0.1",
            spark__connect__grpc__binding__port=port,
            **BRIEF_SETTINGS,
        )
    yield found
    found.stop()


@pytest.fixture(scope="session")
def connect_address(spark: SparkSession) -> str:
    """The address of a server of Spark Connect, in the process of the classic session."""
    return f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"


@pytest.fixture(scope="session")
def connect(connect_address: str) -> Iterator[ConnectSession]:
    """A client of Spark Connect."""
    client = ConnectSession(connect_address)
    yield client
    client.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as running:
        yield running
