"""The memory that connections receive into."""

import asyncio
from typing import ClassVar
from weakref import WeakKeyDictionary

BUFFER_BYTES = 256 << 10


class SharedBuffer:
    """Where the connections of one loop receive, each between two of its callbacks."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "SharedBuffer"]] = (
        WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self.bytes = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.bytes)

    @classmethod
    def of_loop(cls) -> "SharedBuffer":
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls()
        return found
