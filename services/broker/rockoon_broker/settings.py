"""Settings of a broker, and the store settings derived from them."""

from dataclasses import dataclass, fields
from pathlib import Path

from rockoon_broker.delays.rewriting import DelayRules
from rockoon_broker.idempotence.ledger import MemoryLimits
from rockoon_broker.store.retention.retention import RESERVED_HOURS_DEFAULT
from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.transactions.check_book import CheckRules
from rockoon_format.delay_levels import DELAY_LEVELS, parse_delay_levels
from rockoon_format.index_file import SLOTS_DEFAULT, UNITS_DEFAULT
from rockoon_replica.settings import CopySettings
from rockoon_runtime.settings import SettingsError, setting

STORE_PATH = Path("store")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(CopySettings):
    """Settings of one broker. Field texts are shown by `--help` and `--print-settings`."""

    cluster: str = setting(
        "rockoon", "name of the cluster; calls with another cluster name are refused"
    )
    name: str = setting("broker-a", "name of this broker, unique among the cluster's live brokers")
    listen: str = setting("127.0.0.1:10911", "host:port to listen on; port 0 chooses a free port")
    advertise: str | None = setting(
        None, "host:port announced to clients and services; by default the listen address"
    )
    advertise_external: str = setting(
        "",
        "host:port announced to clients that connect to a nameserver's external_listen (empty: "
        "they cannot call this broker)",
    )
    advertise_ip: str = setting(
        "",
        "IP address of this process in the routes, which callers of the advertised name try before "
        "they ask DNS (empty: they ask DNS)",
    )
    nameservers: tuple[str, ...] = setting(
        ("127.0.0.1:9876",), "host:port of every nameserver, separated by commas"
    )
    store_path: Path = setting(  # noqa: RUF009 - a field, made once
        STORE_PATH, "directory of commitlog/, consumequeue/ and config/; created if missing"
    )
    drained: bool = setting(
        False,
        "true: new messages of producers are refused, and producers choose other brokers; messages "
        "are read as usual. `rockoon broker drain` sets it in the running broker",
        live=True,
    )
    store_host: str | None = setting(
        None,
        "IPv4 host:port written into every record and message id; by default the advertised one",
    )
    accept_cluster_id: str = setting(
        "",
        "cluster id (16 hexadecimal digits, as in the refusal) that may adopt a store of another "
        "cluster: the store's topics become the topics of the same names there",
    )

    flush: str = setting(
        "sync",
        "sync: acknowledge a message when it is on disk; async: when it is in the page cache",
        choices=("sync", "async"),
        shared=True,
    )
    flush_interval_ms: int = setting(
        500, "interval of log syncs with flush = async, milliseconds", minimum=1
    )
    commit_log_file_bytes: int = setting(
        1 << 30,
        "size of a CommitLog file in bytes, for a new store; an existing store keeps its size",
        minimum=1024,
    )
    consume_queue_file_entries: int = setting(
        300_000,
        "entries in a ConsumeQueue file, for a new store; an existing store keeps its size",
        minimum=1,
    )
    unsynced_bytes_max: int = setting(
        256 << 20,
        "maximum bytes of appended, uncommitted messages (with one copy: unsynced); "
        "while there are more, appends wait",
        minimum=4096,
        live=True,
    )

    reserved_hours: float | None = setting(
        None,
        "hours after which a CommitLog file is deleted, default 72; a store that RocketMQ wrote "
        "keeps every file until this is set",
        minimum=0,
        shared=True,
        live=True,
    )
    delete_when: str = setting(
        "04", "local hours in which expired files are deleted: 04;16", live=True
    )
    disk_used_percent_max: int = setting(
        75,
        "above this percentage of the disk, expired files are deleted at any hour",
        minimum=10,
        maximum=95,
        live=True,
    )
    disk_forced_percent: int = setting(
        85,
        "above this percentage, the oldest files are deleted before they expire, as far as "
        "disk_pressure_policy allows",
        minimum=30,
        maximum=100,
        live=True,
    )
    disk_full_percent: int = setting(
        90, "above this percentage, new messages are refused", minimum=35, maximum=100, live=True
    )
    disk_reserve_percent: int = setting(
        5,
        "percentage of the disk above disk_full_percent for the broker's own records: retries, "
        "ends of transactions, due delayed messages, and records copied by a follower",
        minimum=0,
        maximum=50,
        live=True,
    )
    disk_pressure_policy: str = setting(
        "refuse",
        "refuse: files that a known consumer group has not read are kept, and new messages are "
        "refused when the disk is full; delete: the oldest files are deleted, read or not",
        choices=("refuse", "delete"),
        shared=True,
        live=True,
    )
    retention_wait_for_groups: tuple[str, ...] = setting(
        (),
        "consumer groups, separated by commas, for which expired files are kept until the group "
        "has read them; * means every known group",
        live=True,
    )
    retention_wait_bytes_max: int = setting(
        0, "maximum expired bytes of the log that are kept for those groups", minimum=0, live=True
    )
    disk_check_interval_ms: int = setting(
        10_000,
        "interval of disk checks and deletions of old files, milliseconds",
        minimum=1,
        live=True,
    )
    copy_away_seconds_max: float = setting(
        60.0,
        "how long retention keeps log files for a disconnected copy, seconds",
        minimum=0.0,
        maximum=86_400.0,
        live=True,
    )

    body_bytes_max: int = setting(
        4 << 20,
        "maximum size of a message body, bytes",
        minimum=1,
        maximum=1 << 26,
        shared=True,
        live=True,
    )
    properties_bytes_max: int = setting(
        31_743,
        "maximum size of a message's properties, bytes; a record holds 32767, including those "
        "that retries and delays add",
        minimum=0,
        maximum=32_767,
        shared=True,
        live=True,
    )
    record_checksums: bool = setting(
        True,
        "give every record a checksum of all its bytes, like RocketMQ's enabledAppendPropCRC; if "
        "false, only records with space reserved by the producer get one, as by Rockoon's SDK",
    )
    batch_bytes_max: int = setting(
        16 << 20,
        "maximum size of a batch, bytes",
        minimum=1024,
        maximum=60 << 20,
        shared=True,
        live=True,
    )
    batch_messages_max: int = setting(
        65_536, "maximum number of messages in a batch", minimum=1, maximum=1 << 20, live=True
    )
    memory_bytes: int | None = setting(
        None,
        "RAM in bytes for the rule `first message still in memory`; by default the machine's",
    )

    index: str = setting(
        "on",
        "on: messages are indexed by key; off: no index, queries by key are refused",
        choices=("on", "off"),
        shared=True,
    )
    index_slots: int = setting(
        SLOTS_DEFAULT,
        "hash slots in an index file; must not change once index files exist",
        minimum=1,
        maximum=1 << 28,
    )
    index_units: int = setting(
        UNITS_DEFAULT,
        "keys in an index file, 20 bytes each; must not change once index files exist",
        minimum=2,
        maximum=1 << 30,
    )

    producer_memory_hours: float = setting(
        24.0, "hours for which the state of an inactive idempotent producer is kept", minimum=0.1
    )
    producer_sequences_max: int = setting(
        10_000,
        "maximum states of idempotent producers with several batches, one per producer and queue, "
        "and as many of producers with one batch; the oldest are discarded first",
        minimum=1,
        maximum=1_000_000,
    )

    delay_levels: str = setting(
        DELAY_LEVELS,
        "delays of levels 1, 2, ... of delayed messages: numbers with s, m, h or d",
        shared=True,
    )
    delay_seconds_max: int = setting(
        259_200,
        "maximum delay of a message, seconds",
        minimum=1,
        shared=True,
        live=True,
    )
    delayed_messages_max: int = setting(
        5_000_000,
        "maximum number of waiting delayed messages, about 40 bytes each; more are refused",
        minimum=1,
        live=True,
    )
    transaction_timeout_ms: int = setting(
        6_000, "age of a half message at its first check, milliseconds", minimum=0, live=True
    )
    transaction_check_interval_ms: int = setting(
        30_000, "interval of further checks of a half message, milliseconds", minimum=1, live=True
    )
    transaction_checks_max: int = setting(
        15, "number of checks after which a half message is abandoned", minimum=1, live=True
    )
    transactions_pending_max: int = setting(
        100_000, "maximum number of waiting half messages; more are refused", minimum=1, live=True
    )
    waiting_pulls_max: int = setting(
        10_000,
        "maximum number of waiting pulls; more are answered at once, without messages",
        minimum=0,
    )
    calls_per_address_max: int = setting(
        3_000,
        "maximum calls in progress per client address, streams and waiting pulls included, 0 = "
        "half of the calls that the broker accepts; more are refused. A client has two or three, "
        "and each uses about 5 KiB",
        minimum=0,
        maximum=1_000_000,
        live=True,
    )

    @property
    def retention_hours(self) -> float:
        """Hours after which a CommitLog file expires. The default also applies to a store written
        by RocketMQ, whose delayed messages must be safe when an operator sets `reserved_hours`."""
        return RESERVED_HOURS_DEFAULT if self.reserved_hours is None else self.reserved_hours

    def check(self) -> None:
        """Check that the values fit each other. Raises SettingsError."""
        self.for_store(("127.0.0.1", 0))

    def for_sequences(self) -> MemoryLimits:
        """Return the limits of the memory of idempotent producers."""
        memory_ms = int(self.producer_memory_hours * 3_600_000)
        return MemoryLimits(self.producer_sequences_max, memory_ms)

    def for_delays(self) -> DelayRules:
        """Return the rules of delayed messages. Raises SettingsError: the levels are invalid."""
        try:
            levels_ms = parse_delay_levels(self.delay_levels)
        except ValueError as failure:
            raise SettingsError(f"delay_levels: {failure}") from failure
        return DelayRules(levels_ms, self.delay_seconds_max)

    def for_checks(self) -> CheckRules:
        """Return the rules for checks of half messages."""
        return CheckRules(
            timeout_seconds=self.transaction_timeout_ms / 1000,
            interval_seconds=self.transaction_check_interval_ms / 1000,
            checks_max=self.transaction_checks_max,
            # Long before its CommitLog file expires.
            age_seconds_max=max(
                self.retention_hours * 3600 / 2,
                (self.transaction_timeout_ms + self.transaction_check_interval_ms) / 1000,
            ),
        )

    def for_store(self, store_host: tuple[str, int]) -> StoreSettings:
        """Return the settings of the store.

        Args:
            store_host: IPv4 address and port to write into records.

        Raises:
            SettingsError: a value is out of the store's bounds.
        """
        try:
            return StoreSettings(
                **{name: getattr(self, name) for name in STORE_SETTINGS},
                root=self.store_path,
                store_host=store_host,
                flush=Flush(self.flush),
                # Not during the reads of a start; at most a minute, as in RocketMQ.
                disk_check_delay_ms=min(6 * self.disk_check_interval_ms, 60_000),
                delay_levels_ms=self.for_delays().levels_ms,
            )
        except ValueError as failure:
            raise SettingsError(str(failure)) from failure


# Settings that the store has too, with the same values.
STORE_SETTINGS = ({each.name for each in fields(StoreSettings)} - {"store_host", "flush"}) & {
    each.name for each in fields(BrokerSettings)
}
