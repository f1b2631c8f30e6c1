//! Parts of records for Arrow: properties by name, and pairs.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{tail, Tail};
use crate::laid::{Growing, Pieces, Progress, WIDE};
use crate::reading::{chunk, put};
use crate::text::{property_end, NAME_END, PROPERTY_END};

/// For more pairs in a record, a hash table of names is faster than pairwise comparisons.
const PAIRS_COMPARED_MAX: usize = 24;
/// Number of topics whose property names are remembered.
const KINDS: usize = 64;
const WORD: usize = 16;
/// Longer sections are read name by name.
const LAYOUT_BYTES_MAX: usize = 256;
/// Initial size of a column; it is estimated again when a part of it is filled.
const FIRST_BYTES: usize = 4096;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// A range of bytes within 4 GiB.
#[derive(Clone, Copy, Default)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    /// None if its end is beyond 4 GiB.
    pub fn new(start: usize, length: usize) -> Option<Span> {
        u32::try_from(start.checked_add(length)?).ok()?;
        Some(Span {
            start: start as u32,
            length: length as u32,
        })
    }

    pub fn len(self) -> usize {
        self.length as usize
    }

    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    pub fn start(self) -> usize {
        self.start as usize
    }

    pub fn end(self) -> usize {
        self.start() + self.len()
    }

    /// None if the range is not within the bytes.
    pub fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(self.start()..self.end())
    }
}

/// The first sixteen bytes of a name with its separator, and a mask of the used bytes.
struct Head {
    words: [u64; 2],
    masks: [u64; 2],
    /// The rest of the name.
    rest: Vec<u8>,
    /// Length of the name.
    length: usize,
}

/// Property names of one producer's records, in order; the next record is expected to have the same
/// names.
#[derive(Default)]
struct Kind {
    heads: Vec<Head>,
    /// Number of each name among the requested names.
    asked: Vec<Option<usize>>,
    /// All names back to back, with space for a wide copy at the end, and the end of each name.
    joined: Vec<u8>,
    ends: Vec<i32>,
    /// Values of the section that was read last.
    values: Vec<Span>,
    layout: Layout,
    misses: u32,
    layout_misses: u32,
}

/// Layout of a section. If another section has the same bytes around its values, and no separator
/// inside them, its values have the same positions. This is checked for sixteen bytes per step,
/// instead of for one position after the other.
#[derive(Default)]
struct Layout {
    /// Length of the learned section, if there is one.
    length: Option<usize>,
    blocks: Vec<Block>,
    /// Relative to the section's start.
    values: Vec<Span>,
}

#[derive(Clone, Copy)]
struct Block {
    bytes: [u8; WORD],
    /// Mask of the bytes that must be equal.
    same: [u8; WORD],
    /// Mask of the bytes of values.
    inner: [u8; WORD],
}

impl Layout {
    /// Learn the layout of a section whose values are known.
    fn learn(&mut self, bytes: &[u8], section: Span, values: &[Span]) -> Option<()> {
        self.length = None;
        self.blocks.clear();
        self.values.clear();
        if section.len() > LAYOUT_BYTES_MAX {
            return None;
        }
        let section_bytes = section.of(bytes)?;
        let mut inner = [0; LAYOUT_BYTES_MAX];
        for value in values {
            let from = value.start().checked_sub(section.start())?;
            let own = inner.get_mut(from..from + value.len())?;
            own.fill(u8::MAX);
            self.values.push(Span::new(from, value.len())?);
        }
        for (bytes, inner) in section_bytes.chunks(WORD).zip(inner.chunks(WORD)) {
            let mut block = Block {
                bytes: [0; WORD],
                same: [0; WORD],
                inner: [0; WORD],
            };
            put(&mut block.bytes, 0, bytes)?;
            let outer = block.same.iter_mut().zip(inner).take(bytes.len());
            outer.for_each(|(same, inner)| *same = !inner);
            put(&mut block.inner, 0, inner)?;
            self.blocks.push(block);
        }
        self.length = Some(section.len());
        Some(())
    }

