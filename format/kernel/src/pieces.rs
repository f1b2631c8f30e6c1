//! Pieces of records laid out as Arrow has them: contents one behind the other, and their bounds.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::columns::piece;
use crate::text::{last_value, segments, NAME_END};

/// Above so many pairs in a record, a table of names is quicker than comparing each with the rest.
const PAIRS_COMPARED_MAX: usize = 24;

/// A column of variable length, at most 2 GiB.
pub struct Laid {
    /// Bounds of n pieces, n + 1 of them.
    pub bounds: Vec<i32>,
    pub content: Vec<u8>,
}

impl Laid {
    fn with_room(count: usize) -> Laid {
        let mut bounds = Vec::with_capacity(count + 1);
        bounds.push(0);
        Laid {
            bounds,
            content: Vec::new(),
        }
    }

    fn put(&mut self, piece: &[u8]) -> Option<()> {
        self.content.extend_from_slice(piece);
        self.bounds.push(i32::try_from(self.content.len()).ok()?);
        Some(())
    }
}

/// Each of some pieces; none where one does not lie within the bytes.
pub fn gather(bytes: &[u8], pieces: impl ExactSizeIterator<Item = (i64, i64)>) -> Option<Laid> {
    let mut laid = Laid::with_room(pieces.len());
    for (start, length) in pieces {
        laid.put(piece(bytes, start, length)?)?;
    }
    Some(laid)
}

/// One property of each record; an empty piece where there is none, since no value is empty.
pub fn values(
    bytes: &[u8],
    sections: impl ExactSizeIterator<Item = (i64, i64)>,
    name: &[u8],
) -> Option<Laid> {
    let mut laid = Laid::with_room(sections.len());
    for (start, length) in sections {
        laid.put(last_value(piece(bytes, start, length)?, name))?;
    }
    Some(laid)
}

/// All properties of each record: how many come before each record's, names, values.
///
/// Pairs with an empty name or value do not count, and of equal names the last does.
pub fn maps(
    bytes: &[u8],
    sections: impl ExactSizeIterator<Item = (i64, i64)>,
) -> Option<(Vec<i32>, Laid, Laid)> {
    let mut rows = Vec::with_capacity(sections.len() + 1);
    let (mut names, mut values) = (Laid::with_room(0), Laid::with_room(0));
    let mut pairs: Vec<(&[u8], &[u8])> = Vec::new();
    rows.push(0);
    for (start, length) in sections {
        pairs.clear();
        for segment in segments(piece(bytes, start, length)?) {
            let Some(middle) = memchr::memchr(NAME_END, segment) else {
                continue;
            };
            let (name, value) = (segment.get(..middle)?, segment.get(middle + 1..)?);
            if !name.is_empty() && !value.is_empty() {
                pairs.push((name, value));
            }
        }
        let last: Option<HashMap<&[u8], usize>> = (pairs.len() > PAIRS_COMPARED_MAX).then(|| {
            let numbered = pairs.iter().enumerate();
            numbered.map(|(number, (name, _))| (*name, number)).collect()
        });
        for (number, (name, value)) in pairs.iter().enumerate() {
            let comes_again = match &last {
                Some(last) => last.get(name) != Some(&number),
                None => pairs.iter().skip(number + 1).any(|(other, _)| other == name),
            };
            if !comes_again {
                names.put(name)?;
                values.put(value)?;
            }
        }
        rows.push(i32::try_from(names.bounds.len() - 1).ok()?);
    }
    Some((rows, names, values))
}
