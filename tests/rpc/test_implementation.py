"""The choice of sessions follows the choice of the kernel."""

import pytest

from rockoon_format import kernel
from rockoon_rpc import fallback, implementation
from support.kernels import needs_compiled, using


def test_without_the_kernel_sessions_are_the_fallbacks() -> None:
    with using(kernel.NUMPY):
        chosen: object = implementation.implementation()
        assert chosen is fallback
        assert implementation.compiled() is None
        assert implementation.name() == "h2 for Python"


@needs_compiled
def test_with_the_kernel_sessions_are_its_own() -> None:
    with using(kernel.COMPILED):
        compiled = implementation.compiled()
        if compiled is None:
            pytest.skip("the kernel has no http2")
        assert implementation.implementation() is compiled
        assert implementation.name() == "compiled"
