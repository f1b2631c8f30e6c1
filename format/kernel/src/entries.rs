//! A queue's entries and their records; `rockoon_broker.store.queues.consume_queue` has the rules.

#![forbid(unsafe_code)]

use crate::batch::ENTRY_BYTES;
use crate::columns::sound;
use crate::reading::{be_i32, be_i64};
use crate::record::{AT_QUEUE_ID, AT_QUEUE_OFFSET, RECORD_BYTES_MIN};

const FILLER_SIZE: i32 = i32::MAX;

/// Valid positions of records: between two physical offsets, and within one log file.
pub struct Log {
    pub min: i64,
    pub end: i64,
    pub file_bytes: i64,
}

/// Start and end as physical offsets.
pub type Run = (i64, i64);

/// Sizes, native int64, of the records of leading entries, limited in number and bytes (at least
/// one), and start and end of each run of adjacent records.
///
/// None if a used entry is not valid, or its record was deleted.
pub fn records_to_read(
    entries: &[u8],
    log: &Log,
    messages_max: usize,
    bytes_max: i64,
) -> Option<(Vec<u8>, Vec<Run>)> {
    let count = (entries.len() / ENTRY_BYTES).min(messages_max);
    let mut sizes = Vec::with_capacity(count * 8);
    let mut runs: Vec<Run> = Vec::new();
    let mut total = 0;
    for entry in entries.chunks_exact(ENTRY_BYTES).take(count) {
        let (start, size) = (be_i64(entry, 0)?, be_i32(entry, 8)?);
        let size = i64::from(Some(size).filter(|it| *it != FILLER_SIZE)?);
        let is_early = runs.last().is_some_and(|run| start < run.1);
        if size < RECORD_BYTES_MIN as i64 || start < log.min || is_early {
            return None;
        }
        let end = start.checked_add(size).filter(|end| *end <= log.end)?;
        if start.checked_rem(log.file_bytes)? + size > log.file_bytes {
            return None;
        }
        total += size;
        if total > bytes_max && !sizes.is_empty() {
            break;
        }
        sizes.extend_from_slice(&size.to_ne_bytes());
        match runs.last_mut().filter(|run| run.1 == start) {
            Some(run) => run.1 = end,
            None => runs.push((start, end)),
        }
    }
    Some((sizes, runs))
}

/// Number of leading records that are whole and have the given sizes and queue offsets.
///
/// Without a topic, only whether they are whole and their offsets are checked.
pub fn matching(
    data: &[u8],
    places: impl Iterator<Item = (i64, i64)>,
    topic: &[u8],
    queue_id: i64,
) -> usize {
    let (mut count, mut rest) = (0, data);
    for (size, queue_offset) in places {
        let Some((record, behind)) = usize::try_from(size)
            .ok()
            .and_then(|size| rest.split_at_checked(size))
        else {
            break;
        };
        if !is_at(record, topic, queue_id, queue_offset, count == 0) {
            break;
        }
        (count, rest) = (count + 1, behind);
    }
    count
}

/// Whether a record is whole and has a queue offset; the first record's topic is compared too.
fn is_at(record: &[u8], topic: &[u8], queue_id: i64, queue_offset: i64, is_first: bool) -> bool {
    let Some(parts) = sound(record) else {
        return false;
    };
    if topic.is_empty() {
        return true;
    }
    let own = || record.get(parts.topic_start..)?.get(..topic.len());
    be_i32(record, AT_QUEUE_ID).map(i64::from) == Some(queue_id)
        && be_i64(record, AT_QUEUE_OFFSET) == Some(queue_offset)
        && (!is_first || parts.topic_length as usize == topic.len() && own() == Some(topic))
}
