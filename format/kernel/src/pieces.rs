//! Pieces of records, which Arrow wants one behind the other.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::checksum::{tail, Tail};
use crate::columns::piece;
use crate::reading::{chunk, put};
use crate::text::{segments, NAME_END};

/// Above so many pairs in a record, a table of names is quicker than comparing each with the rest.
const PAIRS_COMPARED_MAX: usize = 24;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Each of some pieces; none where one does not lie within the bytes.
pub fn gather(bytes: &[u8], places: impl Iterator<Item = (i64, i64)>) -> Option<Vec<&[u8]>> {
    places
        .map(|(start, length)| piece(bytes, start, length))
        .collect()
}

/// Properties by name of each record, as many pieces a record as there are names: the last value
/// of each that is not empty, and an empty piece where there is none.
pub fn values<'a>(
    bytes: &'a [u8],
    sections: impl Iterator<Item = (i64, i64)>,
    names: &[Vec<u8>],
) -> Option<Vec<&'a [u8]>> {
    let mut found = Vec::with_capacity(sections.size_hint().0 * names.len());
    for (start, length) in sections {
        let first = found.len();
        found.resize(first + names.len(), &[] as &[u8]);
        for segment in segments(piece(bytes, start, length)?) {
            for (name, out) in names.iter().zip(found.iter_mut().skip(first)) {
                let value = segment
                    .strip_prefix(name.as_slice())
                    .and_then(|rest| rest.strip_prefix(&[NAME_END]));
                if let Some(value) = value.filter(|value| !value.is_empty()) {
                    *out = value;
                }
            }
        }
    }
    Some(found)
}

/// All properties of records: how many come before each record's, names, values.
pub type Maps<'a> = (Vec<i32>, Vec<&'a [u8]>, Vec<&'a [u8]>);

/// Pairs with an empty name or value do not count, and of equal names the last does.
pub fn maps<'a>(bytes: &'a [u8], sections: impl Iterator<Item = (i64, i64)>) -> Option<Maps<'a>> {
    let mut rows = Vec::with_capacity(sections.size_hint().0 + 1);
    let (mut names, mut values): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
    rows.push(0);
    for (start, length) in sections {
        let first = names.len();
        for segment in segments(piece(bytes, start, length)?) {
            let Some(middle) = segment.iter().position(|byte| *byte == NAME_END) else {
                continue;
            };
            let (name, value) = (segment.get(..middle)?, segment.get(middle + 1..)?);
            if !name.is_empty() && !value.is_empty() {
                names.push(name);
                values.push(value);
            }
        }
        keep_last(&mut names, &mut values, first);
        rows.push(i32::try_from(names.len()).ok()?);
    }
    Some((rows, names, values))
}

/// Of the pairs from `first` on, drop those whose name comes again.
fn keep_last<'a>(names: &mut Vec<&'a [u8]>, values: &mut Vec<&'a [u8]>, first: usize) {
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
