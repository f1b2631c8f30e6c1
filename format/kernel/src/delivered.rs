//! Records in the form for RocketMQ's 5.x clients: whole responses to a receive, back to back.
//!
//! The rules are those of `rockoon_gateway/delivered.py`. Rare records (with a compressed
//! body, an IPv6 host, or text that is not UTF-8) are left to it.

#![forbid(unsafe_code)]

use crate::md5;
use crate::pieces::keep_last;
use crate::reading::{be_i32, be_i64, chunk};
use crate::record::{
    length, parts, Parts, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP, BORN_HOST_V6, STORE_HOST_V6,
};
use crate::text::{segments, NAME_END};

const AT_BORN_TIMESTAMP: usize = 40;
const AT_BORN_HOST: usize = 48;
const AT_STORE_HOST: usize = 64;
const AT_RECONSUME_TIMES: usize = 72;
const COMPRESSED: i32 = 1;
const TIME_DIGITS_MAX: usize = 14;
const PRIORITY_DIGITS_MAX: usize = 10;
/// Head of a gRPC message: a byte for compression, and a length.
pub const FRAME_HEAD_BYTES: usize = 5;

// Fields of ReceiveMessageResponse, Message, SystemProperties: number and wire type.
const ANSWER_MESSAGE: u8 = 0x12;
const USER_PROPERTY: u8 = 0x12;
const SYSTEM: u8 = 0x1A;
const BODY: u8 = 0x22;

const NORMAL: u8 = 1;
const FIFO: u8 = 2;
const DELAY: u8 = 3;
const TRANSACTION: u8 = 4;
const LITE: u8 = 5;
const PRIORITY: u8 = 6;

/// Names of system properties, by their length.
pub struct Reserved {
    by_length: Vec<Vec<Vec<u8>>>,
    prefix: Vec<u8>,
}

impl Reserved {
    /// `prefix`: names with this prefix are system properties too.
    pub fn new(names: impl Iterator<Item = Vec<u8>>, prefix: &[u8]) -> Self {
        let mut by_length: Vec<Vec<Vec<u8>>> = Vec::new();
        for name in names {
            if by_length.len() <= name.len() {
                by_length.resize(name.len() + 1, Vec::new());
            }
            if let Some(list) = by_length.get_mut(name.len()) {
                list.push(name);
            }
        }
        Reserved {
            by_length,
            prefix: prefix.to_vec(),
        }
    }

    fn has(&self, name: &[u8]) -> bool {
        let alike = self.by_length.get(name.len());
        alike.is_some_and(|list| list.iter().any(|it| it == name)) || name.starts_with(&self.prefix)
    }
}

/// Common values of the messages of one delivery.
pub struct Common<'a> {
    /// The encoded field `topic` of the response.
    pub topic: &'a [u8],
    pub broker: &'a [u8],
    pub queue_id: i32,
    /// Number of the delivery attempt, without the attempts that the record counts.
    pub attempt: i64,
    /// The parts of a receipt handle before and after a message's offset.
    pub handle_front: &'a [u8],
    pub handle_back: &'a [u8],
}

/// Writes responses; reuses its buffers for each record.
pub struct Writer<'a> {
    reserved: &'a Reserved,
    common: Common<'a>,
    names: Vec<&'a [u8]>,
    values: Vec<&'a [u8]>,
    users: Vec<u8>,
    system: Vec<u8>,
}

/// Properties that have their own field in a message; empty if a record has none.
#[derive(Default)]
struct Known<'a> {
    tags: &'a [u8],
    keys: &'a [u8],
    unique_key: &'a [u8],
    born_timestamp: &'a [u8],
    born_host: &'a [u8],
    deliver_ms: &'a [u8],
    out_ms: &'a [u8],
    message_group: &'a [u8],
    trace_context: &'a [u8],
    lite_topic: &'a [u8],
    priority: &'a [u8],
    prepared: &'a [u8],
    is_delayed: bool,
}

impl<'a> Known<'a> {
    fn take(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"TAGS" => self.tags = value,
            b"KEYS" => self.keys = value,
            b"UNIQ_KEY" => self.unique_key = value,
            b"BORN_TIMESTAMP" => self.born_timestamp = value,
            b"__BORNHOST" => self.born_host = value,
            b"TIMER_DELIVER_MS" => {
                self.deliver_ms = value;
                self.is_delayed = true;
            }
            b"TIMER_OUT_MS" => self.out_ms = value,
            b"TIMER_DELAY_MS" | b"TIMER_DELAY_SEC" | b"DELAY" => self.is_delayed = true,
            b"__SHARDINGKEY" => self.message_group = value,
            b"TRACE_CONTEXT" => self.trace_context = value,
            b"__LITE_TOPIC" => self.lite_topic = value,
            b"_SYS_MSG_PRIORITY_" => self.priority = value,
            b"TRAN_MSG" => self.prepared = value,
            _ => {}
        }
    }

    fn message_type(&self) -> u8 {
        match self {
            it if it.prepared == b"true" => TRANSACTION,
            it if it.is_delayed => DELAY,
            it if !it.lite_topic.is_empty() => LITE,
            it if !it.priority.is_empty() => PRIORITY,
            it if !it.message_group.is_empty() => FIFO,
            _ => NORMAL,
        }
    }
}

