"""Filter expressions on the broker: a cache of compiled ones, and filtering of found messages.

Source: ExpressionMessageFilter#isMatchedByCommitLog.
"""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_core.errors import InvalidExpression
from rockoon_format.columns import decode_columns
from rockoon_format.frames import slices

if TYPE_CHECKING:
    from rockoon_format.sql92 import Expression

EXPRESSIONS_MAX = 256


@lru_cache(maxsize=EXPRESSIONS_MAX)
def expression_of(text: str) -> "Expression":
    """Return the compiled expression, cached if recently used.

    Raises:
        InvalidExpression: the text is invalid; the message has the position.
    """
    # Most clusters filter only by tags, and the import of the language needs 7 ms.
    from rockoon_format import sql92

    try:
        return sql92.compile(text)
    except sql92.Sql92Error as failure:
        # Errors are sent in metadata, which is short: quote only the text around the position.
        around, _, _ = failure.pointer.partition("\n")
        raise InvalidExpression(
            expression=around, reason=str(failure), position=failure.position
        ) from failure


def select(
    found: GetResult, expression: "Expression", messages_max: int, bytes_max: int
) -> GetResult:
    """Filter found messages by an expression.

    Args:
        found: result of a read; returned unchanged if it has no messages.
        expression: keeps messages for which it is True. Damaged messages are kept too, so that the
            consumer notices the damage.
        messages_max: maximum number of messages; the next offset is that of the first one left out.
        bytes_max: maximum size; the first message is always included.
    """
    if found.status is not GetStatus.FOUND:
        return found
    columns = decode_columns(found.frames, found.lengths)
    answer = expression.matches_encoded
    selected = [index for index, raw in enumerate(columns.properties_bytes) if answer(raw) is True]
    wanted = np.union1d(np.array(selected, np.int64), columns.damaged)
    nothing = np.zeros(0, np.uint32)
    if len(wanted) == 0:
        return replace(found, status=GetStatus.NO_MATCHED_MESSAGE, frames=b"", lengths=nothing)
    sizes = columns.lengths[wanted]
    fitting = int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))
    taken = max(1, min(fitting, messages_max))
    next_offset = found.next_offset
    if taken < len(wanted):
        next_offset = int(columns.queue_offsets[wanted[taken]])
        wanted, sizes = wanted[:taken], sizes[:taken]
    if len(wanted) == len(columns):
        return replace(found, next_offset=next_offset)
    starts = (np.cumsum(columns.lengths) - columns.lengths)[wanted]
    frames = b"".join(slices(found.frames, starts, sizes))
    return replace(found, next_offset=next_offset, frames=frames, lengths=sizes.astype(np.uint32))
