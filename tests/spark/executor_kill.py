"""Builds an index in a session with separate executors, and kills one of them during the build.

Run as a program by `test_killed_executor`, because the session of the other tests has no executors.
Arguments: the store, the target.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from rockoon_spark.index.target import stagings
from rockoon_spark.jobs.index import build_index
from rockoon_spark.session import session
from support.key_index import SHAPE
from support.spark_processes import BRIEF_JAVA, LOOK_SECONDS, children, command_of


def executors(driver_java: int) -> list[int]:
    return [
        pid for pid in children(driver_java) if "CoarseGrainedExecutorBackend" in command_of(pid)
    ]


def main(store: str, target: Path) -> None:
    spark = session(
        "local-cluster[2,1,1024]",
        spark__executor__memory="512m",
        spark__driver__memory="512m",
        spark__driver__extraJavaOptions=BRIEF_JAVA,
        spark__executor__extraJavaOptions=BRIEF_JAVA,
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__local__dir=target.parent / "local",
    )
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    built: list[object] = []

    def build() -> None:
        built.append(
            build_index(
                spark,
                store,
                target,
                slots=SHAPE.slots,
                units=SHAPE.units,
                sealed_only=False,
                split_bytes=1000,
            )
        )

    building = threading.Thread(target=build)
    building.start()
    killed = 0
    while building.is_alive() and not killed:
        # Some tasks have ended, others have not.
        if any(path.suffix == ".keys" for each in stagings(target) for path in each.iterdir()):
            killed = executors(java)[0]
            os.kill(killed, signal.SIGKILL)
        building.join(LOOK_SECONDS)
    building.join()
    assert killed
    assert built
    # Spark has replaced the killed executor, or was about to.
    assert killed not in executors(java)
    lost = spark._jsc.sc().statusStore().executorList(False)
    assert any(not lost.apply(number).isActive() for number in range(lost.size()))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