impl<'a> Writer<'a> {
    pub fn new(reserved: &'a Reserved, common: Common<'a>) -> Self {
        Writer {
            reserved,
            common,
            names: Vec::new(),
            values: Vec::new(),
            users: Vec::new(),
            system: Vec::new(),
        }
    }

    /// Add the response for a record, with the five-byte head of a gRPC message. Adds nothing for a
    /// rare or invalid record.
    ///
    /// `offset` is its queue offset in the delivery.
    pub fn add(&mut self, record: &'a [u8], offset: i64, out: &mut Vec<u8>) -> Option<()> {
        let found = parts(record).filter(|found| found.end == record.len())?;
        if found.sys_flag & (COMPRESSED | BORN_HOST_V6 | STORE_HOST_V6) != 0 {
            return None;
        }
        let stored = length(found.body_length);
        let body = record.get(found.body_start..)?.get(..stored)?;
        let known = self.read(record.get(found.properties_start..)?)?;
        let transaction = be_i64(record, AT_PREPARED_OFFSET)?;
        self.write_users(transaction);
        self.write_system(record, &found, body, offset, &known)?;
        let own = self.common.topic.len()
            + self.users.len()
            + field_bytes(self.system.len())
            + if stored > 0 { field_bytes(stored) } else { 0 };
        out.push(0);
        out.extend_from_slice(&u32::try_from(field_bytes(own)).ok()?.to_be_bytes());
        head(out, ANSWER_MESSAGE, own);
        out.extend_from_slice(self.common.topic);
        out.extend_from_slice(&self.users);
        text(out, SYSTEM, &self.system);
        if stored > 0 {
            text(out, BODY, body);
        }
        Some(())
    }

