"""Whose progress it is. One kind of name for both kinds of reader, in ledger and journal.

    billing          what the members of group `billing` share
    billing@pod-0    what its member `pod-0` has read, which reads everything for itself

No group's name holds the separator, so neither can be taken for the other.
"""

import re

SEPARATOR = "@"
# Chosen by users, and part of file content that RocketMQ reads: plain characters only.
MEMBER = re.compile(r"[A-Za-z0-9._-]{1,128}")


def reader_of(group: str, member: str = "") -> str:
    """The reader's name; without a member that of the group."""
    return f"{group}{SEPARATOR}{member}" if member else group


def group_of(reader: str) -> str:
    return reader.partition(SEPARATOR)[0]


def member_of(reader: str) -> str:
    """Empty for a reader that is a group."""
    return reader.partition(SEPARATOR)[2]


def in_order(reader: str) -> tuple[str, str]:
    """A key to sort by: a group, then its members, then the next group."""
    return group_of(reader), member_of(reader)


def member_fault(member: str) -> str:
    """Why a name cannot be that of a member with progress of its own; empty when it can."""
    if MEMBER.fullmatch(member):
        return ""
    return f"{member[:140]!r} is not 1 to 128 letters, digits and . _ -"
