"""Implementation of sessions: the compiled kernel, or the h2 library for Python."""

from typing import cast

from rockoon_format import kernel
from rockoon_rpc import fallback
from rockoon_rpc.session import Implementation

COMPILED, FALLBACK = "compiled", "h2 for Python"


def implementation() -> Implementation:
    """Return the sessions in use: the kernel's if `rockoon_format.kernel` uses a kernel that has
    them (see its variable ROCKOON_KERNEL)."""
    return cast(Implementation, getattr(kernel.native, "http2", fallback))


def name() -> str:
    """Return the name of the sessions in use, for `status` and the line at start."""
    return COMPILED if hasattr(kernel.native, "http2") else FALLBACK
