//! Pieces of records, which Arrow wants one behind the other.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{tail, Tail};
use crate::reading::{chunk, put};
use crate::text::{property_end, NAME_END};

/// Above so many pairs in a record, a table of names is quicker than comparing each with the rest.
const PAIRS_COMPARED_MAX: usize = 24;
/// So many topics' names of properties are remembered.
const KINDS: usize = 64;
/// Pairs of a record, of which there are mostly no more.
const PAIRS_GUESS: usize = 4;
const WORD: usize = 8;
const SHORT_BYTES: usize = 32;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Where a piece lies in some bytes of less than 4 GiB.
#[derive(Clone, Copy, Default)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    /// None where it does not end within 4 GiB.
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

    /// None where it does not lie within them.
    pub fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(self.start()..self.end())
    }
}

/// Lay pieces one behind the other, as Arrow has them: where each begins and the last one ends, int32,
/// and all. `content` is as long as they are together.
pub fn lay(
    bytes: &[u8],
    pieces: impl Iterator<Item = Span>,
    bounds: &mut [u8],
    content: &mut [u8],
) -> Option<()> {
    let mut at = 0;
    put(bounds, 0, &0i32.to_ne_bytes())?;
    for (piece, end) in pieces.zip(bounds.chunks_exact_mut(4).skip(1)) {
        let behind = at + piece.len();
        // So many bytes at once are quicker than exactly as many as there are; the next one writes
        // over what is too much.
        let short = if piece.len() <= SHORT_BYTES {
            chunk::<SHORT_BYTES>(bytes, piece.start())
        } else {
            None
        };
        match (short, content.get_mut(at..at + SHORT_BYTES)) {
            (Some(short), Some(out)) => out.copy_from_slice(&short),
            _ => content
                .get_mut(at..behind)?
                .copy_from_slice(piece.of(bytes)?),
        }
        at = behind;
        end.copy_from_slice(&i32::try_from(at).ok()?.to_ne_bytes());
    }
    Some(())
}

/// Whether each piece of what `lay` made is UTF-8.
pub fn is_utf8(bounds: &[u8], content: &[u8]) -> bool {
    let ends = bounds.chunks_exact(4).filter_map(|it| it.first_chunk());
    let mut rest = content;
    let mut at = 0;
    content.is_ascii()
        || ends.skip(1).all(|end| {
            let end = i32::from_ne_bytes(*end) as usize;
            let split = rest.split_at_checked(end.saturating_sub(at));
            let Some((piece, behind)) = split else {
                return false;
            };
            (rest, at) = (behind, end);
            std::str::from_utf8(piece).is_ok()
        })
}

/// Properties of records.
pub struct Properties {
    /// By name, of each record, empty where there is none.
    pub asked: Vec<Vec<Span>>,
    /// How many pairs come before those of each record.
    pub rows: Vec<i32>,
    pub names: Vec<Span>,
    pub values: Vec<Span>,
}

/// The first bytes of a name with its end, and which of them count.
struct Head<'a> {
    word: u64,
    mask: u64,
    /// What is left of it behind that word.
    rest: &'a [u8],
    /// The name's.
    length: usize,
}

/// Names that records of one producer have, in their order: what those of the next record are
/// expected to be.
#[derive(Default)]
struct Kind<'a> {
    heads: Vec<Head<'a>>,
    /// Which of them each name is that was asked for.
    asked: Vec<Option<usize>>,
    misses: u32,
}

impl<'a> Kind<'a> {
    /// None for bytes that are no pair's.
    fn learn(&mut self, bytes: &'a [u8], names: &[Span], asked: &[Vec<u8>]) -> Option<()> {
        self.heads.clear();
        for name in names {
            let mut word = [0; WORD];
            let mut mask = [0; WORD];
            let head = bytes.get(name.start()..name.end() + 1)?;
            for ((word, mask), byte) in word.iter_mut().zip(&mut mask).zip(head) {
                (*word, *mask) = (*byte, u8::MAX);
            }
            self.heads.push(Head {
                word: u64::from_le_bytes(word),
                mask: u64::from_le_bytes(mask),
                rest: head.get(WORD..).unwrap_or_default(),
                length: name.len(),
            });
        }
        let own = |name: &Vec<u8>| names.iter().position(|it| it.of(bytes) == Some(name));
        self.asked = asked.iter().map(own).collect();
        Some(())
    }

