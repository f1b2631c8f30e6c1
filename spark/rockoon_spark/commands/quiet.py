"""Keeping Spark's log off a terminal, on which a command tells what there is to tell."""

import os
from pathlib import Path

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_OPTIONS = "SPARK_SUBMIT_OPTS"
_SETTINGS = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false"}


def quiet_settings() -> dict[str, str]:
    """Settings for a session that logs nothing; see `session`.

    The Java that is about to start has to know before it reads any setting, or it greets with seven
    lines. One that `spark-submit` has started has greeted already, and is told to say no more.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {**_SETTINGS, "spark__log__level": "OFF"}
    option = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    given = os.environ.get(_OPTIONS, "")
    if "-Dlog4j2.configurationFile=" not in given:
        os.environ[_OPTIONS] = f"{given} {option}".strip()
    return dict(_SETTINGS)
