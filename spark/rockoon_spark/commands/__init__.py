"""The jobs as commands: `rockoon spark index ...`, or `spark-submit` with `rockoon_spark`.

Exit status: 0 for success, 1 for a failure or a difference (explained on standard error), 2 for
wrong usage, 130 after Ctrl-C.
"""

from rockoon_spark.commands.running import main

__all__ = ["main"]
