//! Fields of many records as columns, and values computed from them.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{crc, is_property, tail, Tail, DIGITS, PROPERTY_BYTES};
use crate::reading::{be_i16, be_i32};
use crate::record::{
    length, parts, Parts, AT_BODY_CRC, AT_BODY_LENGTH, AT_MAGIC, AT_SYS_FLAG, BORN_HOST_V6,
    HOST_V6_EXTRA_BYTES, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, STORE_HOST_V6,
};
use crate::text::{tags_code, ListedBy};

pub const PREFIX_BYTES: usize = 48;
pub const PARTS: usize = 9;

const SEQUENCE_HEAD: &[u8] = b"__SEQ\x01";
const SEQUENCE_BYTES: usize = 39;

/// State bit: the record is damaged.
pub const WRONG: u8 = 1;
/// State bit: the record has a checksum, right or wrong.
pub const WHOLE: u8 = 2;

/// A range of the bytes; none if it is not within them.
pub fn piece(bytes: &[u8], start: i64, length: i64) -> Option<&[u8]> {
    let length = usize::try_from(length.max(0)).ok()?;
    bytes.get(usize::try_from(start).ok()?..)?.get(..length)
}

/// The parts of the record at a position, as in `rockoon_format.frames.locate`: a position outside
/// the bytes is clipped to their end, so that the sum of the parts exceeds the size.
pub fn locate(bytes: &[u8], start: i64) -> Option<(&[u8], [i64; PARTS])> {
    let record = piece(bytes, start, RECORD_BYTES_MIN as i64)?;
    let clipped = |at: i64, width: usize| -> usize {
        usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(bytes.len() - width)
    };
    let sys_flag = be_i32(record, AT_SYS_FLAG)?;
    let extra = |bit: i32| {
        if sys_flag & bit != 0 {
            HOST_V6_EXTRA_BYTES as i64
        } else {
            0
        }
    };
    let born_extra = extra(BORN_HOST_V6);
    let hosts_extra = born_extra + extra(STORE_HOST_V6);
    let at = start + AT_BODY_LENGTH as i64 + hosts_extra;
    let body_length = i64::from(be_i32(bytes, clipped(at, 4))?);
    let body_start = at + 4;
    let at = body_start + body_length.max(0);
    let is_v2 = be_i32(record, AT_MAGIC)? == MAGIC_V2;
    let topic_length = if is_v2 {
        i64::from(be_i16(bytes, clipped(at, 2))?)
    } else {
        i64::from(*bytes.get(clipped(at, 2))? as i8)
    };
    let topic_start = at + 1 + i64::from(is_v2);
    let at = topic_start + topic_length.max(0);
    let properties_length = i64::from(be_i16(bytes, clipped(at, 2))?);
    let properties_start = at + 2;
    let found = [
        hosts_extra,
        born_extra,
        body_start,
        body_length,
        topic_start,
        topic_length,
        properties_start,
        properties_length,
        properties_start + properties_length.max(0) - start,
    ];
    Some((record.get(..PREFIX_BYTES)?, found))
}

/// The parts of a whole record, if they are valid: the magic is known, the size field is right, and
/// the parts add up to it.
#[inline]
pub fn sound(record: &[u8]) -> Option<Parts> {
    let magic = be_i32(record, AT_MAGIC)?;
    let is_known = magic == MAGIC_V1 || magic == MAGIC_V2;
    let is_sized = usize::try_from(be_i32(record, 0)?) == Ok(record.len());
    if record.len() < RECORD_BYTES_MIN || !is_known || !is_sized {
        return None;
    }
    parts(record).filter(|found| found.end == record.len() && found.topic_length >= 0)
}

/// Compare a whole record with its checksum, or its body with its CRC: bits `WRONG` and `WHOLE`.
///
/// None if its parts do not add up to its size.
pub fn compare(bytes: &[u8], start: i64, size: i64, checksums: bool) -> Option<u8> {
    let record = piece(bytes, start, size)?;
    let found = parts(record).filter(|found| found.end == record.len())?;
    compare_parts(record, &found, checksums)
}

/// `compare` of a whole record with known parts.
pub fn compare_parts(record: &[u8], found: &Parts, checksums: bool) -> Option<u8> {
    let ending = if checksums {
        tail(record, found.properties_length)
    } else {
        Tail::Other
    };
    let body = record
        .get(found.body_start..)?
        .get(..length(found.body_length))?;
    let wrong = if is_wrong(record, body, ending)? {
        WRONG
    } else {
        0
    };
    Some(wrong | if is_whole(ending) { WHOLE } else { 0 })
}

