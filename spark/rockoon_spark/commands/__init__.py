"""The jobs as commands: `rockoon spark index ...`, or `spark-submit` with `rockoon_spark`.

The exit status is 0, 1 for a failure or a difference (sentences on standard error), 2 for wrong
usage, 130 when interrupted.
"""

from rockoon_spark.commands.running import main

__all__ = ["main"]