    /// Add the pairs of a section with these names and no others; whether it is one. If not, some
    /// may have been added.
    fn read(&self, bytes: &[u8], section: Span, pairs: &mut Pairs) -> bool {
        let (mut at, end) = (section.start(), section.end());
        for head in &self.heads {
            let Some(word) = chunk(bytes, at) else {
                return false;
            };
            let value = at + head.length + 1;
            let is_here = u64::from_le_bytes(word) & head.mask == head.word
                && (head.rest.is_empty() || bytes.get(at + WORD..value) == Some(head.rest));
            if !is_here || value >= end {
                return false;
            }
            let behind = property_end(bytes, value, end);
            if behind == value || pairs.push(at, value, behind).is_none() {
                return false;
            }
            at = behind + 1;
        }
        at >= end
    }
}

/// Which of some names do not come again; none if that is all of them.
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

/// Drop pairs whose name comes again.
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

    fn truncate(&mut self, count: usize) {
        self.names.truncate(count);
        self.values.truncate(count);
    }

    /// Add the pairs of a section, whatever it is like.
    fn read(&mut self, bytes: &[u8], section: Span) -> Option<()> {
        let first = self.names.len();
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
        self.keep_last(bytes, first)
    }

    /// Of the pairs from `first` on, drop those whose name comes again.
    fn keep_last(&mut self, bytes: &[u8], first: usize) -> Option<()> {
        let names = self.names.get(first..)?;
        let own: Vec<&[u8]> = names.iter().filter_map(|it| it.of(bytes)).collect();
        let Some(kept) = last_ones(&own) else {
            return Some(());
        };
        for list in [&mut self.names, &mut self.values] {
            let mut keep = kept.iter();
            let own: Vec<Span> = list.drain(first..).collect();
            list.extend(own.into_iter().filter(|_| keep.next() == Some(&true)));
        }
        Some(())
    }
}

/// Properties of records: some by name, of each the last value that is not empty, and all pairs if
/// they are wanted.
///
/// Pairs with an empty name or value do not count, and of equal names the last does. Records of a
/// topic mostly have the same names in the same order: then those are only compared.
///
/// `sections` come with their topics' numbers. None where there is more than Arrow takes.
pub fn properties(
    bytes: &[u8],
    sections: impl ExactSizeIterator<Item = (Span, usize)>,
    asked: &[Vec<u8>],
    with_pairs: bool,
) -> Option<Properties> {
    let count = sections.len();
    let column = || Vec::with_capacity(count);
    let mut found: Vec<Vec<Span>> = asked.iter().map(|_| column()).collect();
    let mut rows = Vec::with_capacity(count + 1);
    let room = || Vec::with_capacity(count * PAIRS_GUESS);
    let mut pairs = Pairs {
        names: room(),
        values: room(),
    };
    let unknown = || Kind {
        asked: vec![None; asked.len()],
        ..Kind::default()
    };
    let mut kinds: Vec<Kind> = (0..KINDS).map(|_| unknown()).collect();
    rows.push(0);
    for (section, topic) in sections {
        let kind = kinds.get_mut(topic % KINDS)?;
        let first = pairs.names.len();
        let mut is_known = kind.read(bytes, section, &mut pairs);
        if !is_known {
            pairs.truncate(first);
            pairs.read(bytes, section)?;
            kind.misses += 1;
            // Where each record has other names, to learn them all would be in vain.
            if kind.misses.is_power_of_two() {
                kind.learn(bytes, pairs.names.get(first..)?, asked)?;
                is_known = true;
            }
        }
        let (names, values) = (pairs.names.get(first..)?, pairs.values.get(first..)?);
        for (number, (found, name)) in found.iter_mut().zip(asked).enumerate() {
            let place = if is_known {
                kind.asked.get(number).copied()?
            } else {
                names.iter().position(|it| it.of(bytes) == Some(name))
            };
            let value = place.and_then(|place| values.get(place));
            found.push(value.copied().unwrap_or_default());
        }
        if with_pairs {
            rows.push(i32::try_from(pairs.names.len()).ok()?);
        } else {
            pairs.truncate(0);
        }
    }
    Some(Properties {
        asked: found,
        rows,
        names: pairs.names,
        values: pairs.values,
    })
}

/// Of each record one byte: 1 it ends with room for a checksum, written or not, 2 with what resembles
/// it so much that it counts as damaged.
pub fn room(bytes: &[u8], end: i64, properties_length: i64) -> Option<u8> {
    let record = bytes.get(..usize::try_from(end).ok()?)?;
    let length = i32::try_from(properties_length).ok()?;
    Some(match tail(record, length) {
        Tail::Property(_) => 1,
        Tail::Mangled => 2,
        Tail::Other => 0,
    })
}

/// The id of a record with an IPv4 store host, in hexadecimal: host, then physical offset.
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
