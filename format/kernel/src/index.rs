//! The key index: keys of records, and their positions in a file; `rockoon_format/index_entries.py`
//! and `index_file.py` have the rules.

#![forbid(unsafe_code)]

use crate::ahead::fetch;
use crate::batch::Out;
use crate::columns::Topics;
use crate::laid::{Growing, Progress};
use crate::reading::be_i64;
use crate::record::{length, AT_STORE_TIMESTAMP};
use crate::scan::{records, ScanEnd};
use crate::text::{front, ListedBy};

const RECORD_BYTES_GUESS: usize = 256;
pub const UNIT_BYTES: usize = 20;
pub const SLOTS_PER_PAGE: usize = 1024;
/// Slots are scattered over 20 MB: a slot is prefetched this many keys before its use.
const KEYS_AHEAD: usize = 24;
const SECONDS_MAX: i64 = i32::MAX as i64;
pub const TRANSACTION: i32 = 0xC;

/// Keys in the order of insertion; native int64 items for NumPy.
pub struct Keys {
    pub hashes: Growing,
    /// Physical offset of each key's record.
    pub offsets: Growing,
    pub timestamps_ms: Growing,
}

/// The keys of the records in some bytes, whose first physical offset is `base`; none if the bytes
/// are not whole records, or a text is not UTF-8.
pub fn keys(bytes: &[u8], base: i64) -> Option<Keys> {
    let column = || Growing::new(bytes.len() / RECORD_BYTES_GUESS * 2 * 8);
    let mut found = Keys {
        hashes: column(),
        offsets: column(),
        timestamps_ms: column(),
    };
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
            // Rolled-back records have no keys.
            if parts.sys_flag & TRANSACTION == TRANSACTION {
                return Some(());
            }
            let stored_ms = be_i64(record, AT_STORE_TIMESTAMP + parts.born_extra)?;
            let front = *fronts.get(number)?;
            let listed = ListedBy::of(record.get(parts.properties_start..)?);
            let (count, done) = (bytes.len(), at);
            let (offset, progress) = (base.wrapping_add(at as i64), Progress { done, count });
            let mut is_full = false;
            listed.each_hash(front, |hash| {
                let added = found
                    .hashes
                    .put(hash.to_ne_bytes(), progress)
                    .and_then(|()| {
                        found.offsets.put(offset.to_ne_bytes(), progress)?;
                        found.timestamps_ms.put(stored_ms.to_ne_bytes(), progress)
                    });
                is_full |= added.is_none();
            })?;
            (!is_full).then_some(())
        },
    )?;
    matches!(why, ScanEnd::End).then_some(found)
}

/// The slots of an index file.
pub struct Slots {
    /// The newest unit of each slot.
    units: Vec<i32>,
    /// Pages of slots that differ from the file.
    changed: Vec<bool>,
}

/// Base of the units' seconds.
pub struct Seconds {
    pub first: i64,
    /// Epoch milliseconds; zero or less: the seconds are 0.
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

/// The hash in a unit, and its slot; none if it is not an index hash.
fn slot_of(hash: i64, count: u32) -> Option<(u32, usize)> {
    let hash = u32::try_from(i32::try_from(hash).ok()?).ok()?;
    Some((hash, hash.checked_rem(count)? as usize))
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

    /// Add a unit for each key; returns how many slots had none.
    ///
    /// None if a hash is not an index hash, or the file has too few units; some keys may have been
    /// added then.
    pub fn link(
        &mut self,
        first_unit: i32,
        seconds: &Seconds,
        keys: impl Iterator<Item = (i64, i64, i64)> + Clone,
        units: &mut impl Out,
    ) -> Option<i64> {
        let count = u32::try_from(self.units.len()).ok()?;
        let (mut number, mut used, mut first) = (first_unit, 0, Some(seconds.first));
        let mut next = keys.clone().map(|it| it.0).skip(KEYS_AHEAD);
        for (hash, offset, stored_ms) in keys {
            let soon = next.next().and_then(|hash| slot_of(hash, count));
            fetch(soon.and_then(|(_, slot)| self.units.get(slot)));
            let (hash, slot) = slot_of(hash, count)?;
            let newest = self.units.get_mut(slot)?;
            // Not `&&`: a mispredicted branch costs more than the second comparison.
            let is_known = (0 < *newest) & (*newest <= number);
            let previous = *newest * i32::from(is_known);
            used += i64::from(!is_known);
            *newest = number;
            *self.changed.get_mut(slot / SLOTS_PER_PAGE)? = true;
            let seconds = first.take().unwrap_or_else(|| seconds.at(stored_ms));
            let mut made = [0; UNIT_BYTES];
            made[..4].copy_from_slice(&hash.to_be_bytes());
            made[4..12].copy_from_slice(&offset.to_be_bytes());
            made[12..16].copy_from_slice(&(seconds as i32).to_be_bytes());
            made[16..].copy_from_slice(&previous.to_be_bytes());
            units.copy(&made)?;
            number = number.checked_add(1)?;
        }
        Some(used)
    }

    pub fn newest(&self, slot: usize) -> Option<i32> {
        self.units.get(slot).copied()
    }

    /// Slots in the form of a file; slots outside are zeros.
    pub fn stored(&self, first: usize, out: &mut [u8]) {
        let units = self.units.get(first..).unwrap_or_default();
        for (out, unit) in out.chunks_exact_mut(4).zip(units) {
            out.copy_from_slice(&unit.to_be_bytes());
        }
    }

    /// Replace slots by those of a file.
    pub fn load(&mut self, first: usize, stored: &[u8]) {
        let units = self.units.get_mut(first..).unwrap_or_default();
        for (unit, stored) in units.iter_mut().zip(stored.chunks_exact(4)) {
            *unit = stored.first_chunk().map_or(0, |it| i32::from_be_bytes(*it));
        }
    }

    /// Mark the pages whose slots differ from a file's.
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

    /// A byte for each page, 1 if the page is marked.
    pub fn marks(&self) -> Vec<u8> {
        self.changed.iter().map(|page| u8::from(*page)).collect()
    }

    pub fn unmark(&mut self) {
        self.changed.fill(false);
    }
}
