"""Selects the HTTP/2 implementation: the compiled kernel, or the h2 library for Python."""

import importlib
from typing import cast

from rockoon_format import kernel
from rockoon_rpc import fallback
from rockoon_rpc.session import Implementation

COMPILED, FALLBACK = "compiled", "h2 for Python"


def compiled() -> Implementation | None:
    """Return the kernel's HTTP/2 implementation; None if `rockoon_format.kernel` uses NumPy (see
    its variable ROCKOON_KERNEL)."""
    if not kernel.is_compiled():
        return None
    try:
        return cast(Implementation, importlib.import_module("rockoon_kernel.http2"))
    except ImportError:
        return None


def implementation() -> Implementation:
    """Return the HTTP/2 implementation in use."""
    return compiled() or cast(Implementation, fallback)


def name() -> str:
    """Return the name of the HTTP/2 implementation, for `status` and the log line at start."""
    return FALLBACK if compiled() is None else COMPILED
