"""Settings that keep Spark's log off the terminal, so that only the command's output is shown."""

import os
from pathlib import Path

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_OPTIONS = "SPARK_SUBMIT_OPTS"
_SETTINGS = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false"}


def quiet_settings() -> dict[str, str]:
    """Return settings for a session that logs nothing; see `session`.

    Java prints seven lines before it reads any Spark setting, so its log configuration is passed in
    an environment variable. A Java that `spark-submit` started has printed them already; the
    setting only stops further lines.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {**_SETTINGS, "spark__log__level": "OFF"}
    option = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    given = os.environ.get(_OPTIONS, "")
    if "-Dlog4j2.configurationFile=" not in given:
        os.environ[_OPTIONS] = f"{given} {option}".strip()
    return dict(_SETTINGS)
