"""Both kernels of rockoon_format, one after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from rockoon_format import kernel

Result = TypeVar("Result")


def is_compiled() -> bool:
    """Return whether the compiled kernel is installed."""
    before = kernel.name()
    try:
        kernel.use(kernel.COMPILED)
    except ImportError:
        return False
    kernel.use(before)
    return True


needs_compiled = pytest.mark.skipif(not is_compiled(), reason="rockoon-kernel is not installed")
BOTH = (kernel.NUMPY, pytest.param(kernel.COMPILED, marks=needs_compiled))


@contextmanager
def using(choice: str) -> Iterator[None]:
    """Use the kernel of this name within the block."""
    before = kernel.name()
    kernel.use(choice)
    try:
        yield
    finally:
        kernel.use(before)


def of_both(work: Callable[[], Result]) -> tuple[Result, Result]:
    """Return the result with NumPy and the result with the compiled kernel."""
    with using(kernel.NUMPY):
        by_numpy = work()
    with using(kernel.COMPILED):
        return by_numpy, work()


def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fixture for a module, with `params=BOTH`: all of its tests run with each kernel."""
    with using(request.param):
        yield
