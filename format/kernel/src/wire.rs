//! Requests and responses of append streams, and responses of pull streams: protobuf messages.
//!
//! This code parses only the common forms. Messages with unlisted fields, other wire types or
//! numbers out of range are left to protobuf, valid or not.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::encode::field_head;

/// Limits of the fields in a message, where each batch of a request is a field, and of the fields
/// in a nested message. `large_requests` has the same limits: each field costs time, and a hostile
/// client can send fields of two bytes.
const FIELDS_MAX: usize = 1024;
const FURTHER_FIELDS_MAX: usize = 64;
/// Limit of responses in a message of a pull stream, which may contain many queues.
const ANSWERS_MAX: usize = 1 << 16;
const VARINT_BYTES_MAX: usize = 9;
const LENGTH_BYTES_MAX: usize = 5;
const NUMBER: u8 = 0;
const BYTES: u8 = 2;

/// Value of a field.
enum Value {
    Number(i64),
    Bytes(Range<usize>),
}

/// A number of at most 63 bits, and its end.
fn varint(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let mut number = 0;
    for (place, byte) in bytes.get(at..)?.iter().take(VARINT_BYTES_MAX).enumerate() {
        number |= i64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            return Some((number, at + place + 1));
        }
    }
    None
}

/// Call `take` with each field of the message in a range of the bytes, in order, unless there are
/// too many.
fn fields(
    bytes: &[u8],
    range: Range<usize>,
    most: usize,
    mut take: impl FnMut(u8, Value) -> Option<()>,
) -> Option<()> {
    let bytes = bytes.get(..range.end)?;
    let mut at = range.start;
    let mut count = 0;
    while at < range.end {
        count += 1;
        if count > most {
            return None;
        }
        // Known tags have one byte, because their field numbers are less than 16.
        let tag = *bytes.get(at)?;
        let (number, end) = varint(bytes, at + 1)?;
        let value = match tag & 7 {
            NUMBER => {
                at = end;
                Value::Number(number)
            }
            BYTES => {
                if end - at - 1 > LENGTH_BYTES_MAX {
                    return None;
                }
                at = end.checked_add(usize::try_from(i32::try_from(number).ok()?).ok()?)?;
                bytes.get(end..at)?;
                Value::Bytes(end..at)
            }
            _ => return None,
        };
        take(tag >> 3, value)?;
    }
    Some(())
}

/// A batch of a request.
#[derive(Default)]
pub struct Request<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    /// Range of the records.
    pub frames: Range<usize>,
    pub sizes: &'a [u8],
    pub route_revision: i64,
    pub request_id: i64,
}

type Further<'f> = &'f mut dyn FnMut(Range<usize>) -> Option<()>;

/// A message, followed by the nested messages of the same type, which contain no further ones.
fn with_further<'a, T>(
    message: &'a [u8],
    one: fn(&'a [u8], Range<usize>, usize, Further) -> Option<T>,
) -> Option<Vec<T>> {
    let mut found = Vec::new();
    let first = one(message, 0..message.len(), FIELDS_MAX, &mut |range| {
        found.push(one(message, range, FURTHER_FIELDS_MAX, &mut |_| None)?);
        Some(())
    })?;
    found.insert(0, first);
    Some(found)
}

/// The batches of a request, if all of them have the common form.
pub fn requests(message: &[u8]) -> Option<Vec<Request<'_>>> {
    with_further(message, request)
}

fn request<'a>(
    message: &'a [u8],
    range: Range<usize>,
    most: usize,
    further: Further,
) -> Option<Request<'a>> {
    let mut found = Request::default();
    fields(message, range, most, |number, value| {
        match (number, value) {
            (1, Value::Bytes(at)) => found.topic = std::str::from_utf8(message.get(at)?).ok()?,
            (2, Value::Number(id)) => found.queue_id = i32::try_from(id).ok()?,
            (3, Value::Bytes(at)) => found.frames = at,
            (4, Value::Bytes(at)) => found.sizes = message.get(at)?,
            (5, Value::Number(revision)) => found.route_revision = revision,
            (6, Value::Number(id)) => found.request_id = id,
            (13, Value::Bytes(at)) => further(at)?,
            _ => return None,
        }
        Some(())
    })?;
    Some(found)
}

