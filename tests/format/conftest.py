from collections.abc import Iterator

import pytest

from support.kernels import BOTH, using


@pytest.fixture(scope="module", params=BOTH)
def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the module's tests once with NumPy and once with the compiled kernel."""
    with using(request.param):
        yield
