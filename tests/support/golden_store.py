"""Bytes that Apache RocketMQ wrote: single records, and a whole small store.

The store has CommitLog files of 4096 bytes, ConsumeQueue files of 10 entries, and an index of 100
slots and 400 units.
"""

import tarfile
from functools import cache
from pathlib import Path

from rockoon_format.record import Record, encode_host

ARCHIVE = Path(__file__).parent.parent / "format" / "data" / "apache-store-1.tar.gz"

LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 200
INDEX_SLOTS = 100
INDEX_UNITS = 400
RETRY_TOPIC = "%RETRY%" + 123 * "g"


@cache
def files() -> dict[str, bytes]:
    """Return the store's files by their path inside the store directory."""
    with tarfile.open(ARCHIVE) as archive:
        found = {}
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                found[member.name.removeprefix("s1/")] = content.read()
        return found


def queue_file(topic: str, queue_id: int) -> bytes:
    return files()[f"consumequeue/{topic}/{queue_id}/{0:020d}"]


def index_file() -> bytes:
    (content,) = (data for path, data in files().items() if path.startswith("index/"))
    return content


BORN_MS = 1_699_999_999_000
BORN_HOST = encode_host("127.0.0.1", 54321)
STORE_HOST = encode_host("127.0.0.1", 10911)


def _record(**fields: object) -> Record:
    defaults: dict[str, object] = {
        "topic": b"TopicTest",
        "born_timestamp_ms": BORN_MS,
        "born_host": BORN_HOST,
        "store_host": STORE_HOST,
    }
    return Record(**{**defaults, **fields})  # type: ignore[arg-type]


FULL = _record(
    body=b"hello",
    properties=b"KEYS\x01key1 key2\x02UNIQ_KEY\x017F00000100002A139A5500000000\x02"
    b"WAIT\x01true\x02TAGS\x01TagA\x02",
    store_timestamp_ms=1_700_000_000_000,
)
BARE = _record(
    body=b"no props", queue_offset=1, physical_offset=293, store_timestamp_ms=1_700_000_003_000
)
DELAYED = _record(
    topic=b"SCHEDULE_TOPIC_XXXX",
    queue_id=2,
    body=b"delayed",
    properties=b"DELAY\x013\x02REAL_TOPIC\x01TopicTest\x02REAL_QID\x010\x02",
    physical_offset=401,
    store_timestamp_ms=1_700_000_004_500,
)
COMMITTED = _record(
    body=b"commit",
    properties=b"KEYS\x01ck\x02TRAN_MSG\x01true\x02",
    queue_offset=2,
    physical_offset=818,
    sys_flag=0x8,
    prepared_transaction_offset=777,
    store_timestamp_ms=1_700_000_009_000,
)
IPV6 = _record(
    body=b"v6",
    properties=b"TAGS\x01TagA\x02",
    queue_id=1,
    queue_offset=1,
    physical_offset=946,
    born_host=encode_host("::1", 54321),
    store_host=encode_host("::1", 10911),
    store_timestamp_ms=1_700_000_010_500,
)

FULL_HEX = (
    "000000b2daa320a73610a68600000000000000000000000000000000000000000000000000000000"
    "0000018bcfe564187f0000010000d4310000018bcfe568007f00000100002a9f0000000000000000"
    "000000000000000568656c6c6f09546f7069635465737400494b455953016b657931206b65793202"
    "554e49515f4b45590137463030303030313030303032413133394135353030303030303030025741"
    "495401747275650254414753015461674102"
)
BARE_HEX = (
    "0000006cdaa320a7474d096f00000000000000000000000000000001000000000000012500000000"
    "0000018bcfe564187f0000010000d4310000018bcfe573b87f00000100002a9f0000000000000000"
    "00000000000000086e6f2070726f707309546f706963546573740000"
)
DELAYED_HEX = (
    "0000009ddaa320a76c814a3700000002000000000000000000000000000000000000019100000000"
    "0000018bcfe564187f0000010000d4310000018bcfe579947f00000100002a9f0000000000000000"
    "000000000000000764656c61796564135343484544554c455f544f5049435f585858580028"
    "44454c41590133025245414c5f544f50494301546f70696354657374025245414c5f514944013002"
)
COMMITTED_HEX = (
    "00000080daa320a74ed42ead00000000000000000000000000000002000000000000033200000008"
    "0000018bcfe564187f0000010000d4310000018bcfe58b287f00000100002a9f0000000000000000"
    "0000030900000006636f6d6d697409546f706963546573740016"
    "4b45595301636b025452414e5f4d5347017472756502"
)
IPV6_HEX = (
    "00000088daa320a77706591600000001000000000000000000000001000000000000"
    "03b2000000300000018bcfe56418000000000000000000000000000000010000d431"
    "0000018bcfe591040000000000000000000000000000000100002a9f0000000000000000"
    "0000000000000002763609546f70696354657374000a54414753015461674102"
)
BATCH_FIRST_HEX = (
    "0000007adaa320a747cc1be000000001000000000000000000000002"
    "0000000000001c26000000000000018bcfe564187f0000010000d4310000018bcfe5a298"
    "7f00000100002a9f0000000000000000000000000000000262310954"
    "6f7069635465737400145741495401747275650254414753015461674102"
)
BARE_WITH_CRC_HEX = (
    "00000080daa320a7474d096f00000000000000000000000000000001000000000000014d00000000"
    "0000018bcfe564187f0000010000d4310000018bcfe573b87f00000100002a9f0000000000000000"
    "00000000000000086e6f2070726f707309546f706963546573740014"
    "5f5f435243333223013739363435323730303002"
)

RECORDS = {
    "every property": (FULL, FULL_HEX),
    "no properties": (BARE, BARE_HEX),
    "delayed": (DELAYED, DELAYED_HEX),
    "committed transaction": (COMMITTED, COMMITTED_HEX),
    "IPv6 hosts": (IPV6, IPV6_HEX),
}
