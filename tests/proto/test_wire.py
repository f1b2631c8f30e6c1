"""Older and newer processes of one cluster understand each other: what is on the wire stays."""

from proto.wire import LINES, wire


def test_fields_keep_their_numbers_and_types_and_calls_their_messages() -> None:
    kept, now = LINES.read_text().splitlines(), wire()
    gone = [line for line in kept if line not in set(now)]
    assert not gone, "processes of other versions still use these; take a new number instead"
    added = [line for line in now if line not in set(kept)]
    assert not added, "record them: PYTHONPATH=tests python -m proto.wire"
