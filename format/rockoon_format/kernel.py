"""Kernel: selects the compiled kernel or NumPy.

`rockoon_kernel` (`format/kernel`) does the same as the NumPy code of this package, faster, if it
could be compiled. NumPy is the reference: it handles the cases that the kernel leaves to it, names
the faults of refused bytes, and does everything without a compiler. The environment variable
`ROCKOON_KERNEL` selects: `numpy`, `compiled` (an error if it is missing), or `auto`, the default.
"""

import os
from types import ModuleType

try:
    import rockoon_kernel
except ImportError:
    rockoon_kernel = None  # type: ignore[assignment]

VARIABLE = "ROCKOON_KERNEL"
INTERFACE = 22
"""Version of the kernel's functions; `format/kernel/src/lib.rs` has the same number."""
COMPILED, NUMPY, AUTO = "compiled", "numpy", "auto"

_compiled: ModuleType | None = rockoon_kernel
if _compiled is not None and getattr(_compiled, "INTERFACE", None) != INTERFACE:
    _compiled = None  # another version


def chosen(choice: str) -> ModuleType | None:
    """Return the compiled kernel if the choice allows it, None for NumPy.

    Raises:
        ImportError: the choice is `compiled`, and no kernel of this version is installed.
        ValueError: the choice is unknown.
    """
    if choice not in (COMPILED, NUMPY, AUTO):
        raise ValueError(f"{VARIABLE} is {choice!r}, not {COMPILED}, {NUMPY} or {AUTO}")
    if choice == COMPILED and _compiled is None:
        raise ImportError(
            f"{VARIABLE} is {COMPILED}, but no rockoon-kernel of this version is installed"
        )
    return None if choice == NUMPY else _compiled


native = chosen(os.environ.get(VARIABLE) or AUTO)
"""The kernel in use, None for NumPy. Read it at each use, because tests replace it."""


def name() -> str:
    """Return the kernel in use: `compiled` or `numpy`."""
    return NUMPY if native is None else COMPILED


def advice() -> str:
    """Return one sentence on how to install the kernel; "" if it is in use or not wanted."""
    if native is not None or os.environ.get(VARIABLE) == NUMPY:
        return ""
    if rockoon_kernel is None:
        cause = "rockoon-kernel is not installed"
    else:
        cause = "the installed rockoon-kernel has another version"
    return (
        f"{cause}, so NumPy encodes and checks messages and the h2 library for Python handles "
        "HTTP/2, for about ten times the CPU of an append or a call; "
        "to change this, run: pip install --upgrade 'rockoon[local]'"
    )
