"""`make tables`: kills of writers, brokers and the catalogue of tables that follow a topic."""

import argparse
import tempfile
import time
from pathlib import Path

from tables.killing import Killing

from rockoon.testing.disposable import DisposableCluster


def main() -> None:
    parser = argparse.ArgumentParser(prog="make tables", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32))
    parser.add_argument("--catalog", choices=("rest", "sqlite"), default="rest")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.kills} kills, catalogue {options.catalog}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="rockoon-tables-") as directory,
        DisposableCluster(brokers=2) as cluster,
    ):
        print(Killing(cluster, Path(directory), options.seed, options.catalog).run(options.kills))


if __name__ == "__main__":
    main()
