//! Properties, and Java's hashes of their values.

#![forbid(unsafe_code)]

use crate::reading::chunk;

pub const NAME_END: u8 = 1;
pub const PROPERTY_END: u8 = 2;
const WORD: usize = 8;
const LOW_BYTES: u64 = 0x00FF_00FF_00FF_00FF;
const LOW_HALVES: u64 = 0x0000_FFFF_0000_FFFF;
const POWER_4: i32 = 31 * 31 * 31 * 31;
const ONES: u64 = 0x0101_0101_0101_0101;

/// Java's `String.hashCode` of a text; none if it is not UTF-8, which Java would replace.
pub fn hash(text: &[u8]) -> Option<i32> {
    hash_behind(0, text)
}

/// The hash of a text after another text with a known hash.
pub fn hash_behind(front: i32, text: &[u8]) -> Option<i32> {
    let step = |code: i32, unit: i32| code.wrapping_mul(31).wrapping_add(unit);
    // Eight bytes per step, in lanes of a word; one byte per step would wait for the previous one.
    let (mut code, mut seen) = (front, 0);
    let mut words = text.chunks_exact(WORD);
    while let Some(word) = words.next().and_then(|it| it.first_chunk()) {
        let word = u64::from_le_bytes(*word);
        seen |= word;
        let pairs = (word & LOW_BYTES).wrapping_mul(31) + (word >> 8 & LOW_BYTES);
        let fours = (pairs & LOW_HALVES).wrapping_mul(31 * 31) + (pairs >> 16 & LOW_HALVES);
        let eight = (fours as i32)
            .wrapping_mul(POWER_4)
            .wrapping_add((fours >> 32) as i32);
        code = code
            .wrapping_mul(POWER_4.wrapping_mul(POWER_4))
            .wrapping_add(eight);
    }
    for byte in words.remainder() {
        seen |= u64::from(*byte);
        code = step(code, i32::from(*byte));
    }
    if seen & (ONES << 7) == 0 {
        return Some(code);
    }
    let units = std::str::from_utf8(text).ok()?.encode_utf16();
    Some(units.fold(front, |code, unit| step(code, i32::from(unit))))
}

/// Position of the first property separator in `at..end`; `end` if there is none.
#[inline]
pub fn property_end(bytes: &[u8], at: usize, end: usize) -> usize {
    let mut at = at;
    while at < end {
        let Some(word) = chunk(bytes, at) else {
            let rest = bytes.get(at..end).unwrap_or_default();
            return at
                + rest
                    .iter()
                    .position(|byte| *byte == PROPERTY_END)
                    .unwrap_or(end - at);
        };
        // The highest bit is set in the lowest separator byte; in higher bytes it may be wrong.
        let zeros = u64::from_le_bytes(word) ^ (ONES * PROPERTY_END as u64);
        let marks = zeros.wrapping_sub(ONES) & !zeros & (ONES << 7);
        if marks != 0 {
            return end.min(at + marks.trailing_zeros() as usize / 8);
        }
        at += WORD;
    }
    end
}

/// The bytes before and after the first property separator; no second part if there is none.
fn split_first(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    split_at(bytes, property_end(bytes, 0, bytes.len()))
}

fn split_at(bytes: &[u8], at: usize) -> (&[u8], Option<&[u8]>) {
    match bytes.split_at_checked(at) {
        // Without a separator, all bytes are the first part.
        Some((front, behind)) => (front, behind.get(1..)),
        None => (bytes, None),
    }
}

/// The segments between property separators.
pub fn segments(properties: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(properties);
    std::iter::from_fn(move || {
        let (segment, behind) = split_first(rest?);
        rest = behind;
        Some(segment)
    })
}

/// The value of a segment, if it has the name and the value is not empty.
#[inline]
pub fn value_of<'a, const N: usize>(segment: &'a [u8], name: &[u8; N]) -> Option<&'a [u8]> {
    // A constant length, so that the compiler emits no call for a few bytes.
    let (front, rest) = segment.split_first_chunk::<N>()?;
    let (end, value) = rest.split_first()?;
    (front == name && *end == NAME_END && !value.is_empty()).then_some(value)
}

/// The last non-empty value of a property; empty if there is none.
#[inline]
pub fn last_value<'a, const N: usize>(properties: &'a [u8], name: &[u8; N]) -> &'a [u8] {
    let values = segments(properties).filter_map(|segment| value_of(segment, name));
    values.last().unwrap_or_default()
}

/// Properties that indexes use: the last non-empty values.
#[derive(Default)]
pub struct ListedBy<'a> {
    tags: &'a [u8],
    unique: &'a [u8],
    keys: &'a [u8],
}

impl<'a> ListedBy<'a> {
    #[inline]
    pub fn of(properties: &'a [u8]) -> Self {
        let mut found = ListedBy::default();
        for segment in segments(properties) {
            if let Some(value) = value_of(segment, b"UNIQ_KEY") {
                found.unique = value;
            } else if let Some(value) = value_of(segment, b"KEYS") {
                found.keys = value;
            } else if let Some(value) = value_of(segment, b"TAGS") {
                found.tags = value;
            }
        }
        found
    }

    /// The tags code in the queue entry; none if `hash` has none.
    pub fn tags_code(&self) -> Option<i64> {
        hash(self.tags).map(i64::from)
    }

    /// Call `take` with the unique key, then those of KEYS.
    fn each_key(&self, mut take: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
        if !self.unique.is_empty() {
            take(self.unique)?;
        }
        self.keys
            .split(|byte| *byte == b' ')
            .filter(|key| !key.is_empty())
            .try_for_each(take)
    }

    /// Call `take` with the index hash of each key; `front` is that of the topic and `#`.
    pub fn each_hash(&self, front: i32, mut take: impl FnMut(i64)) -> Option<()> {
        self.each_key(|key| {
            // The absolute value; the smallest number becomes zero: IndexFile#indexKeyHashMethod.
            take(i64::from(
                hash_behind(front, key)?.checked_abs().unwrap_or(0),
            ));
            Some(())
        })
    }
}

/// Hash of the text before the keys of a topic: `topic#`.
pub fn front(topic: &[u8]) -> Option<i32> {
    hash_behind(hash(topic)?, b"#")
}

/// The tags code in the queue entry of a record; none if `hash` has none.
pub fn tags_code(properties: &[u8]) -> Option<i64> {
    hash(last_value(properties, b"TAGS")).map(i64::from)
}
