//! The index by key: keys of records, and their places in a file; `rockoon_format/index_entries.py`
//! and `index_file.py` have the rules.

#![forbid(unsafe_code)]

use crate::columns::Topics;
use crate::reading::be_i64;
use crate::record::{length, AT_STORE_TIMESTAMP};
use crate::scan::{records, ScanEnd};
use crate::text::{front, ListedBy};

pub const UNIT_BYTES: usize = 20;
pub const SLOTS_PER_PAGE: usize = 1024;
const SECONDS_MAX: i64 = i32::MAX as i64;
pub const TRANSACTION: i32 = 0xC;

/// Keys in the order in which they are put, and what was last among the records.
#[derive(Default)]
pub struct Keys {
    pub hashes: Vec<i64>,
    /// Where each key's record starts.
    pub positions: Vec<i64>,
    pub timestamps_ms: Vec<i64>,
}

/// The keys of records that fill some bytes; none where they do not, or a text is not UTF-8.
pub fn keys(bytes: &[u8]) -> Option<Keys> {
    let mut found = Keys::default();
    let mut topics = Topics::default();
    let mut fronts: Vec<i32> = Vec::new();
    let (why, _) = records(
        bytes,
        None,
        bytes.len(),
        bytes.len(),
        |at, record, parts| {
            let topic = record
                .get(parts.topic_start..)?
                .get(..length(parts.topic_length))?;
            let number = topics.number(topic) as usize;
            if number == fronts.len() {
                fronts.push(front(topic)?);
            }
            // One that was rolled back has none.
            if parts.sys_flag & TRANSACTION == TRANSACTION {
                return Some(());
            }
            let stored_ms = be_i64(record, AT_STORE_TIMESTAMP + parts.born_extra)?;
            let front = *fronts.get(number)?;
            let listed = ListedBy::of(record.get(parts.properties_start..)?);
            listed.each_hash(front, |hash| {
                found.hashes.push(hash);
                found.positions.push(at as i64);
                found.timestamps_ms.push(stored_ms);
            })
        },
    )?;
    matches!(why, ScanEnd::End).then_some(found)
}

/// The slots of an index file.
pub struct Slots {
    /// The newest unit of each.
    units: Vec<i32>,
    /// Which pages of them are not on disk as they are here.
    changed: Vec<bool>,
}

/// What keys become of, beside their hashes: from where their seconds count.
pub struct Seconds {
    pub first: i64,
    /// Epoch milliseconds; 0 and less: there are none.
    pub begin_ms: i64,
}

impl Seconds {
    fn at(&self, stored_ms: i64) -> i64 {
        if self.begin_ms <= 0 {
            return 0;
        }
        let since = stored_ms.wrapping_sub(self.begin_ms).div_euclid(1000);
        since.clamp(0, SECONDS_MAX)
    }
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Slots {
            units: vec![0; count],
            changed: vec![false; count.div_ceil(SLOTS_PER_PAGE)],
        }
    }

    pub fn count(&self) -> usize {
        self.units.len()
    }

    /// Give keys their places: writes a unit of each, and returns how many slots had none.
    ///
    /// None where a hash is no index hash, or numbers go beyond what a file has: some are put then.
    pub fn link(
        &mut self,
        first_unit: i32,
        seconds: &Seconds,
        keys: impl Iterator<Item = (i64, i64, i64)>,
        units: &mut [u8],
    ) -> Option<i64> {
        let count = u32::try_from(self.units.len()).ok()?;
        let (mut number, mut used, mut first) = (first_unit, 0, Some(seconds.first));
        for ((hash, offset, stored_ms), unit) in keys.zip(units.chunks_exact_mut(UNIT_BYTES)) {
            let hash = u32::try_from(i32::try_from(hash).ok()?).ok()?;
            let slot = hash.checked_rem(count)? as usize;
            let newest = self.units.get_mut(slot)?;
            let is_known = 0 < *newest && *newest <= number;
            let previous = if is_known { *newest } else { 0 };
            used += i64::from(!is_known);
            *newest = number;
            *self.changed.get_mut(slot / SLOTS_PER_PAGE)? = true;
            let seconds = first.take().unwrap_or_else(|| seconds.at(stored_ms));
            let mut made = [0; UNIT_BYTES];
            made[..4].copy_from_slice(&hash.to_be_bytes());
            made[4..12].copy_from_slice(&offset.to_be_bytes());
            made[12..16].copy_from_slice(&(seconds as i32).to_be_bytes());
            made[16..].copy_from_slice(&previous.to_be_bytes());
            unit.copy_from_slice(&made);
            number = number.checked_add(1)?;
        }
        Some(used)
    }

    pub fn newest(&self, slot: usize) -> Option<i32> {
        self.units.get(slot).copied()
    }

    /// Some slots as a file has them; those outside are zeros.
    pub fn stored(&self, first: usize, out: &mut [u8]) {
        let units = self.units.get(first..).unwrap_or_default();
        for (out, unit) in out.chunks_exact_mut(4).zip(units) {
            out.copy_from_slice(&unit.to_be_bytes());
        }
    }

    /// Take slots over as a file has them.
    pub fn load(&mut self, first: usize, stored: &[u8]) {
        let units = self.units.get_mut(first..).unwrap_or_default();
        for (unit, stored) in units.iter_mut().zip(stored.chunks_exact(4)) {
            *unit = stored.first_chunk().map_or(0, |it| i32::from_be_bytes(*it));
        }
    }

    /// Mark the pages of slots that a file has otherwise.
    pub fn compare(&mut self, first: usize, stored: &[u8]) {
        let units = self.units.get(first..).unwrap_or_default();
        for (number, (unit, stored)) in units.iter().zip(stored.chunks_exact(4)).enumerate() {
            if unit.to_be_bytes() != stored {
                if let Some(page) = self.changed.get_mut((first + number) / SLOTS_PER_PAGE) {
                    *page = true;
                }
            }
        }
    }

    /// Mark the pages of slots that have units.
    pub fn mark_used(&mut self) {
        let pages = self.units.chunks(SLOTS_PER_PAGE);
        for (page, units) in self.changed.iter_mut().zip(pages) {
            *page |= units.iter().any(|unit| *unit != 0);
        }
    }

    /// A byte for each page, 1 if it is marked.
    pub fn marks(&self) -> Vec<u8> {
        self.changed.iter().map(|page| u8::from(*page)).collect()
    }

    pub fn unmark(&mut self) {
        self.changed.fill(false);
    }
}
