//! Pieces of records, which Arrow wants one behind the other.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{tail, Tail};
use crate::columns::piece;
use crate::reading::{chunk, put};
use crate::text::{segments, NAME_END};

/// Above so many pairs in a record, a table of names is quicker than comparing each with the rest.
const PAIRS_COMPARED_MAX: usize = 24;
const PIECE_BYTES_GUESS: usize = 16;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Each of some pieces; none where one does not lie within the bytes.
pub fn gather(bytes: &[u8], places: impl Iterator<Item = (i64, i64)>) -> Option<Vec<&[u8]>> {
    places
        .map(|(start, length)| piece(bytes, start, length))
        .collect()
}

/// Pieces one behind the other, as Arrow has them: where each begins and the last one ends, and all.
pub struct Laid {
    pub bounds: Vec<i32>,
    pub content: Vec<u8>,
}

impl Laid {
    fn of(count: usize) -> Self {
        let mut bounds = Vec::with_capacity(count + 1);
        bounds.push(0);
        Laid {
            bounds,
            content: Vec::with_capacity(count * PIECE_BYTES_GUESS),
        }
    }

    fn push(&mut self, piece: &[u8]) -> Option<()> {
        self.content.extend_from_slice(piece);
        self.bounds.push(i32::try_from(self.content.len()).ok()?);
        Some(())
    }

    /// Whether each piece is UTF-8.
    pub fn is_utf8(&self) -> bool {
        let mut pairs = self.bounds.iter().zip(self.bounds.iter().skip(1));
        self.content.is_ascii()
            || pairs.all(|(from, to)| {
                let piece = self.content.get(*from as usize..*to as usize);
                piece.is_some_and(|it| std::str::from_utf8(it).is_ok())
            })
    }
}

/// Properties by name of each record: of each name the last value of every record that is not empty,
/// and an empty piece where there is none.
pub fn values(
    bytes: &[u8],
    sections: impl Iterator<Item = (i64, i64)>,
    names: &[Vec<u8>],
) -> Option<Vec<Laid>> {
    let count = sections.size_hint().0;
    let mut found: Vec<Laid> = names.iter().map(|_| Laid::of(count)).collect();
    let mut own: Vec<&[u8]> = vec![&[]; names.len()];
    for (start, length) in sections {
        own.fill(&[]);
        for segment in segments(piece(bytes, start, length)?) {
            for (name, out) in names.iter().zip(&mut own) {
                // What has no name's end there is told by one byte.
                if segment.get(name.len()) != Some(&NAME_END) || !segment.starts_with(name) {
                    continue;
                }
                let value = segment.get(name.len() + 1..).unwrap_or_default();
                if !value.is_empty() {
                    *out = value;
                }
            }
        }
        for (laid, value) in found.iter_mut().zip(&own) {
            laid.push(value)?;
        }
    }
    Some(found)
}

/// All properties of records: how many come before each record's, names, values.
pub type Maps = (Vec<i32>, Laid, Laid);

/// Pairs with an empty name or value do not count, and of equal names the last does.
pub fn maps(bytes: &[u8], sections: impl Iterator<Item = (i64, i64)>) -> Option<Maps> {
    let count = sections.size_hint().0;
    let mut rows = Vec::with_capacity(count + 1);
    let (mut names, mut values) = (Laid::of(3 * count), Laid::of(3 * count));
    let (mut own, mut own_values): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
    rows.push(0);
    for (start, length) in sections {
        own.clear();
        own_values.clear();
        for segment in segments(piece(bytes, start, length)?) {
            let Some(middle) = segment.iter().position(|byte| *byte == NAME_END) else {
                continue;
            };
            let (name, value) = (segment.get(..middle)?, segment.get(middle + 1..)?);
            if !name.is_empty() && !value.is_empty() {
                own.push(name);
                own_values.push(value);
            }
        }
        keep_last(&mut own, &mut own_values, 0);
        for (name, value) in own.iter().zip(&own_values) {
            names.push(name)?;
            values.push(value)?;
        }
        rows.push(i32::try_from(names.bounds.len() - 1).ok()?);
    }
    Some((rows, names, values))
}

/// Of the pairs from `first` on, drop those whose name comes again.
pub fn keep_last<'a>(names: &mut Vec<&'a [u8]>, values: &mut Vec<&'a [u8]>, first: usize) {
    let own = names.get(first..).unwrap_or_default();
    let kept: Vec<bool> = if own.len() > PAIRS_COMPARED_MAX {
        let last: HashMap<&[u8], usize> = own.iter().copied().zip(0..).collect();
        let numbered = own.iter().zip(0..);
        numbered
            .map(|(name, number)| last.get(name) == Some(&number))
            .collect()
    } else {
        let is_last = |(number, name): (usize, &&[u8])| {
            let mut later = own.iter().skip(number + 1);
            !later.any(|other| other == name)
        };
        if own.iter().enumerate().all(is_last) {
            return;
        }
        own.iter().enumerate().map(is_last).collect()
    };
    for list in [names, values] {
        let mut keep = kept.iter();
        let own: Vec<&[u8]> = list.drain(first..).collect();
        list.extend(own.into_iter().filter(|_| keep.next() == Some(&true)));
    }
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
