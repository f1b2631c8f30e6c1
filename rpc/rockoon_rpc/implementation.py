"""Selects the HTTP/2 implementation: the compiled kernel, or the h2 library for Python."""

from typing import cast

from rockoon_format import kernel
from rockoon_rpc.session import Implementation

COMPILED, FALLBACK = "compiled", "h2 for Python"


def compiled() -> Implementation | None:
    """Return the kernel's HTTP/2 implementation; None if the kernel in use has none."""
    return cast(Implementation | None, kernel.native.http2)


def implementation() -> Implementation:
    """Return the HTTP/2 implementation in use."""
    found = compiled()
    if found is None:
        # Its libraries take longer to load than any other module, and the kernel needs none.
        from rockoon_rpc import fallback

        found = cast(Implementation, fallback)
    return found


def name() -> str:
    """Return the name of the HTTP/2 implementation, for `status` and the log line at start."""
    return FALLBACK if compiled() is None else COMPILED
