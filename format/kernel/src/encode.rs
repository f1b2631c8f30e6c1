//! Encodes a producer's batch.

#![forbid(unsafe_code)]

use crate::checksum::crc;
use crate::reading::put;
use crate::record::{AT_BODY_CRC, AT_BODY_LENGTH, AT_SYS_FLAG};

const AT_FLAG: usize = 16;
const AT_BORN_TIMESTAMP: usize = 40;
const HEAD_V4_BYTES: usize = AT_BODY_LENGTH + 4;
const PROPERTIES_BYTES_MAX: usize = 32_767;
const SIZE_MAX: usize = i32::MAX as usize;

/// Common values of the records of a batch.
pub struct Common<'a> {
    /// The bytes before a body; size, CRC, body length and fields with a column are filled in.
    pub head: &'a [u8],
    /// The topic after its length.
    pub topic: &'a [u8],
    /// End of the properties: space for a checksum, or nothing.
    pub ending: &'a [u8],
}

/// Columns of fields that differ between records.
#[derive(Default)]
pub struct Columns<'a> {
    pub flags: Option<&'a [i32]>,
    pub sys_flags: Option<&'a [i32]>,
    pub born_ms: Option<&'a [i64]>,
}

/// Size of a record with a body and properties of these sizes; none if a part or the record is too
/// long.
pub fn size(common: &Common, body_bytes: usize, properties_bytes: usize) -> Option<usize> {
    let properties_bytes = properties_bytes + common.ending.len();
    let size = common.head.len() + body_bytes + common.topic.len() + 2 + properties_bytes;
    (properties_bytes <= PROPERTIES_BYTES_MAX && size <= SIZE_MAX).then_some(size)
}

/// Write one record; the buffer has exactly its size.
pub fn record(
    common: &Common,
    columns: &Columns,
    number: usize,
    body: &[u8],
    properties: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let size = i32::try_from(out.len()).ok()?;
    let extra = common.head.len().checked_sub(HEAD_V4_BYTES)?;
    put(out, 0, common.head)?;
    put(out, 0, &size.to_be_bytes())?;
    put(out, AT_BODY_CRC, &crc(body).to_be_bytes())?;
    if let Some(flags) = columns.flags {
        put(out, AT_FLAG, &flags.get(number)?.to_be_bytes())?;
    }
    if let Some(flags) = columns.sys_flags {
        put(out, AT_SYS_FLAG, &flags.get(number)?.to_be_bytes())?;
    }
    if let Some(times) = columns.born_ms {
        put(out, AT_BORN_TIMESTAMP, &times.get(number)?.to_be_bytes())?;
    }
    put(
        out,
        AT_BODY_LENGTH + extra,
        &i32::try_from(body.len()).ok()?.to_be_bytes(),
    )?;
    let properties_bytes = i16::try_from(properties.len() + common.ending.len()).ok()?;
    let mut at = common.head.len();
    for piece in [
        body,
        common.topic,
        &properties_bytes.to_be_bytes(),
        properties,
        common.ending,
    ] {
        put(out, at, piece)?;
        at += piece.len();
    }
    (at == out.len()).then_some(())
}

/// Properties that a producer adds to its messages.
pub struct Own<'a> {
    /// The bytes before the value of UNIQ_KEY.
    pub head: &'a [u8],
    /// The values back to back, all of one length.
    pub ids: &'a [u8],
    /// The bytes before a message's index in its batch; empty without sequence numbers.
    pub sequence: &'a [u8],
}

const SEPARATOR: u8 = 2;
const NUMBER_DIGITS: usize = 4;

/// A message's properties before and after UNIQ_KEY.
pub type Extras<'a> = (&'a [u8], &'a [u8]);

impl Own<'_> {
    /// Size of the properties of a message.
    pub fn properties_bytes(&self, id_bytes: usize, (head, tail): Extras) -> usize {
        let numbered = if self.sequence.is_empty() {
            0
        } else {
            self.sequence.len() + NUMBER_DIGITS + 1
        };
        head.len() + self.head.len() + id_bytes + 1 + tail.len() + numbered
    }

    /// Write the properties of a message.
    pub fn write(&self, number: usize, id: &[u8], (head, tail): Extras, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(head);
        out.extend_from_slice(self.head);
        out.extend_from_slice(id);
        out.push(SEPARATOR);
        out.extend_from_slice(tail);
        if !self.sequence.is_empty() {
            out.extend_from_slice(self.sequence);
            out.extend((0..NUMBER_DIGITS).rev().map(|place| {
                let digit = (number >> (4 * place)) as u8 & 15;
                digit + if digit < 10 { b'0' } else { b'a' - 10 }
            }));
            out.push(SEPARATOR);
        }
    }
}

/// The bytes before a field's content in a protobuf message: its tag and its length.
pub fn field_head(tag: u8, mut length: usize) -> Vec<u8> {
    let mut head = vec![tag];
    while length > 0x7f {
        head.push(length as u8 & 0x7f | 0x80);
        length >>= 7;
    }
    head.push(length as u8);
    head
}
