//! Bytes of one record; `rockoon_format/record.py` has the drawing.

#![forbid(unsafe_code)]

use crate::reading::{be_i16, be_i32};

pub const MAGIC_V1: i32 = -626843481;
pub const MAGIC_V2: i32 = -626843477;
pub const MAGIC_BLANK: i32 = -875286124;
pub const RECORD_BYTES_MIN: usize = 91;
pub const CRC_MASK: u32 = 0x7FFF_FFFF;

pub const BORN_HOST_V6: i32 = 0x10;
pub const STORE_HOST_V6: i32 = 0x20;
pub const HOST_V6_EXTRA_BYTES: usize = 12;

pub const AT_MAGIC: usize = 4;
pub const AT_BODY_CRC: usize = 8;
pub const AT_QUEUE_ID: usize = 12;
pub const AT_QUEUE_OFFSET: usize = 20;
pub const AT_PHYSICAL_OFFSET: usize = 28;
pub const AT_SYS_FLAG: usize = 36;
// Positions in a record with IPv4 hosts.
pub const AT_STORE_TIMESTAMP: usize = 56;
pub const AT_PREPARED_OFFSET: usize = 76;
pub const AT_BODY_LENGTH: usize = 84;

/// Positions of the parts of one record, relative to its first byte.
pub struct Parts {
    pub magic: i32,
    pub sys_flag: i32,
    pub born_extra: usize,
    pub hosts_extra: usize,
    pub body_start: usize,
    /// As stored; lengths may be negative.
    pub body_length: i32,
    pub topic_start: usize,
    pub topic_length: i32,
    pub properties_start: usize,
    pub properties_length: i32,
    /// Sum of the parts.
    pub end: usize,
}

impl Parts {
    /// Columns of `rockoon_format.frames.Parts` without the first two, for a record at a position.
    pub fn columns(&self, start: usize) -> [i64; 9] {
        let place = |at: usize| (start + at) as i64;
        [
            self.hosts_extra as i64,
            self.born_extra as i64,
            place(self.body_start),
            i64::from(self.body_length),
            place(self.topic_start),
            i64::from(self.topic_length),
            place(self.properties_start),
            i64::from(self.properties_length),
            self.end as i64,
        ]
    }
}

/// A stored length; negative ones are read as zero.
pub fn length(stored: i32) -> usize {
    usize::try_from(stored).unwrap_or(0)
}

/// Find the parts of the record at the start of `bytes`; none if a part is outside.
#[inline]
pub fn parts(bytes: &[u8]) -> Option<Parts> {
    let magic = be_i32(bytes, AT_MAGIC)?;
    let sys_flag = be_i32(bytes, AT_SYS_FLAG)?;
    let extra = |bit: i32| {
        if sys_flag & bit != 0 {
            HOST_V6_EXTRA_BYTES
        } else {
            0
        }
    };
    let born_extra = extra(BORN_HOST_V6);
    let hosts_extra = born_extra + extra(STORE_HOST_V6);
    let body_start = AT_BODY_LENGTH + hosts_extra + 4;
    let body_length = be_i32(bytes, body_start - 4)?;
    let at = body_start + length(body_length);
    let (topic_start, topic_length) = if magic == MAGIC_V2 {
        (at + 2, i32::from(be_i16(bytes, at)?))
    } else {
        (at + 1, i32::from(*bytes.get(at)? as i8))
    };
    let at = topic_start + length(topic_length);
    let properties_length = i32::from(be_i16(bytes, at)?);
    let properties_start = at + 2;
    Some(Parts {
        magic,
        sys_flag,
        born_extra,
        hosts_extra,
        body_start,
        body_length,
        topic_start,
        topic_length,
        properties_start,
        properties_length,
        end: properties_start + length(properties_length),
    })
}