    /// Find the values of a section; returns whether it has this layout.
    #[inline]
    fn read(&self, bytes: &[u8], section: Span, values: &mut [Span]) -> bool {
        if self.length != Some(section.len()) {
            return false;
        }
        let mut differs = [0; WORD];
        let mut at = section.start();
        for block in &self.blocks {
            let Some(found) = chunk::<WORD>(bytes, at) else {
                return false;
            };
            let expected = block.bytes.iter().zip(block.same.iter().zip(&block.inner));
            let both = found.iter().zip(expected);
            for (differs, (found, (bytes, (same, inner)))) in differs.iter_mut().zip(both) {
                let is_end = if *found == PROPERTY_END { u8::MAX } else { 0 };
                *differs |= (found ^ bytes) & same | is_end & inner;
            }
            at += WORD;
        }
        if differs != [0; WORD] {
            return false;
        }
        for (value, own) in values.iter_mut().zip(&self.values) {
            *value = Span {
                start: own.start + section.start,
                length: own.length,
            };
        }
        true
    }
}

impl Kind {
    /// None if the bytes are not pairs.
    fn learn(&mut self, bytes: &[u8], names: &[Span], asked: &[Vec<u8>]) -> Option<()> {
        self.heads.clear();
        self.joined.clear();
        self.ends.clear();
        for name in names {
            let mut word = [0; WORD];
            let mut mask = [0; WORD];
            let head = bytes.get(name.start()..name.end() + 1)?;
            for ((word, mask), byte) in word.iter_mut().zip(&mut mask).zip(head) {
                (*word, *mask) = (*byte, u8::MAX);
            }
            let halves = |bytes: &[u8; WORD]| {
                [chunk(bytes, 0), chunk(bytes, WORD / 2)]
                    .map(|half| half.map_or(0, u64::from_le_bytes))
            };
            self.heads.push(Head {
                words: halves(&word),
                masks: halves(&mask),
                rest: head.get(WORD..).unwrap_or_default().to_vec(),
                length: name.len(),
            });
            self.joined.extend(name.of(bytes)?);
            self.ends.push(i32::try_from(self.joined.len()).ok()?);
        }
        self.joined.extend([0; 4 * WIDE]);
        self.values = vec![Span::default(); names.len()];
        self.layout = Layout::default();
        self.layout_misses = 0;
        let own = |name: &Vec<u8>| names.iter().position(|it| it.of(bytes) == Some(name));
        self.asked = asked.iter().map(own).collect();
        Some(())
    }

    /// Find the values of a section with exactly these names; returns whether it has them. If not,
    /// some values may have been set.
    #[inline]
    fn read(&mut self, bytes: &[u8], section: Span) -> bool {
        if self.layout.read(bytes, section, &mut self.values) {
            return true;
        }
        if !self.read_names(bytes, section) {
            return false;
        }
        self.layout_misses += 1;
        // If lengths differ from record to record, learning each layout is a waste of time.
        if self.layout_misses.is_power_of_two() {
            self.layout.learn(bytes, section, &self.values);
        }
        true
    }

    fn read_names(&mut self, bytes: &[u8], section: Span) -> bool {
        let (mut at, end) = (section.start(), section.end());
        for (head, found) in self.heads.iter().zip(&mut self.values) {
            let (Some(first), Some(second)) = (chunk(bytes, at), chunk(bytes, at + WORD / 2))
            else {
                return false;
            };
            let value = at + head.length + 1;
            let differs = (u64::from_le_bytes(first) & head.masks[0]) ^ head.words[0];
            let differs = differs | (u64::from_le_bytes(second) & head.masks[1]) ^ head.words[1];
            let is_here = differs == 0
                && (head.rest.is_empty() || bytes.get(at + WORD..value) == Some(&head.rest));
            if !is_here || value >= end {
                return false;
            }
            let behind = property_end(bytes, value, end);
            let Some(span) = Span::new(value, behind - value).filter(|it| !it.is_empty()) else {
                return false;
            };
            *found = span;
            at = behind + 1;
        }
        at >= end
    }

