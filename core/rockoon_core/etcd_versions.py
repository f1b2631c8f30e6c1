"""Versions of etcd that keep what they have acknowledged. Pure."""

import re

# 3.5.0 to 3.5.2 lose acknowledged writes when they are killed (etcd-io/etcd#13766); of those up to
# 3.5.5, and of 3.4 before 3.4.22, members can come to differ. Source: the project's changelogs.
RECOMMENDED = "3.4.22 or later of 3.4, or 3.5.6 or later"


def is_recommended(version: str) -> bool:
    """Whether messages and progress may depend on an etcd.

    Args:
        version: as it tells it, for example "3.5.21"; what is no version is not recommended.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else (0, 0, 0)
    return (3, 4, 22) <= numbers < (3, 5, 0) or numbers >= (3, 5, 6)
