"""`python -m rockoon_spark index ...`; also the program for `spark-submit`."""

import sys

from rockoon_spark.commands import main

raise SystemExit(main(sys.argv[1:], "rockoon_spark"))