    fn names(&self) -> Option<Span> {
        Span::new(0, self.ends.last().map_or(0, |it| *it as usize))
    }
}

/// For each name, whether it does not occur again; none if that holds for all names.
fn last_ones(own: &[&[u8]]) -> Option<Vec<bool>> {
    if own.len() > PAIRS_COMPARED_MAX {
        let last: HashMap<&[u8], usize> = own.iter().copied().zip(0..).collect();
        let numbered = own.iter().zip(0..);
        let kept = numbered.map(|(name, number)| last.get(name) == Some(&number));
        return Some(kept.collect());
    }
    let is_last = |(number, name): (usize, &&[u8])| {
        let mut later = own.iter().skip(number + 1);
        !later.any(|other| other == name)
    };
    if own.iter().enumerate().all(is_last) {
        return None;
    }
    Some(own.iter().enumerate().map(is_last).collect())
}

/// Remove pairs whose name occurs again.
pub fn keep_last<'a>(names: &mut Vec<&'a [u8]>, values: &mut Vec<&'a [u8]>) {
    let Some(kept) = last_ones(names) else {
        return;
    };
    for list in [names, values] {
        let mut keep = kept.iter();
        list.retain(|_| keep.next() == Some(&true));
    }
}

#[derive(Default)]
struct Pairs {
    names: Vec<Span>,
    values: Vec<Span>,
}

impl Pairs {
    fn push(&mut self, name: usize, value: usize, end: usize) -> Option<()> {
        self.names.push(Span::new(name, value - 1 - name)?);
        self.values.push(Span::new(value, end - value)?);
        Some(())
    }

    /// Read the pairs of any section.
    fn read(&mut self, bytes: &[u8], section: Span) -> Option<()> {
        self.names.clear();
        self.values.clear();
        let mut at = section.start();
        while at < section.end() {
            let end = property_end(bytes, at, section.end());
            let middle = bytes.get(at..end)?.iter().position(|it| *it == NAME_END);
            if let Some(value) = middle.map(|middle| at + middle + 1) {
                if value > at + 1 && value < end {
                    self.push(at, value, end)?;
                }
            }
            at = end + 1;
        }
        self.keep_last(bytes)
    }

    /// Remove pairs whose name occurs again.
    fn keep_last(&mut self, bytes: &[u8]) -> Option<()> {
        let own: Vec<&[u8]> = self.names.iter().filter_map(|it| it.of(bytes)).collect();
        let Some(kept) = last_ones(&own) else {
            return Some(());
        };
        for list in [&mut self.names, &mut self.values] {
            let mut keep = kept.iter();
            list.retain(|_| keep.next() == Some(&true));
        }
        Some(())
    }
}

/// All pairs of records.
pub struct Maps {
    /// Number of pairs before each record, int32.
    pub rows: Growing,
    pub names: Pieces,
    pub values: Pieces,
}

impl Maps {
    /// Finish a record.
    fn end_row(&mut self, progress: Progress) -> Option<()> {
        let pairs = i32::try_from(self.values.count()).ok()?;
        self.rows.put(pairs.to_ne_bytes(), progress)
    }
}

/// Properties of records: the last non-empty value of each requested name, and optionally all
/// pairs.
///
/// Pairs with an empty name or value are ignored; of equal names the last one is used. Records of a
/// topic mostly have the same names in the same order; then the names are only compared.
pub struct Properties<'a> {
    names: &'a [Vec<u8>],
    kinds: Vec<Kind>,
    pairs: Pairs,
    /// The values of each requested name, empty if a record has none.
    pub asked: Vec<Pieces>,
    pub maps: Option<Maps>,
}

