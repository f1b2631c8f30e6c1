"""Kernel: selects the compiled kernel or NumPy.

`rockoon_kernel` (`format/kernel`) is the kernel. `numpy_kernel` has the same functions, and is used
if the compiled kernel could not be installed. The environment variable `ROCKOON_KERNEL` selects:
`numpy`, `compiled` (an error if it is missing), or `auto`, the default.
"""

import os
from types import ModuleType

from rockoon_format import numpy_kernel

try:
    import rockoon_kernel
except ImportError:
    rockoon_kernel = None  # type: ignore[assignment]

VARIABLE = "ROCKOON_KERNEL"
INTERFACE = 23
"""Version of the kernel's functions; `format/kernel/src/lib.rs` has the same number."""
COMPILED, NUMPY, AUTO = "compiled", "numpy", "auto"

native: ModuleType = numpy_kernel
"""The kernel in use. Read it at each use, because tests and benchmarks replace it (`use`).

A function that returns None leaves the case to its caller's general path.
"""


def use(choice: str) -> None:
    """Select the kernel. Raises ImportError: the choice is `compiled`, and no kernel of this
    version is installed; ValueError: the choice is unknown."""
    global native
    if choice not in (COMPILED, NUMPY, AUTO):
        raise ValueError(f"{VARIABLE} is {choice!r}, not {COMPILED}, {NUMPY} or {AUTO}")
    has_compiled = getattr(rockoon_kernel, "INTERFACE", None) == INTERFACE
    if choice == COMPILED and not has_compiled:
        raise ImportError(
            f"{VARIABLE} is {COMPILED}, but no rockoon-kernel of this version is installed"
        )
    native = rockoon_kernel if has_compiled and choice != NUMPY else numpy_kernel


use(os.environ.get(VARIABLE) or AUTO)


def is_compiled() -> bool:
    """Return whether the compiled kernel is in use.

    For `status`, and for a caller whose general path is a different algorithm: it must not prepare
    arguments for the kernel in vain. Other callers call the kernel.
    """
    return native is not numpy_kernel


def name() -> str:
    """Return the kernel in use: `compiled` or `numpy`."""
    return COMPILED if is_compiled() else NUMPY


def advice() -> str:
    """Return one sentence on how to install the kernel; "" if it is in use or not wanted."""
    if is_compiled() or os.environ.get(VARIABLE) == NUMPY:
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
