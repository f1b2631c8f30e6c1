"""Third-party requirements of our packages, for an environment into which ours are installed later.

`pip install -e services/broker` would search a registry for `rockoon-kernel`, or compile it. The
Makefile and the Dockerfile first install these requirements, and then only our packages.

    python tools/third_party.py FOLDER 'FOLDER[EXTRA]'... > requirements.txt
"""

import sys
import tomllib
from pathlib import Path


def main(folders: list[str]) -> None:
    found: set[str] = set()
    for word in folders:
        folder, _, extra = word.rstrip("]").partition("[")
        project = tomllib.loads(Path(folder, "pyproject.toml").read_text())["project"]
        wanted = project["dependencies"] + (
            project["optional-dependencies"][extra] if extra else []
        )
        found.update(each for each in wanted if not each.startswith("rockoon"))
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
