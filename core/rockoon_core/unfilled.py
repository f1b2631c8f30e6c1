"""Bytes that are filled after they were made, without zeros in between and without a copy."""

import ctypes
from io import BytesIO

# What bytes() gives is zeroed, which is a sixth of what a reader in bulk costs.
# As an item: the attribute is one for the whole process, and others may declare it otherwise.
_new_bytes = ctypes.pythonapi["PyBytes_FromStringAndSize"]
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object


def unfilled(count: int) -> tuple[BytesIO, memoryview]:
    """Memory of `count` bytes with anything in it, and a view to fill it by.

    Once all of it is filled and the view is released, `getvalue` gives these bytes, uncopied. What
    was not filled is nobody's to read: it may be of another message.
    """
    # Of bytes that nobody else has, a BytesIO lends the memory itself; of others a copy.
    memory = BytesIO(_new_bytes(None, count))
    return memory, memory.getbuffer()