/// Position of a batch that was stored in one range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stored<'a> {
    pub request_id: i64,
    pub first_queue_offset: i64,
    pub first_physical_offset: i64,
    pub messages: i32,
    pub store_timestamp_ms: i64,
    pub store_host: &'a [u8],
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: i64) {
    // Negative numbers have ten bytes.
    let mut left = number as u64;
    if left != 0 {
        out.push(tag);
        while left > 0x7f {
            out.push(left as u8 & 0x7f | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    }
}

fn put_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.extend(field_head(tag, bytes.len()));
    out.extend_from_slice(bytes);
}

/// The response to a request with these batches, at least one.
pub fn reply(batches: &[Stored]) -> Option<Vec<u8>> {
    let (first, further) = batches.split_first()?;
    let mut out = Vec::with_capacity(64 * batches.len());
    put_stored(&mut out, first);
    let mut own = Vec::with_capacity(64);
    for each in further {
        own.clear();
        put_stored(&mut own, each);
        put_bytes(&mut out, 4 << 3 | BYTES, &own);
    }
    Some(out)
}

fn put_stored(out: &mut Vec<u8>, batch: &Stored) {
    put_number(out, 1 << 3, batch.request_id);
    let mut appended = Vec::with_capacity(48);
    put_number(&mut appended, 1 << 3, batch.first_queue_offset);
    put_number(&mut appended, 2 << 3, batch.first_physical_offset);
    put_number(&mut appended, 3 << 3, i64::from(batch.messages));
    put_number(&mut appended, 4 << 3, batch.store_timestamp_ms);
    if !batch.store_host.is_empty() {
        put_bytes(&mut appended, 5 << 3 | BYTES, batch.store_host);
    }
    put_bytes(out, 2 << 3 | BYTES, &appended);
}

/// Positions of a request's batches, if all were stored in one range each and have no other fields.
pub fn stored(message: &[u8]) -> Option<Vec<Stored<'_>>> {
    with_further(message, stored_one)
}

fn stored_one<'a>(
    message: &'a [u8],
    range: Range<usize>,
    most: usize,
    further: Further,
) -> Option<Stored<'a>> {
    let mut found = Stored::default();
    let mut places = 0;
    fields(message, range, most, |number, value| {
        match (number, value) {
            (1, Value::Number(id)) => found.request_id = id,
            (2, Value::Bytes(at)) => {
                places += 1;
                fields(message, at, FURTHER_FIELDS_MAX, |number, value| {
                    match (number, value) {
                        (1, Value::Number(offset)) => found.first_queue_offset = offset,
                        (2, Value::Number(offset)) => found.first_physical_offset = offset,
                        (3, Value::Number(count)) => found.messages = i32::try_from(count).ok()?,
                        (4, Value::Number(time)) => found.store_timestamp_ms = time,
                        (5, Value::Bytes(at)) => found.store_host = message.get(at)?,
                        _ => return None,
                    }
                    Some(())
                })?;
            }
            (4, Value::Bytes(at)) => further(at)?,
            _ => return None,
        }
        Some(())
    })?;
    // protobuf merges repeated fields, and a missing one means that the batch was not stored.
    (places == 1).then_some(found)
}

/// Result of a read of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found<'a> {
    pub status: i32,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    /// Range of the records.
    pub frames: Range<usize>,
    pub sizes: &'a [u8],
    pub subscription_id: i64,
    pub ended: bool,
}

/// A pull response without its records, which are its last field; on a stream, the front of one of
/// several responses.
pub fn front(found: &Found, on_stream: bool) -> Vec<u8> {
    let mut own = Vec::with_capacity(64 + found.sizes.len());
    put_number(&mut own, 1 << 3, i64::from(found.status));
    put_number(&mut own, 2 << 3, found.next_offset);
    put_number(&mut own, 3 << 3, found.min_offset);
    put_number(&mut own, 4 << 3, found.max_offset);
    if !found.sizes.is_empty() {
        put_bytes(&mut own, 6 << 3 | BYTES, found.sizes);
    }
    put_number(&mut own, 7 << 3, found.subscription_id);
    put_number(&mut own, 8 << 3, i64::from(found.ended));
    if !found.frames.is_empty() {
        own.extend(field_head(5 << 3 | BYTES, found.frames.len()));
    }
    if !on_stream {
        return own;
    }
    let mut out = field_head(1 << 3 | BYTES, own.len() + found.frames.len());
    out.append(&mut own);
    out
}

/// The responses in a message of a pull stream, if none is a refusal.
pub fn found(message: &[u8]) -> Option<Vec<Found<'_>>> {
    let mut all = Vec::new();
    fields(message, 0..message.len(), ANSWERS_MAX, |number, value| {
        let (1, Value::Bytes(range)) = (number, value) else {
            return None;
        };
        let mut found = Found::default();
        fields(message, range, FURTHER_FIELDS_MAX, |number, value| {
            match (number, value) {
                (1, Value::Number(status)) => found.status = i32::try_from(status).ok()?,
                (2, Value::Number(offset)) => found.next_offset = offset,
                (3, Value::Number(offset)) => found.min_offset = offset,
                (4, Value::Number(offset)) => found.max_offset = offset,
                (5, Value::Bytes(at)) => found.frames = at,
                (6, Value::Bytes(at)) => found.sizes = message.get(at)?,
                (7, Value::Number(id)) => found.subscription_id = id,
                (8, Value::Number(ended)) => found.ended = ended != 0,
                _ => return None,
            }
            Some(())
        })?;
        all.push(found);
        Some(())
    })?;
    Some(all)
}