impl<'a> Properties<'a> {
    /// For `count` records and the values of `names`.
    pub fn new(count: usize, names: &'a [Vec<u8>], with_maps: bool) -> Option<Self> {
        let unknown = || Kind {
            asked: vec![None; names.len()],
            ..Kind::default()
        };
        let pieces = |_| Pieces::new(count, FIRST_BYTES);
        let maps = || {
            let mut rows = Growing::new(4 * (count + 1));
            rows.put([0; 4], Progress { done: 0, count })?;
            Some(Maps {
                rows,
                names: Pieces::new(count, FIRST_BYTES)?,
                values: Pieces::new(count, FIRST_BYTES)?,
            })
        };
        Some(Properties {
            names,
            kinds: (0..KINDS).map(|_| unknown()).collect(),
            pairs: Pairs::default(),
            asked: names.iter().map(pieces).collect::<Option<_>>()?,
            maps: if with_maps { Some(maps()?) } else { None },
        })
    }

    /// Add the properties of the next record, with the number of its topic. None if Arrow's bounds
    /// cannot hold them.
    #[inline]
    pub fn add(
        &mut self,
        bytes: &[u8],
        section: Span,
        topic: usize,
        progress: Progress,
    ) -> Option<()> {
        let kind = self.kinds.get_mut(topic % KINDS)?;
        if !kind.read(bytes, section) {
            return self.add_other(bytes, section, topic, progress);
        }
        for (column, place) in self.asked.iter_mut().zip(&kind.asked) {
            let value = place.and_then(|place| kind.values.get(place));
            column.push(bytes, value.copied().unwrap_or_default(), progress)?;
        }
        if let Some(maps) = &mut self.maps {
            maps.names
                .push_joined(&kind.joined, kind.names()?, &kind.ends, progress)?;
            for value in &kind.values {
                maps.values.push(bytes, *value, progress)?;
            }
            maps.end_row(progress)?;
        }
        Some(())
    }

    /// `add` of a record with other names than expected.
    #[cold]
    fn add_other(
        &mut self,
        bytes: &[u8],
        section: Span,
        topic: usize,
        progress: Progress,
    ) -> Option<()> {
        self.pairs.read(bytes, section)?;
        let (names, values) = (&self.pairs.names, &self.pairs.values);
        let kind = self.kinds.get_mut(topic % KINDS)?;
        kind.misses += 1;
        // If each record has other names, learning all of them is a waste of time.
        if kind.misses.is_power_of_two() {
            kind.learn(bytes, names, self.names)?;
        }
        for (column, name) in self.asked.iter_mut().zip(self.names) {
            let place = names.iter().position(|it| it.of(bytes) == Some(name));
            let value = place.and_then(|place| values.get(place));
            column.push(bytes, value.copied().unwrap_or_default(), progress)?;
        }
        if let Some(maps) = &mut self.maps {
            for (name, value) in names.iter().zip(values) {
                maps.names.push(bytes, *name, progress)?;
                maps.values.push(bytes, *value, progress)?;
            }
            maps.end_row(progress)?;
        }
        Some(())
    }
}

/// State of a record's end: 1 with space for a checksum, written or not; 2 with a damaged checksum;
/// 0 otherwise.
pub fn room(bytes: &[u8], end: i64, properties_length: i64) -> Option<u8> {
    let record = bytes.get(..usize::try_from(end).ok()?)?;
    let length = i32::try_from(properties_length).ok()?;
    Some(match tail(record, length) {
        Tail::Property(_) => 1,
        Tail::Mangled => 2,
        Tail::Other => 0,
    })
}

/// The offset id of a record with an IPv4 store host, in hexadecimal: host, then physical offset.
pub fn offset_id(bytes: &[u8], host_start: i64, physical_offset: i64) -> Option<[u8; 32]> {
    let host: [u8; 8] = chunk(bytes, usize::try_from(host_start).ok()?)?;
    let mut content = [0; 16];
    put(&mut content, 0, &host)?;
    put(&mut content, 8, &physical_offset.to_be_bytes())?;
    let digits = content.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let mut id = [0; 32];
    for (out, digit) in id.iter_mut().zip(digits) {
        *out = *HEX.get(usize::from(digit))?;
    }
    Some(id)
}
