//! Entries of ConsumeQueues, cut for all queues together; `rockoon_format/consume_queue.py` has the
//! rules.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use crate::batch::ENTRY_BYTES;
use crate::columns::Topics;
use crate::reading::{be_i32, be_i64};
use crate::record::{length, AT_QUEUE_ID, AT_QUEUE_OFFSET};
use crate::scan::{records, ScanEnd};
use crate::text::tags_code;

const SLOTS: usize = 256;
/// Topic number, queue id, file number, first queue offset.
pub type Head = [i64; 4];

/// The fields of a record for its queue entry.
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
    runs: Vec<Run>,
    next_offset: i64,
}

struct Run {
    file: i64,
    first: i64,
    /// Start of the run in the entries.
    at: usize,
    /// Queue offset after the last entry of the file.
    end: i64,
}

/// Runs of each queue, the queues by topic and number: heads, bounds and entries.
pub type Runs = (Vec<Head>, Vec<i32>, Vec<u8>);

/// Cuts entries in the order of the log.
struct Cutter {
    file_entries: i64,
    queues: Vec<((i64, i64), Queue)>,
    known: HashMap<(i64, i64), usize>,
    /// Recent positions of queues; most queues are found here.
    recent: [usize; SLOTS],
}

impl Cutter {
    fn new(file_entries: i64) -> Self {
        Cutter {
            file_entries,
            queues: Vec::new(),
            known: HashMap::new(),
            recent: [usize::MAX; SLOTS],
        }
    }

    /// The lengths of each queue's data, for `go_back`.
    fn sizes(&self) -> Vec<(usize, usize, i64)> {
        let queues = self.queues.iter().map(|it| &it.1);
        queues
            .map(|it| (it.entries.len(), it.runs.len(), it.next_offset))
            .collect()
    }

    /// Truncate to earlier `sizes`.
    fn go_back(&mut self, sizes: &[(usize, usize, i64)]) {
        self.queues.truncate(sizes.len());
        self.known.retain(|_, number| *number < sizes.len());
        for ((_, queue), (entries, runs, next_offset)) in self.queues.iter_mut().zip(sizes) {
            queue.entries.truncate(*entries);
            queue.runs.truncate(*runs);
            queue.next_offset = *next_offset;
        }
    }

    fn add(&mut self, record: &Listed) -> Option<()> {
        let key = (record.topic, record.queue);
        let slot = self
            .recent
            .get_mut((record.topic.wrapping_mul(31) ^ record.queue) as usize % SLOTS)?;
        if self.queues.get(*slot).map(|it| it.0) != Some(key) {
            let next = self.queues.len();
            *slot = *self.known.entry(key).or_insert(next);
            if *slot == next {
                self.queues.push((key, Queue::default()));
            }
        }
        let queue = &mut self.queues.get_mut(*slot)?.1;
        // One division per run, not per entry.
        let goes_on = queue.next_offset == record.queue_offset
            && queue
                .runs
                .last()
                .is_some_and(|run| record.queue_offset < run.end);
        if !goes_on {
            let file = record.queue_offset.checked_div_euclid(self.file_entries)?;
            queue.runs.push(Run {
                file,
                first: record.queue_offset,
                at: queue.entries.len(),
                end: file.saturating_add(1).saturating_mul(self.file_entries),
            });
        }
        queue.next_offset = record.queue_offset.wrapping_add(1);
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&record.physical_offset.to_be_bytes());
        entry[8..12].copy_from_slice(&(record.size as i32).to_be_bytes());
        entry[12..].copy_from_slice(&record.tag_code.to_be_bytes());
        queue.entries.extend_from_slice(&entry);
        Some(())
    }

    fn done(mut self) -> Option<Runs> {
        self.queues.sort_by_key(|it| it.0);
        let (mut heads, mut bounds) = (Vec::new(), vec![0i32]);
        let total = self.queues.iter().map(|it| it.1.entries.len()).sum();
        let mut content = Vec::with_capacity(total);
        for ((topic, number), queue) in &self.queues {
            let start = content.len();
            for (index, run) in queue.runs.iter().enumerate() {
                heads.push([*topic, *number, run.file, run.first]);
                if index > 0 {
                    bounds.push(i32::try_from(start + run.at).ok()?);
                }
            }
            content.extend_from_slice(&queue.entries);
            bounds.push(i32::try_from(content.len()).ok()?);
        }
        Some((heads, bounds, content))
    }
}

