//! Batches: what may be stored, and what the broker writes into it.

#![forbid(unsafe_code)]

use crate::checksum::{crc, tail, write, Tail, PROPERTY_BYTES};
use crate::reading::{be_i32, be_i64, put};
use crate::record::{
    length, parts, AT_BODY_CRC, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP, AT_SYS_FLAG, BORN_HOST_V6, HOST_V6_EXTRA_BYTES, MAGIC_V1, MAGIC_V2,
    RECORD_BYTES_MIN, STORE_HOST_V6,
};
use crate::text::tags_code;

pub const ENTRY_BYTES: usize = 20;

/// What each record has to be; the fields are those of `rockoon_format.batch_rules.BatchRules`.
pub struct Rules<'a> {
    pub topic: &'a [u8],
    pub queue_id: i64,
    pub body_bytes_max: i64,
    pub properties_bytes_max: i64,
    pub record_bytes_max: i64,
    pub sys_flags_allowed: i32,
    pub sources_allowed: bool,
}

/// What is learnt of one record; positions are those in the frames.
pub struct Checked {
    pub start: usize,
    pub size: usize,
    pub tag_code: i64,
    pub store_position: usize,
    pub properties_length: i32,
    pub has_room: bool,
}

/// Check one record; none at any doubt, for the columns to name the reason.
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
        tag_code: tags_code(record.get(found.properties_start..)?)?,
        store_position: start + AT_STORE_TIMESTAMP + found.born_extra,
        properties_length: found.properties_length,
        has_room,
    })
}

/// Check all records of a batch in order; false at any doubt.
///
/// `sizes` say how long each is, `take` is called with each record that is right.
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

/// What only the broker knows of a batch.
pub struct Stamp<'a> {
    pub first_queue_offset: i64,
    pub first_physical_offset: i64,
    pub store_timestamp_ms: i64,
    pub store_host: &'a [u8; 8],
}

/// Copy a batch that was checked, stamp every record, and write its queue entries.
///
/// None if the frames are no batch of so many records, or there is too little room for the copy.
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
        let offset = stamp.first_physical_offset.wrapping_add(start as i64);
        let queue_offset = stamp.first_queue_offset.wrapping_add(number);
        put(record, AT_QUEUE_OFFSET, &queue_offset.to_be_bytes())?;
        put(record, AT_QUEUE_OFFSET + 8, &offset.to_be_bytes())?;
        let is_born_v6 = be_i32(record, AT_SYS_FLAG)? & BORN_HOST_V6 != 0;
        let at = AT_STORE_TIMESTAMP + if is_born_v6 { HOST_V6_EXTRA_BYTES } else { 0 };
        put(record, at, &stamp.store_timestamp_ms.to_be_bytes())?;
        put(record, at + 8, stamp.store_host)?;
        // Last: the checksum covers what was just written.
        if let Tail::Property(_) = tail(record, parts(record)?.properties_length) {
            write(record)?;
        }
        put(entry, 0, &offset.to_be_bytes())?;
        put(entry, 8, &i32::try_from(size).ok()?.to_be_bytes())?;
        put(entry, 12, &code.to_be_bytes())?;
        start += size;
    }
    (start == frames.len()).then_some(())
}

/// One of several batches that are appended together.
pub struct Piece<'a> {
    pub frames: &'a [u8],
    /// Size of each record, packed little-endian u32.
    pub sizes: &'a [u8],
    pub rules: Rules<'a>,
    pub first_queue_offset: i64,
}

const SIZE_BYTES: usize = 4;

/// Check and stamp batches, one behind the other; returns how many records each has, 0 for one that
/// is left out because of any doubt.
///
/// `place` is the first one's physical offset, and store time and host of all.
pub fn append(
    pieces: &[Piece],
    with_room: bool,
    place: (i64, i64, &[u8; 8]),
    out: &mut [u8],
    entries: &mut Vec<u8>,
) -> Vec<usize> {
    let mut used = 0;
    pieces
        .iter()
        .map(|piece| {
            let listed = entries.len();
            match append_one(piece, with_room, place, used, out, entries) {
                Some(count) => {
                    used += piece.frames.len();
                    count
                }
                None => {
                    entries.truncate(listed);
                    0
                }
            }
        })
        .collect()
}

fn append_one(
    piece: &Piece,
    with_room: bool,
    (first_physical_offset, store_timestamp_ms, store_host): (i64, i64, &[u8; 8]),
    used: usize,
    out: &mut [u8],
    entries: &mut Vec<u8>,
) -> Option<usize> {
    let sizes = piece.sizes.chunks_exact(SIZE_BYTES);
    if sizes.len() == 0 || !sizes.remainder().is_empty() {
        return None;
    }
    let mut codes = Vec::with_capacity(sizes.len());
    let sizes = sizes.filter_map(|size| {
        size.first_chunk()
            .map(|it| i64::from(u32::from_le_bytes(*it)))
    });
    let is_right = check(piece.frames, sizes, &piece.rules, |found| {
        codes.push(found.tag_code);
        (found.has_room || !with_room).then_some(())
    });
    if !is_right {
        return None;
    }
    let count = codes.len();
    let listed = entries.len();
    entries.resize(listed + count * ENTRY_BYTES, 0);
    let given = Stamp {
        first_queue_offset: piece.first_queue_offset,
        first_physical_offset: first_physical_offset.wrapping_add(used as i64),
        store_timestamp_ms,
        store_host,
    };
    let copy = out.get_mut(used..)?.get_mut(..piece.frames.len())?;
    stamp(
        piece.frames,
        codes.into_iter(),
        &given,
        copy,
        entries.get_mut(listed..)?,
    )?;
    Some(count)
}
