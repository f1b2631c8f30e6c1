"""The compiled twin of rockoon_format's NumPy code; `rockoon_format.kernel` decides about it."""

from rockoon_kernel._native import INTERFACE, check_batch, stamp_batch

__all__ = ["INTERFACE", "check_batch", "stamp_batch"]
