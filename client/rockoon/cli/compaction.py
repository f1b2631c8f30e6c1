"""Compaction status of a broker, as sentences and as JSON."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rockoon.cli.output import counted, for_humans, local_time

if TYPE_CHECKING:
    from rockoon_proto.v1.broker_pb2 import CompactionState, DescribeBrokerReply

RUN_COMMAND = "rockoon spark compact"


def compaction_sentences(answer: "DescribeBrokerReply") -> Iterable[str]:
    """Yield sentences about a broker's compaction; none if no topic is compacted."""
    state = answer.compaction
    if state.generation:
        yield (
            f"generation {state.generation} of {local_time(state.created_ms)}: "
            f"{counted(state.records, 'message')}, {for_humans(state.files_bytes)}"
        )
    elif state.topics:
        yield f"{counted(state.topics, 'compacted topic')}, no compaction has run yet"
    if state.HasField("hold"):
        held = for_humans(answer.log_max_offset - state.hold.physical_offset)
        yield (
            f"the log is kept from offset {state.hold.physical_offset} ({held}) until "
            f"{state.hold.topic} is compacted further: run `{RUN_COMMAND}`"
        )
    if state.HasField("refusal"):
        refusal = state.refusal
        yield (
            f"generation {refusal.generation} was refused at {local_time(refusal.refused_ms)}: "
            f"{refusal.reason}"
        )


def compaction_json(state: "CompactionState") -> dict[str, Any]:
    return {
        "topics": state.topics,
        "generation": state.generation or None,
        "created_ms": state.created_ms or None,
        "records": state.records,
        "bytes": state.files_bytes,
        "log_end": state.log_end,
        "uploads": state.uploads,
        "hold": (
            {"physical_offset": state.hold.physical_offset, "topic": state.hold.topic}
            if state.HasField("hold")
            else None
        ),
        "refusal": (
            {
                "generation": state.refusal.generation,
                "reason": state.refusal.reason,
                "refused_ms": state.refusal.refused_ms,
            }
            if state.HasField("refusal")
            else None
        ),
    }
