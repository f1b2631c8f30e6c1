"""Filter expressions on the broker: each compiled once, and what they leave of a look at a queue.

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
    """The compiled expression, from memory if it was used lately.

    Raises:
        InvalidExpression: the text is none; the sentence names the place.
    """
    # Most clusters filter by tags only, and the language takes 7 ms to load.
    from rockoon_format import sql92

    try:
        return sql92.compile(text)
    except sql92.InvalidExpression as failure:
        # Errors travel in metadata, which is short: only what stands around the place is repeated.
        around, _, _ = failure.pointer.partition("\n")
        raise InvalidExpression(
            expression=around, reason=str(failure), position=failure.position
        ) from failure


def select(
    found: GetResult, expression: "Expression", messages_max: int, bytes_max: int
) -> GetResult:
    """Keep of a look's messages those that an expression wants.

    Args:
        found: messages as they stand in the queue, or why there are none (then returned as it is).
        expression: a message is wanted when it answers True. One that is damaged goes to the reader
            in any case, who notices: to leave it out would be to lose it.
        messages_max: more are not returned; the next offset is then that of the first left out.
        bytes_max: likewise, but the first message always fits.
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
