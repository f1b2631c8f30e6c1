"""Build the collector and extract Prometheus before the tests, whose time is limited."""

from telemetry import real_collector, real_prometheus

from bench.compare.programs import NotHere


def main() -> None:
    for program in (real_collector.program, lambda: real_prometheus.program("prometheus")):
        try:
            print(program())
        except NotHere as absent:
            print(absent)


if __name__ == "__main__":
    main()
