//! Consecutive records: walked, compared and decoded in one pass.

#![forbid(unsafe_code)]

use crate::checksum::PROPERTY_BYTES;
use crate::columns::{compare_parts, Topics, WHOLE, WRONG};
use crate::reading::{be_i32, be_i64};
use crate::record::{
    length, parts, Parts, AT_MAGIC, AT_PHYSICAL_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN,
};
use crate::text::tags_code;

/// Fields of a record, in the order of `rockoon_format.scan`: start, size, topic number, queue,
/// queue offset, physical offset, store time, system flag, tags code, properties' start and length.
pub const FIELDS: usize = 11;
pub type Row = [i64; FIELDS];

/// Records with longer properties have no space for a checksum.
const PROPERTIES_CHECKED_BYTES_MAX: i32 = i16::MAX as i32 - PROPERTY_BYTES as i32 - 1;

/// Why a scan stopped; in the order of `rockoon_format.scan`.
#[derive(Clone, Copy)]
pub enum ScanEnd {
    Limit,
    End,
    Blank,
    Zero,
    BadMagic,
    Truncated,
    SizeMismatch,
    BadCrc,
    NoChecksum,
    /// The next record is not within the bytes, but before the end: call again with more bytes.
    MoreBytes,
}

/// Limits of a scan.
pub struct Limits {
    /// End of the file; the bytes may be only its start.
    pub end: usize,
    pub bytes: usize,
    pub records: usize,
}

/// Checks of a scan: checksums of whole records, and the position from which they are required.
pub struct Checks {
    pub checksums: bool,
    pub checksums_from: Option<i64>,
}

pub struct Scanned<'a> {
    pub rows: Vec<Row>,
    pub topics: Topics<'a>,
    pub why: ScanEnd,
    pub stop: usize,
}

/// The record at a position, by its size field, or why there is none.
fn next(bytes: &[u8], at: usize, end: usize) -> Result<&[u8], ScanEnd> {
    let left = end.saturating_sub(at);
    if left == 0 {
        return Err(ScanEnd::End);
    }
    if left < AT_MAGIC + 4 {
        return Err(ScanEnd::Truncated);
    }
    let (Some(size), Some(magic)) = (be_i32(bytes, at), be_i32(bytes, at + AT_MAGIC)) else {
        return Err(ScanEnd::MoreBytes);
    };
    if i64::from(size) > left as i64 {
        return Err(ScanEnd::Truncated);
    }
    match magic {
        MAGIC_V1 | MAGIC_V2 => {}
        MAGIC_BLANK => return Err(ScanEnd::Blank),
        0 if size == 0 => return Err(ScanEnd::Zero),
        _ => return Err(ScanEnd::BadMagic),
    }
    if length(size) < RECORD_BYTES_MIN {
        return Err(ScanEnd::SizeMismatch);
    }
    let rest = bytes.get(at..).unwrap_or_default();
    rest.get(..length(size)).ok_or(ScanEnd::MoreBytes)
}

/// The parts of a record, if they add up to its size.
#[inline]
pub fn whole(record: &[u8]) -> Option<Parts> {
    parts(record).filter(|found| found.end == record.len() && found.topic_length >= 0)
}

/// `rockoon_format.scan`; none if tags are not UTF-8.
pub fn scan<'a>(
    bytes: &'a [u8],
    limits: &Limits,
    checks: Option<&Checks>,
    with_tag_codes: bool,
) -> Option<Scanned<'a>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut topics = Topics::default();
    let mut at = 0usize;
    let why = loop {
        if at != limits.end && (rows.len() == limits.records || at >= limits.bytes) {
            break ScanEnd::Limit;
        }
        let record = match next(bytes, at, limits.end) {
            Ok(record) => record,
            Err(why) => break why,
        };
        let Some(found) = whole(record) else {
            break ScanEnd::SizeMismatch;
        };
        if let Some(checks) = checks {
            let state = compare_parts(record, &found, checks.checksums)?;
            if state & WRONG != 0 {
                break ScanEnd::BadCrc;
            }
            let due = checks.checksums_from.is_some_and(|from| at as i64 >= from);
            let has_room = found.properties_length <= PROPERTIES_CHECKED_BYTES_MAX;
            if due && has_room && state & WHOLE == 0 {
                break ScanEnd::NoChecksum;
            }
        }
        let topic = record
            .get(found.topic_start..)?
            .get(..length(found.topic_length))?;
        let properties = record.get(found.properties_start..)?;
        rows.push([
            at as i64,
            record.len() as i64,
            topics.number(topic),
            i64::from(be_i32(record, AT_QUEUE_ID)?),
            be_i64(record, AT_QUEUE_OFFSET)?,
            be_i64(record, AT_PHYSICAL_OFFSET)?,
            be_i64(record, AT_STORE_TIMESTAMP + found.born_extra)?,
            i64::from(found.sys_flag),
            if with_tag_codes {
                tags_code(properties)?
            } else {
                0
            },
            (at + found.properties_start) as i64,
            properties.len() as i64,
        ]);
        at += record.len();
    };
    Some(Scanned {
        rows,
        topics,
        why,
        stop: at,
    })
}

/// Call `take` with the position, bytes and parts of whole records, up to one that starts at or
/// after `stop`, or to the first invalid one; returns why and where it stopped.
///
/// `base` is the physical offset of the first byte; each record must contain its real physical
/// offset. Checksums are not compared. None if `take` returns none.
pub fn records<'a>(
    bytes: &'a [u8],
    base: Option<i64>,
    end: usize,
    stop: usize,
    mut take: impl FnMut(usize, &'a [u8], &Parts) -> Option<()>,
) -> Option<(ScanEnd, usize)> {
    let mut at = 0usize;
    while at < stop {
        let record = match next(bytes, at, end) {
            Ok(record) => record,
            Err(why) => return Some((why, at)),
        };
        let is_here = base
            .is_none_or(|base| be_i64(record, AT_PHYSICAL_OFFSET) == base.checked_add(at as i64));
        let Some(found) = whole(record).filter(|_| is_here) else {
            return Some((ScanEnd::SizeMismatch, at));
        };
        take(at, record, &found)?;
        at += record.len();
    }
    let why = if at == end {
        ScanEnd::End
    } else if at == bytes.len() {
        ScanEnd::MoreBytes
    } else {
        ScanEnd::Limit
    };
    Some((why, at))
}

/// End of the records of `records`, to the last one that is whole in `bytes`.
pub fn extent(bytes: &[u8], base: i64, end: usize) -> (ScanEnd, usize) {
    let all = records(bytes, Some(base), end, bytes.len(), |_, _, _| Some(()));
    all.unwrap_or((ScanEnd::Limit, 0))
}

/// Sizes of the records of `records`.
pub fn chain(
    bytes: &[u8],
    base: i64,
    end: usize,
    stop: usize,
    sizes: &mut Vec<i64>,
) -> (ScanEnd, usize) {
    let all = records(bytes, Some(base), end, stop, |_, record, _| {
        sizes.push(record.len() as i64);
        Some(())
    });
    all.unwrap_or((ScanEnd::Limit, 0))
}
