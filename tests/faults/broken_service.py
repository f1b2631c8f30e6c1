"""A service with one of its mechanisms broken on purpose, so that a scenario has something to catch.

python -m faults.broken_service MECHANISM MODULE [what the service takes]
"""

import runpy
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


def replace(path: str, made: Callable[[Any], Any]) -> None:
    """Put `made(what is there)` in the place of "module:name" or "module:Class.name"."""
    module, _, name = path.partition(":")
    *owners, last = name.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    setattr(owner, last, made(getattr(owner, last)))


def nothing(*_: object, **__: object) -> None:
    return None


def broker_syncs_nothing() -> None:
    replace("rockoon_broker.store.disk:Disk.fdatasync", lambda _: nothing)


def broker_syncs_no_names() -> None:
    replace("rockoon_broker.store.disk:Disk.sync_directory", lambda _: nothing)


def offset_syncs_nothing() -> None:
    replace("rockoon_offset.disk:Disk.fdatasync", lambda _: nothing)


def offset_syncs_no_names() -> None:
    replace("rockoon_offset.disk:Disk.sync_directory", lambda _: nothing)


# Mechanism → the module that it is in, what breaks it, and the scenarios that have to notice.
MECHANISMS: dict[str, tuple[str, Callable[[], None], Iterable[str]]] = {
    "broker-sync": ("rockoon_broker", broker_syncs_nothing, ("broker-power",)),
    "broker-names": ("rockoon_broker", broker_syncs_no_names, ("broker-power",)),
    "offset-sync": ("rockoon_offset", offset_syncs_nothing, ("offset-power",)),
    "offset-names": ("rockoon_offset", offset_syncs_no_names, ("offset-power",)),
}


def main() -> None:
    mechanism, module = sys.argv[1:3]
    of_module, break_it, _ = MECHANISMS[mechanism]
    if of_module == module:
        break_it()
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