/// Entries of records with known fields.
pub fn cut(listed: impl Iterator<Item = Listed>, file_entries: i64) -> Option<Runs> {
    let mut cutter = Cutter::new(file_entries);
    for record in listed {
        cutter.add(&record)?;
    }
    cutter.done()
}

/// Entries of records of one chunk of a log after another, cut together.
pub struct LogCutter {
    cutter: Cutter,
    topics: Vec<Vec<u8>>,
    /// Index of each topic in `topics`.
    numbers: HashMap<Vec<u8>, usize>,
    rules: Rules,
}

/// Which records have entries.
pub struct Rules {
    /// By topic, the physical offset below which its records have no entries.
    pub marks: HashMap<Vec<u8>, i64>,
    /// Topics that this code does not support.
    pub others: HashSet<Vec<u8>>,
    /// System flags of records without an entry.
    pub unlisted: i32,
    pub file_entries: i64,
}

impl LogCutter {
    pub fn new(rules: Rules) -> Self {
        LogCutter {
            cutter: Cutter::new(rules.file_entries),
            topics: Vec::new(),
            numbers: HashMap::new(),
            rules,
        }
    }

    /// Add the records in some bytes, whose first physical offset is `base`.
    ///
    /// Adds nothing if the bytes are not whole records in their position, if a topic is one of
    /// `others`, or if a text is not UTF-8.
    pub fn add(&mut self, bytes: &[u8], base: i64) -> bool {
        let (sizes, topics) = (self.cutter.sizes(), self.topics.len());
        let is_added = self.add_records(bytes, base).is_some();
        if !is_added {
            self.cutter.go_back(&sizes);
            self.topics.truncate(topics);
            self.numbers.retain(|_, number| *number < topics);
        }
        is_added
    }

    fn add_records(&mut self, bytes: &[u8], base: i64) -> Option<()> {
        let mut named = Topics::default();
        // For each topic in these bytes: its number in `topics`, and its mark.
        let mut told: Vec<(i64, i64)> = Vec::new();
        let (why, _) = records(
            bytes,
            None,
            bytes.len(),
            bytes.len(),
            |at, record, parts| {
                let topic = record
                    .get(parts.topic_start..)?
                    .get(..length(parts.topic_length))?;
                let number = named.number(topic) as usize;
                if number == told.len() {
                    told.push(self.told_of(topic)?);
                }
                let (topic, mark) = *told.get(number)?;
                let tag_code = tags_code(record.get(parts.properties_start..)?)?;
                let physical_offset = base.checked_add(at as i64)?;
                if parts.sys_flag & self.rules.unlisted != 0 || physical_offset < mark {
                    return Some(());
                }
                self.cutter.add(&Listed {
                    topic,
                    queue: i64::from(be_i32(record, AT_QUEUE_ID)?),
                    queue_offset: be_i64(record, AT_QUEUE_OFFSET)?,
                    physical_offset,
                    size: record.len() as i64,
                    tag_code,
                })
            },
        )?;
        matches!(why, ScanEnd::End).then_some(())
    }

    fn told_of(&mut self, topic: &[u8]) -> Option<(i64, i64)> {
        std::str::from_utf8(topic).ok()?;
        if self.rules.others.contains(topic) {
            return None;
        }
        let mark = self.rules.marks.get(topic).copied().unwrap_or(0);
        let number = match self.numbers.get(topic) {
            Some(known) => *known,
            None => {
                self.numbers.insert(topic.to_vec(), self.topics.len());
                self.topics.push(topic.to_vec());
                self.topics.len() - 1
            }
        };
        Some((number as i64, mark))
    }

    /// Remove and return topics and runs of all added records.
    pub fn taken(&mut self) -> Option<(Vec<Vec<u8>>, Runs)> {
        let cutter = std::mem::replace(&mut self.cutter, Cutter::new(self.rules.file_entries));
        self.numbers.clear();
        Some((std::mem::take(&mut self.topics), cutter.done()?))
    }
}
