"""Writes deploy/grafana/*.json, or says with --check which of them is not what `contents` says."""

import json
import sys
from pathlib import Path

from tools.dashboards.contents import DASHBOARDS

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"


def main() -> int:
    written = {
        FOLDER / f"{each.uid}.json": json.dumps(each.as_json(), indent=2) + "\n"
        for each in DASHBOARDS
    }
    if "--check" not in sys.argv[1:]:
        for path, text in written.items():
            path.write_text(text)
        return 0
    stale = [
        path for path, text in written.items() if not path.exists() or path.read_text() != text
    ]
    stale += [path for path in FOLDER.glob("*.json") if path not in written]
    for path in stale:
        sys.stderr.write(f"{path.name} is stale: run python -m tools.dashboards\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