    /// Divide properties into system and user properties; none if they are not UTF-8.
    fn read(&mut self, properties: &'a [u8]) -> Option<Known<'a>> {
        std::str::from_utf8(properties).ok()?;
        let mut known = Known::default();
        self.names.clear();
        self.values.clear();
        for segment in segments(properties) {
            let Some(middle) = segment.iter().position(|byte| *byte == NAME_END) else {
                continue;
            };
            let (name, value) = (segment.get(..middle)?, segment.get(middle + 1..)?);
            if name.is_empty() || value.is_empty() {
                continue;
            }
            known.take(name, value);
            if !self.reserved.has(name) {
                self.names.push(name);
                self.values.push(value);
            }
        }
        keep_last(&mut self.names, &mut self.values);
        Some(known)
    }

    fn write_users(&mut self, transaction: i64) {
        self.users.clear();
        for (name, value) in self.names.iter().zip(&self.values) {
            let is_told = transaction > 0 && *name == b"__transactionId__";
            // What its sender was told; the store has the message's id there.
            let told = is_told.then(|| {
                let mut told = format!("{transaction:016x}@").into_bytes();
                told.extend_from_slice(self.common.broker);
                told
            });
            let value = told.as_deref().unwrap_or(value);
            let own = field_bytes(name.len()) + field_bytes(value.len());
            head(&mut self.users, USER_PROPERTY, own);
            text(&mut self.users, 0x0A, name);
            text(&mut self.users, 0x12, value);
        }
    }

    fn write_system(
        &mut self,
        record: &[u8],
        found: &Parts,
        body: &[u8],
        offset: i64,
        known: &Known,
    ) -> Option<()> {
        debug_assert!(found.born_extra == 0);
        let out = &mut self.system;
        out.clear();
        optional(out, 0x0A, known.tags);
        for key in known.keys.split(|byte| *byte == b' ') {
            optional(out, 0x12, key);
        }
        if known.unique_key.is_empty() {
            let id = offset_id(record)?;
            text(out, 0x1A, &id);
        } else {
            text(out, 0x1A, known.unique_key);
        }
        // Type MD5, and the encoding IDENTITY: the body as its producer sent it.
        out.extend_from_slice(&[
            0x22,
            4 + md5::DIGITS as u8,
            0x08,
            2,
            0x12,
            md5::DIGITS as u8,
        ]);
        out.extend_from_slice(&md5::hex(body));
        out.extend_from_slice(&[0x28, 1, 0x30, known.message_type()]);
        // The record's own born timestamp may be that of its batch.
        let born_ms = time(known.born_timestamp).or(be_i64(record, AT_BORN_TIMESTAMP))?;
        timestamp(out, 0x3A, born_ms);
        let mut host = Vec::new();
        if known.born_host.is_empty() {
            address(&mut host, chunk(record, AT_BORN_HOST)?);
            text(out, 0x42, &host);
        } else {
            text(out, 0x42, known.born_host);
        }
        timestamp(out, 0x4A, be_i64(record, AT_STORE_TIMESTAMP)?);
        host.clear();
        address(&mut host, chunk(record, AT_STORE_HOST)?);
        host.push(b':');
        decimal(&mut host, i64::from(be_i32(record, AT_STORE_HOST + 4)?));
        text(out, 0x52, &host);
        let deliver = if known.deliver_ms.is_empty() {
            known.out_ms
        } else {
            known.deliver_ms
        };
        if let Some(deliver_ms) = time(deliver) {
            timestamp(out, 0x5A, deliver_ms);
        }
        host.clear();
        host.extend_from_slice(self.common.handle_front);
        decimal(&mut host, offset);
        host.extend_from_slice(self.common.handle_back);
        text(out, 0x62, &host);
        if self.common.queue_id != 0 {
            number(out, 0x68, i64::from(self.common.queue_id));
        }
        number(out, 0x70, be_i64(record, AT_QUEUE_OFFSET)?);
        out.push(0x80);
        let times = i64::from(be_i32(record, AT_RECONSUME_TIMES)?);
        let attempt = times.saturating_add(self.common.attempt);
        number(out, 0x01, attempt.min(i64::from(i32::MAX)));
        for (tag, value) in [(0x8A, known.message_group), (0x92, known.trace_context)] {
            if !value.is_empty() {
                out.push(tag);
                text(out, 0x01, value);
            }
        }
        if !known.lite_topic.is_empty() {
            out.push(0xAA);
            text(out, 0x01, known.lite_topic);
        }
        if let Some(priority) = digits(known.priority, PRIORITY_DIGITS_MAX) {
            out.push(0xB0);
            number(out, 0x01, priority.min(i64::from(i32::MAX)));
        }
        Some(())
    }
}

/// Encoded size of a protobuf length.
fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Encoded size of a field with this length and a tag of one byte.
fn field_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn head(out: &mut Vec<u8>, tag: u8, length: usize) {
    out.push(tag);
    varint(out, length as u64);
}

fn text(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    head(out, tag, value.len());
    out.extend_from_slice(value);
}

fn optional(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    if !value.is_empty() {
        text(out, tag, value);
    }
}

fn number(out: &mut Vec<u8>, tag: u8, value: i64) {
    out.push(tag);
    varint(out, value as u64);
}

/// Epoch milliseconds as google.protobuf.Timestamp.
fn timestamp(out: &mut Vec<u8>, tag: u8, epoch_ms: i64) {
    let (seconds, nanos) = (
        epoch_ms.div_euclid(1000),
        epoch_ms.rem_euclid(1000) * 1_000_000,
    );
    let bytes = |value: i64| match value {
        0 => 0,
        some => 1 + varint_bytes(some as u64),
    };
    head(out, tag, bytes(seconds) + bytes(nanos));
    for (tag, value) in [(0x08, seconds), (0x10, nanos)] {
        if value != 0 {
            number(out, tag, value);
        }
    }
}

/// A number of at most `digits_max` digits, and no other characters.
fn digits(text: &[u8], digits_max: usize) -> Option<i64> {
    let is_number = !text.is_empty() && text.len() <= digits_max;
    if !is_number || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = text.iter().map(|digit| i64::from(digit - b'0'));
    Some(digits.fold(0, |sum, digit| sum * 10 + digit))
}

/// A time in epoch milliseconds; clients of other protocols may send any text.
fn time(text: &[u8]) -> Option<i64> {
    digits(text, TIME_DIGITS_MAX)
}

fn decimal(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    let (mut reversed, mut count, mut left) = ([0u8; 20], 0, value.unsigned_abs());
    for digit in &mut reversed {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        count += 1;
        if left == 0 {
            break;
        }
    }
    out.extend(reversed.iter().take(count).rev());
}

fn address(out: &mut Vec<u8>, octets: [u8; 4]) {
    for (place, octet) in octets.into_iter().enumerate() {
        if place > 0 {
            out.push(b'.');
        }
        decimal(out, i64::from(octet));
    }
}

/// The offset id of a record with an IPv4 store host; none if its physical offset is negative.
fn offset_id(record: &[u8]) -> Option<[u8; 32]> {
    let offset = be_i64(record, AT_PHYSICAL_OFFSET).filter(|offset| *offset >= 0)?;
    crate::pieces::offset_id(record, AT_STORE_HOST as i64, offset)
}
