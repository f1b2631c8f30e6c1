//! Entries of ConsumeQueues, cut for all queues at once; `rockoon_format/queue_runs.py` has the rules.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::batch::ENTRY_BYTES;

const SLOTS: usize = 256;
/// Topic's number, queue, file, first queue offset.
pub type Head = [i64; 4];

/// What of a record its queue's entry says, and where it belongs.
pub struct Listed {
    pub topic: i64,
    pub queue: i64,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub size: i64,
    pub tag_code: i64,
}

#[derive(Default)]
struct Queue {
    entries: Vec<u8>,
    /// File and first queue offset of each run, and where in the entries it begins.
    runs: Vec<(i64, i64, usize)>,
    next_offset: i64,
}

/// Runs of each queue, the queues by topic and number: heads, bounds and entries.
pub fn cut(
    records: impl Iterator<Item = Listed>,
    file_entries: i64,
) -> Option<(Vec<Head>, Vec<i32>, Vec<u8>)> {
    let mut queues: Vec<((i64, i64), Queue)> = Vec::new();
    let mut known: HashMap<(i64, i64), usize> = HashMap::new();
    // Where a queue's number was found lately: mostly that is all that is looked at.
    let mut recent = [usize::MAX; SLOTS];
    for record in records {
        let key = (record.topic, record.queue);
        let slot =
            recent.get_mut((record.topic.wrapping_mul(31) ^ record.queue) as usize % SLOTS)?;
        if queues.get(*slot).map(|it| it.0) != Some(key) {
            let next = queues.len();
            *slot = *known.entry(key).or_insert(next);
            if *slot == next {
                queues.push((key, Queue::default()));
            }
        }
        let queue = &mut queues.get_mut(*slot)?.1;
        let file = record.queue_offset.checked_div_euclid(file_entries)?;
        let goes_on = queue.next_offset == record.queue_offset
            && queue.runs.last().is_some_and(|run| run.0 == file);
        if !goes_on {
            let at = queue.entries.len();
            queue.runs.push((file, record.queue_offset, at));
        }
        queue.next_offset = record.queue_offset.wrapping_add(1);
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&record.physical_offset.to_be_bytes());
        entry[8..12].copy_from_slice(&(record.size as i32).to_be_bytes());
        entry[12..].copy_from_slice(&record.tag_code.to_be_bytes());
        queue.entries.extend_from_slice(&entry);
    }
    queues.sort_by_key(|it| it.0);
    let (mut heads, mut bounds) = (Vec::new(), vec![0i32]);
    let mut content = Vec::with_capacity(queues.iter().map(|it| it.1.entries.len()).sum());
    for ((topic, number), queue) in &queues {
        let start = content.len();
        for (index, (file, first, at)) in queue.runs.iter().enumerate() {
            heads.push([*topic, *number, *file, *first]);
            if index > 0 {
                bounds.push(i32::try_from(start + at).ok()?);
            }
        }
        content.extend_from_slice(&queue.entries);
        bounds.push(i32::try_from(content.len()).ok()?);
    }
    Some((heads, bounds, content))
}