/// Whether a record with this end has a checksum, right or wrong.
fn is_whole(ending: Tail) -> bool {
    match ending {
        Tail::Mangled => true,
        Tail::Property(digits) => digits != [b'-'; DIGITS],
        Tail::Other => false,
    }
}

/// Whether a whole record is damaged.
pub fn is_wrong(record: &[u8], body: &[u8], ending: Tail) -> Option<bool> {
    match ending {
        Tail::Mangled => Some(true),
        Tail::Property(digits) if is_whole(ending) => {
            let covered = record.get(..record.len() - PROPERTY_BYTES)?;
            Some(number(&digits) != Some(u64::from(crc(covered))))
        }
        // The CRC of an empty body is ignored, as in CommitLog#checkMessageAndReturnSize.
        _ => Some(!body.is_empty() && crc(body) as i32 != be_i32(record, AT_BODY_CRC)?),
    }
}

/// Decimal digits, the least significant first.
fn number(digits: &[u8; DIGITS]) -> Option<u64> {
    digits.iter().rev().try_fold(0, |sum, digit| {
        digit
            .is_ascii_digit()
            .then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

/// The tags code of properties at a position; none if `text::hash` has none.
pub fn code(bytes: &[u8], start: i64, length: i64) -> Option<i64> {
    tags_code(piece(bytes, start, length)?)
}

/// CRC-32 of a range, not masked.
pub fn piece_crc(bytes: &[u8], start: i64, length: i64) -> Option<i64> {
    piece(bytes, start, length).map(|it| i64::from(crc32fast::hash(it)))
}

/// Distinct names in order of appearance, for few distinct values such as topics.
pub struct Topics<'a> {
    pub names: Vec<&'a [u8]>,
    numbers: HashMap<&'a [u8], i64>,
    /// Recent names, by `slot`: most names are found here, without a hash of all their bytes.
    recent: [(&'a [u8], i64); SLOTS],
    /// The last name, because consecutive names are mostly equal.
    last: (&'a [u8], i64),
}

const SLOTS: usize = 256;

impl Default for Topics<'_> {
    fn default() -> Self {
        Topics {
            names: Vec::new(),
            numbers: HashMap::new(),
            recent: [(&[], -1); SLOTS],
            last: (&[], -1),
        }
    }
}

impl<'a> Topics<'a> {
    /// The number of a name; adds it if it is new.
    #[inline]
    pub fn number(&mut self, name: &'a [u8]) -> i64 {
        if self.last.0 != name || self.last.1 < 0 {
            self.last = (name, self.other(name));
        }
        self.last.1
    }

    fn other(&mut self, name: &'a [u8]) -> i64 {
        let recent = self.recent.get_mut(slot(name));
        if let Some((_, number)) = recent.as_ref().filter(|it| it.0 == name && it.1 >= 0) {
            return *number;
        }
        let next = self.names.len() as i64;
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        if let Some(recent) = recent {
            *recent = (name, number);
        }
        number
    }
}

/// Names differ most at their ends.
fn slot(name: &[u8]) -> usize {
    let ends = name.iter().rev().take(4).chain(name.first());
    ends.fold(name.len(), |sum, byte| sum * 31 + usize::from(*byte)) % SLOTS
}

/// End of a record without its checksum, and whether it has one, if its last other property may be
/// `__SEQ`; none if a record is not within the bytes.
pub fn sequence_end(bytes: &[u8], end: i64) -> Option<Option<(i64, bool)>> {
    let end = usize::try_from(end).ok()?;
    let record = bytes.get(end.checked_sub(RECORD_BYTES_MIN)?..end)?;
    let (front, last) = record.split_last_chunk::<PROPERTY_BYTES>()?;
    let checked = is_property(last);
    let rest = if checked { front } else { record };
    let section = rest.get(rest.len().checked_sub(SEQUENCE_BYTES)?..)?;
    let taken = if checked { PROPERTY_BYTES } else { 0 };
    Some(
        section
            .starts_with(SEQUENCE_HEAD)
            .then_some(((end - taken) as i64, checked)),
    )
}

/// Call `take` with the index hash of each key in properties, the unique one first.
///
/// `front` is the hash of the text before each key: `topic#`. None if a key is not UTF-8.
pub fn key_hashes(
    bytes: &[u8],
    start: i64,
    length: i64,
    front: i32,
    take: impl FnMut(i64),
) -> Option<()> {
    ListedBy::of(piece(bytes, start, length)?).each_hash(front, take)
}
