"""`python -m rockoon_spark index ...`, and what to hand to `spark-submit`."""

import sys

from rockoon_spark.commands import main

raise SystemExit(main(sys.argv[1:], "rockoon_spark"))
