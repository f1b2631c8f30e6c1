"""Bytes objects that are filled after their creation, without zeroing and without a copy."""

import ctypes
from io import BytesIO

# bytes() zeroes its memory, a sixth of the cost of a bulk read. Accessed as an item: the attribute
# is shared by the process, and other code may declare it differently.
_new_bytes = ctypes.pythonapi["PyBytes_FromStringAndSize"]
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object


def unfilled(count: int) -> tuple[BytesIO, memoryview]:
    """Return uninitialized memory of `count` bytes, and a view to fill it.

    Once it is full and the view is released, `getvalue` returns the bytes without a copy.
    Unfilled bytes must not be read: they may be of another message.
    """
    # A BytesIO shares the memory of a bytes object without other references; otherwise it copies.
    memory = BytesIO(_new_bytes(None, count))
    return memory, memory.getbuffer()
