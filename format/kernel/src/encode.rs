//! Encoding of a batch as its producer sends it.

#![forbid(unsafe_code)]

use crate::checksum::crc;
use crate::reading::put;
use crate::record::{AT_BODY_CRC, AT_BODY_LENGTH, AT_SYS_FLAG};

const AT_FLAG: usize = 16;
const AT_BORN_TIMESTAMP: usize = 40;
const HEAD_V4_BYTES: usize = AT_BODY_LENGTH + 4;
const PROPERTIES_BYTES_MAX: usize = 32_767;
const SIZE_MAX: usize = i32::MAX as usize;

/// What the records of a batch have in common.
pub struct Common<'a> {
    /// What precedes a body, all but size, CRC and body length, and what a column has.
    pub head: &'a [u8],
    /// The topic behind its length.
    pub topic: &'a [u8],
    /// What the properties end with: room for a checksum, or nothing.
    pub ending: &'a [u8],
}

/// What differs from record to record, where it does.
#[derive(Default)]
pub struct Columns<'a> {
    pub flags: Option<&'a [i32]>,
    pub sys_flags: Option<&'a [i32]>,
    pub born_ms: Option<&'a [i64]>,
}

/// Size of a record; none if its properties, or it, would be too long.
pub fn size(common: &Common, body: &[u8], properties: &[u8]) -> Option<usize> {
    let properties_bytes = properties.len() + common.ending.len();
    let size = common.head.len() + body.len() + common.topic.len() + 2 + properties_bytes;
    (properties_bytes <= PROPERTIES_BYTES_MAX && size <= SIZE_MAX).then_some(size)
}

/// Write one record into exactly its bytes.
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
