//! Batches: the check of a sent batch, and the fields that the broker writes into it.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{crc, tail, write, Tail, PROPERTY_BYTES};
use crate::reading::{be_i32, be_i64, put};
use crate::record::{
    length, parts, AT_BODY_CRC, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, STORE_HOST_V6,
};
use crate::text::{front, ListedBy};

pub const ENTRY_BYTES: usize = 20;

/// Requirements for each record; the fields are those of `rockoon_format.batch_checking.BatchRules`.
pub struct Rules<'a> {
    pub topic: &'a [u8],
    pub queue_id: i64,
    pub body_bytes_max: i64,
    pub properties_bytes_max: i64,
    pub record_bytes_max: i64,
    pub sys_flags_allowed: i32,
    pub sources_allowed: bool,
}

/// Result of the check of one record; positions are relative to the frames.
pub struct Checked {
    pub start: usize,
    pub size: usize,
    pub store_position: usize,
    pub properties_start: usize,
    pub properties_length: i32,
    pub has_room: bool,
}

impl Checked {
    pub fn properties(&self) -> std::ops::Range<usize> {
        self.properties_start..self.start + self.size
    }
}

/// Check one record; none in a doubtful case, so that the column check names the reason.
fn check_record(record: &[u8], start: usize, rules: &Rules) -> Option<Checked> {
    let found = parts(record)?;
    let size = record.len();
    let ending = tail(record, found.properties_length);
    let has_room = matches!(ending, Tail::Property(_));
    let room = if has_room { PROPERTY_BYTES as i64 } else { 0 };
    let is_right = be_i32(record, 0)? as i64 == size as i64
        && (found.magic == MAGIC_V1 || found.magic == MAGIC_V2)
        && found.sys_flag & (!rules.sys_flags_allowed | STORE_HOST_V6) == 0
        && found.end == size
        && found.body_length >= 0
        && found.topic_length >= 0
        && found.properties_length >= 0
        && i64::from(be_i32(record, AT_QUEUE_ID)?) == rules.queue_id
        && record
            .get(found.topic_start..)?
            .get(..length(found.topic_length))?
            == rules.topic
        && ending != Tail::Mangled
        && i64::from(found.body_length) <= rules.body_bytes_max
        && i64::from(found.properties_length) - room <= rules.properties_bytes_max
        && size as i64 <= rules.record_bytes_max
        && (rules.sources_allowed || be_i64(record, AT_PREPARED_OFFSET + found.hosts_extra)? == 0);
    if !is_right {
        return None;
    }
    let body = record
        .get(found.body_start..)?
        .get(..length(found.body_length))?;
    if crc(body) as i32 != be_i32(record, AT_BODY_CRC)? {
        return None;
    }
    Some(Checked {
        start,
        size,
        properties_start: start + found.properties_start,
        store_position: start + AT_STORE_TIMESTAMP + found.born_extra,
        properties_length: found.properties_length,
        has_room,
    })
}

/// Check all records of a batch in order; false in a doubtful case.
///
/// `sizes` are the sizes of the records; `take` is called with each valid record.
pub fn check(
    frames: &[u8],
    sizes: impl Iterator<Item = i64>,
    rules: &Rules,
    mut take: impl FnMut(Checked) -> Option<()>,
) -> bool {
    let mut start = 0usize;
    for size in sizes {
        let Ok(size) = usize::try_from(size) else {
            return false;
        };
        if size < RECORD_BYTES_MIN {
            return false;
        }
        let record = frames.get(start..).and_then(|rest| rest.get(..size));
        let checked = record.and_then(|record| check_record(record, start, rules));
        if checked.and_then(&mut take).is_none() {
            return false;
        }
        start += size;
    }
    start == frames.len()
}

/// Fields that the broker writes into the records of a batch.
pub struct Stamp<'a> {
    pub first_queue_offset: i64,
    pub first_physical_offset: i64,
    pub store_timestamp_ms: i64,
    pub store_host: &'a [u8; 8],
}

impl Stamp<'_> {
    /// Write the fields into a record of the batch; `number` is its index.
    #[inline]
    fn write(
        &self,
        record: &mut [u8],
        number: i64,
        offset: i64,
        store_at: usize,
        has_room: bool,
    ) -> Option<()> {
        let queue_offset = self.first_queue_offset.wrapping_add(number);
        put(record, AT_QUEUE_OFFSET, &queue_offset.to_be_bytes())?;
        put(record, AT_QUEUE_OFFSET + 8, &offset.to_be_bytes())?;
        put(record, store_at, &self.store_timestamp_ms.to_be_bytes())?;
        put(record, store_at + 8, self.store_host)?;
        // Last, because the checksum covers the fields written above.
        if has_room {
            write(record)?;
        }
        Some(())
    }
}

fn entry_of(offset: i64, size: usize, code: i64) -> Option<[u8; ENTRY_BYTES]> {
    let mut entry = [0; ENTRY_BYTES];
    put(&mut entry, 0, &offset.to_be_bytes())?;
    put(&mut entry, 8, &i32::try_from(size).ok()?.to_be_bytes())?;
    put(&mut entry, 12, &code.to_be_bytes())?;
    Some(entry)
}

