"""Third-party requirements of our packages, for an environment with editable installs of ours.

`pip install -e services/broker` would search a registry for `rockoon-kernel`, or compile it. The
Makefile first installs these requirements, and then our packages without dependencies.

    python tools/third_party.py FOLDER... > requirements.txt
"""

import sys
import tomllib
from pathlib import Path


def main(folders: list[str]) -> None:
    found: set[str] = set()
    for folder in folders:
        project = tomllib.loads(Path(folder, "pyproject.toml").read_text())["project"]
        found.update(each for each in project["dependencies"] if not each.startswith("rockoon"))
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
