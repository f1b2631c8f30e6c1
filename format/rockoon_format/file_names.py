"""Names of a log's files: twenty digits, the byte offset of the file's first byte.

Source: UtilAll#offset2FileName.
"""

FILE_NAME_DIGITS = 20
OFFSET_MAX = 2**63 - 1


def offset_to_file_name(offset: int) -> str:
    """Return the name of the file that starts at byte `offset` of its log. Raises ValueError: the
    offset is negative or does not fit in 63 bits."""
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"no file can start at offset {offset}")
    return f"{offset:020d}"


def file_name_to_offset(name: str) -> int:
    """Return the start offset in a file's name. Raises ValueError: the name is not exactly twenty
    ASCII digits within 63 bits."""
    if len(name) != FILE_NAME_DIGITS or not name.isascii() or not name.isdigit():
        raise ValueError(f"{name!r} is not a log file's name")
    offset = int(name)
    if offset > OFFSET_MAX:
        raise ValueError(f"{name!r} is beyond the last possible offset")
    return offset


def index_file_name(year: int, month: int, day: int, hour: int, minute: int, ms: int) -> str:
    """Return an index file's name: its creation in local time; `ms` counts within the minute.

    Source: UtilAll#timeMillisToHumanString.
    """
    return f"{year:04d}{month:02d}{day:02d}{hour:02d}{minute:02d}{ms:05d}"
