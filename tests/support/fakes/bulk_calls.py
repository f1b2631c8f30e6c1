"""The bound on bulk calls that fakes keep, as the services do."""

from collections.abc import Sized

from rockoon_core.errors import InvalidArgument
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX


def check_bulk(*entries: Sized) -> None:
    """Raises InvalidArgument for a call with too many entries."""
    for some in entries:
        if len(some) > QUEUES_PER_CALL_MAX:
            raise InvalidArgument(reason=f"{len(some)} queues, more than {QUEUES_PER_CALL_MAX}")
