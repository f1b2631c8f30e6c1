"""Kernel: whether the compiled twin of this package's NumPy code is used.

`rockoon_kernel` does the same, faster, where it could be compiled (`format/kernel`). NumPy is the
reference: it decides what the compiled one leaves open, names what is wrong with refused bytes, and
does everything where there is no compiler. The environment variable `ROCKOON_KERNEL` chooses:
`numpy`, `compiled` (then a missing one is an error), or `auto`, the default.
"""

import os
from types import ModuleType

try:
    import rockoon_kernel
except ImportError:
    rockoon_kernel = None  # type: ignore[assignment]

VARIABLE = "ROCKOON_KERNEL"
INTERFACE = 22
"""What of the compiled one is called here; `format/kernel/src/lib.rs` has the same number."""
COMPILED, NUMPY, AUTO = "compiled", "numpy", "auto"

_compiled: ModuleType | None = rockoon_kernel
if _compiled is not None and getattr(_compiled, "INTERFACE", None) != INTERFACE:
    _compiled = None  # of another version


def chosen(choice: str) -> ModuleType | None:
    """Return the compiled kernel if the choice is to use it, None for NumPy.

    Raises:
        ImportError: it is not installed, and no other will do.
        ValueError: the choice is none.
    """
    if choice not in (COMPILED, NUMPY, AUTO):
        raise ValueError(f"{VARIABLE} is {choice!r}, not {COMPILED}, {NUMPY} or {AUTO}")
    if choice == COMPILED and _compiled is None:
        raise ImportError(
            f"{VARIABLE} is {COMPILED}, but no rockoon-kernel of this version is installed"
        )
    return None if choice == NUMPY else _compiled


native = chosen(os.environ.get(VARIABLE) or AUTO)
"""The kernel in use, None for NumPy. Ask for it where it is needed: tests replace it."""


def name() -> str:
    """Return the kernel in use: `compiled` or `numpy`."""
    return NUMPY if native is None else COMPILED


def advice() -> str:
    """Return one sentence on how to get the compiled kernel; "" if it is used or not wanted."""
    if native is not None or os.environ.get(VARIABLE) == NUMPY:
        return ""
    if rockoon_kernel is None:
        cause = "rockoon-kernel is not installed"
    else:
        cause = "the installed rockoon-kernel is of another version"
    return (
        f"{cause}, so NumPy encodes and checks messages and the h2 library for Python handles "
        "HTTP/2, for about ten times the CPU of an append or a call; "
        "to change this, run: pip install --upgrade 'rockoon[local]'"
    )
