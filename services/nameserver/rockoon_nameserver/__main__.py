"""`rockoon-nameserver`, or `python -m rockoon_nameserver`."""

import sys

from rockoon_nameserver.server import serve
from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.process import run


def main() -> int:
    return run("nameserver", "Rockoon's nameserver: routes in etcd", NameserverSettings, serve)


if __name__ == "__main__":
    sys.exit(main())
