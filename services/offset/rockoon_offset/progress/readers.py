"""Names of readers: owners of progress in ledger and journal.

    billing          progress that the members of group `billing` share
    billing@pod-0    own progress of its member `pod-0`, which reads all messages

Group names do not contain the separator, so the two kinds cannot be confused.
"""

import re

SEPARATOR = "@"
# Users choose the names, and RocketMQ reads them in consumerOffset.json: plain characters only.
MEMBER = re.compile(r"[A-Za-z0-9._-]{1,128}")


def reader_of(group: str, member: str = "") -> str:
    """Return the name of a reader: a group, or one member of a group."""
    return f"{group}{SEPARATOR}{member}" if member else group


def group_of(reader: str) -> str:
    return reader.partition(SEPARATOR)[0]


def member_of(reader: str) -> str:
    """Return the member of a reader's name; empty for a group."""
    return reader.partition(SEPARATOR)[2]


def in_order(reader: str) -> tuple[str, str]:
    """Return a sort key: a group, then its members, then the next group."""
    return group_of(reader), member_of(reader)


def member_fault(member: str) -> str:
    """Return why a member with its own progress cannot have this id; empty if it can."""
    if MEMBER.fullmatch(member):
        return ""
    return f"{member[:140]!r} is not 1 to 128 letters, digits and . _ -"