/// Copy a checked batch, stamp every record, and write its queue entries.
///
/// None if the frames are not a batch of this many records, or the output is too small.
pub fn stamp(
    frames: &[u8],
    codes: impl ExactSizeIterator<Item = i64>,
    stamp: &Stamp,
    copy: &mut [u8],
    entries: &mut [u8],
) -> Option<()> {
    if entries.len() != codes.len().checked_mul(ENTRY_BYTES)? || copy.len() != frames.len() {
        return None;
    }
    let mut start = 0usize;
    for ((number, code), entry) in (0i64..)
        .zip(codes)
        .zip(entries.chunks_exact_mut(ENTRY_BYTES))
    {
        let size = usize::try_from(be_i32(frames, start)?).ok()?;
        if size < RECORD_BYTES_MIN {
            return None;
        }
        let source = frames.get(start..)?.get(..size)?;
        let record = copy.get_mut(start..)?.get_mut(..size)?;
        record.copy_from_slice(source);
        let found = parts(record)?;
        let has_room = matches!(tail(record, found.properties_length), Tail::Property(_));
        let offset = stamp.first_physical_offset.wrapping_add(start as i64);
        let at = AT_STORE_TIMESTAMP + found.born_extra;
        stamp.write(record, number, offset, at, has_room)?;
        entry.copy_from_slice(&entry_of(offset, size, code)?);
        start += size;
    }
    (start == frames.len()).then_some(())
}

/// One of several batches of an append.
pub struct Piece<'a> {
    pub frames: &'a [u8],
    /// Size of each record, packed little-endian u32.
    pub sizes: &'a [u8],
    pub rules: Rules<'a>,
    pub first_queue_offset: i64,
}

const SIZE_BYTES: usize = 4;

/// A buffer that grows by copies to its end, like `Vec`.
pub trait Out {
    fn used(&self) -> usize;
    /// Append a copy, and return it; none if there is no space.
    fn copy(&mut self, bytes: &[u8]) -> Option<&mut [u8]>;
    fn truncate(&mut self, len: usize);
}

impl Out for Vec<u8> {
    fn used(&self) -> usize {
        Vec::len(self)
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<&mut [u8]> {
        let at = Vec::len(self);
        self.extend_from_slice(bytes);
        self.get_mut(at..)
    }

    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }
}

/// Results of an append of several batches, besides their bytes.
#[derive(Default)]
pub struct Made {
    /// Number of records of each batch, 0 for a batch that was left out in a doubtful case.
    pub counts: Vec<usize>,
    pub entries: Vec<u8>,
    /// Index hashes of the records' keys, and start of each key's record: native int64. None if not
    /// requested, or if a text is not UTF-8.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
}

/// Check, copy and stamp batches one after the other, each record while it is in the cache.
///
/// `place` is the physical offset of the first record, and the store time and host of all.
pub fn append(
    pieces: &[Piece],
    with_room: bool,
    with_keys: bool,
    place: (i64, i64, &[u8; 8]),
    out: &mut impl Out,
) -> Made {
    let mut made = Made {
        keys: with_keys.then(Default::default),
        ..Default::default()
    };
    // Where each queue continues; one batch needs no table.
    let mut next: HashMap<(&[u8], i64), i64> = HashMap::new();
    for piece in pieces {
        let (used, listed) = (out.used(), made.entries.len());
        let known = made.keys.as_ref().map_or(0, |(hashes, _)| hashes.len());
        let queue = (piece.rules.topic, piece.rules.queue_id);
        let first = next.get(&queue).copied();
        let first = first.unwrap_or(piece.first_queue_offset);
        let count =
            append_one(piece, first, with_room, place, out, &mut made).unwrap_or_else(|| {
                out.truncate(used);
                made.entries.truncate(listed);
                if let Some((hashes, offsets)) = &mut made.keys {
                    hashes.truncate(known);
                    offsets.truncate(known);
                }
                0
            });
        if pieces.len() > 1 {
            next.insert(queue, first.wrapping_add(count as i64));
        }
        made.counts.push(count);
    }
    made
}

fn append_one(
    piece: &Piece,
    first_queue_offset: i64,
    with_room: bool,
    (first_physical_offset, store_timestamp_ms, store_host): (i64, i64, &[u8; 8]),
    out: &mut impl Out,
    made: &mut Made,
) -> Option<usize> {
    let sizes = piece.sizes.chunks_exact(SIZE_BYTES);
    if sizes.len() == 0 || !sizes.remainder().is_empty() {
        return None;
    }
    let count = sizes.len();
    let sizes = sizes.filter_map(|size| {
        size.first_chunk()
            .map(|it| i64::from(u32::from_le_bytes(*it)))
    });
    let stamp = Stamp {
        first_queue_offset,
        first_physical_offset: first_physical_offset.wrapping_add(out.used() as i64),
        store_timestamp_ms,
        store_host,
    };
    made.entries.reserve(count * ENTRY_BYTES);
    let topic = front(piece.rules.topic);
    let mut number = 0;
    let is_right = check(piece.frames, sizes, &piece.rules, |found| {
        if with_room && !found.has_room {
            return None;
        }
        let source = piece.frames.get(found.start..)?.get(..found.size)?;
        let listed = ListedBy::of(piece.frames.get(found.properties())?);
        let offset = stamp.first_physical_offset.wrapping_add(found.start as i64);
        let entry = entry_of(offset, found.size, listed.tags_code()?)?;
        made.entries.extend_from_slice(&entry);
        if let Some((hashes, offsets)) = &mut made.keys {
            let is_known = listed.each_hash(topic.unwrap_or(0), |hash| {
                hashes.extend_from_slice(&hash.to_ne_bytes());
                offsets.extend_from_slice(&offset.to_ne_bytes());
            });
            if is_known.and(topic).is_none() {
                made.keys = None;
            }
        }
        let store_at = found.store_position - found.start;
        stamp.write(out.copy(source)?, number, offset, store_at, found.has_room)?;
        number += 1;
        Some(())
    });
    is_right.then_some(count)
}
