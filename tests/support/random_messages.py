"""Hypothesis strategies for messages that try to confuse a reader of records."""

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rockoon_format.batch import encode_batch
from rockoon_format.record import encode_host
from support.seeds import examples

# The profile that tests/conftest.py has loaded selects the examples.
many_examples = settings(max_examples=examples(150))

# Tags and lengths of protobuf with more bytes than allowed.
overlong = st.sampled_from(
    [
        b"\x8a\x80\x80\x80\x80\x00\x00",
        b"\x0a\x80\x80\x80\x80\x80\x00",
        b"\x08\x80\x80\x80\x80\x80\x80\x00",
        b"\x8a\x00\x00",
    ]
)

BODY_BYTES_MAX = 1000
RECORD_BYTES_MAX = 70_000

_CONFUSING = [
    b"\x02TAGS\x01x\x02",
    b"TAGS\x01",
    b"\xda\xa3\x20\xa7",
    b"\xcb\xd4\x31\x94",
    b"\0" * 9,
]
_SECTIONS = [
    b"",
    b"TAGS\x01TagA\x02",
    b"TAGS\x01TagA",
    b"TAGS\x01",
    b"TAGS\x01\x02",
    b"\x02TAGS\x01late",
    b"KEYS\x01a b\x02TAGS\x01TagB\x02",
    b"TAGS\x01first\x02TAGS\x01second\x02",
    b"TAGS\x01first\x02TAGS\x01\x02",
    b"TAGS\x01one\x01two\x02",
    "TAGS\x01\u4e2d\u6587\x02K\x01v\x02".encode(),
    "TAGS\x01\U0001f600\x02".encode(),
    b"TAGS\x01\xff\xfe\x02",
    b"TAGS\x01\xed\xa0\x80\x02",
    b"TAGS\x01" + 31 * b"a" + b"\x02",
    b"TAGS\x01" + 32 * b"a" + b"\x02",
    b"TAGS\x01" + 33 * b"a",
    b"TAGS\x01" + 300 * b"z" + b"\x02",
    b"TAGS\x01polygenelubricants\x02",
    b"XTAGS\x01no\x02",
    b"K\x01TAGS\x01no\x02",
]

bodies = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda *parts: b"".join(parts), st.sampled_from(_CONFUSING), st.binary(max_size=20)),
    st.just(b""),
)
sections = st.one_of(
    st.sampled_from(_SECTIONS),
    st.builds(lambda *parts: b"".join(parts), *[st.sampled_from(_SECTIONS)] * 2),
    st.binary(max_size=60),
    st.text(alphabet="TAGSKEY\x01\x02\xe9", max_size=40).map(str.encode),
)
topics = st.sampled_from([b"T", b"TopicTest", 127 * b"t", 128 * b"u", b"%RETRY%" + 240 * b"g"])
hosts = st.sampled_from([encode_host("10.1.2.3", 4321), encode_host("fd00::2", 65535)])
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Messages:
    topic: bytes
    queue_id: int
    bodies: list[bytes]
    sections: list[bytes]
    born_ms: list[int]
    born_host: bytes
    flags: list[int]
    sys_flags: list[int]

    def encode(self) -> tuple[bytes, NDArray[np.uint32]]:
        return encode_batch(
            self.topic,
            self.queue_id,
            self.bodies,
            self.sections,
            np.array(self.born_ms, np.int64),
            self.born_host,
            flags=np.array(self.flags, np.int32),
            sys_flags=np.array(self.sys_flags, np.int32),
        )


@st.composite
def batches(draw: st.DrawFn, count_max: int = 12) -> Messages:
    count = draw(st.integers(1, count_max))

    def several(strategy: st.SearchStrategy[object]) -> list[object]:
        same = draw(st.booleans())
        return (
            [draw(strategy)] * count
            if same
            else draw(st.lists(strategy, min_size=count, max_size=count))
        )

    return Messages(
        topic=draw(topics),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        bodies=several(bodies),  # type: ignore[arg-type]
        sections=several(sections),  # type: ignore[arg-type]
        born_ms=several(int64),  # type: ignore[arg-type]
        born_host=draw(hosts),
        flags=several(int32),  # type: ignore[arg-type]
        sys_flags=several(st.sampled_from([0, 1, 2, 0x101, 0x301])),  # type: ignore[arg-type]
    )
