//! The checksum property of a record; `rockoon_format/checksums.py` has the rules.

#![forbid(unsafe_code)]

use crate::reading::{chunk, put};
use crate::record::CRC_MASK;

pub const PROPERTY_BYTES: usize = 20;
const HEAD: [u8; 9] = *b"__CRC32#\x01";
pub const DIGITS: usize = 10;
pub const ROOM: [u8; PROPERTY_BYTES] = *b"__CRC32#\x01----------\x02";
const SEPARATOR: u8 = 2;
const ALIKE_MIN: usize = 8;

/// The end of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The property, with its digits or the space for them.
    Property([u8; DIGITS]),
    /// Bytes so similar to the property that they count as damaged.
    Mangled,
    Other,
}

/// Whether a record's last bytes have the letters of the property; earlier bytes are not checked.
pub fn is_property(end: &[u8; PROPERTY_BYTES]) -> bool {
    end.starts_with(&HEAD) && end.ends_with(&[SEPARATOR])
}

/// Classify the end of a whole record.
#[inline]
pub fn tail(record: &[u8], properties_length: i32) -> Tail {
    if properties_length < PROPERTY_BYTES as i32 {
        return Tail::Other;
    }
    let Some((front, end)) = record.split_last_chunk::<PROPERTY_BYTES>() else {
        return Tail::Other;
    };
    let begins = properties_length == PROPERTY_BYTES as i32 || front.last() == Some(&SEPARATOR);
    if is_property(end) && begins {
        // Never fails: the array has twenty bytes.
        return chunk(end, HEAD.len()).map_or(Tail::Other, Tail::Property);
    }
    let letters = HEAD
        .iter()
        .zip(end.iter())
        .filter(|(right, found)| right == found)
        .count();
    if letters + usize::from(end.ends_with(&[SEPARATOR])) >= ALIKE_MIN {
        Tail::Mangled
    } else {
        Tail::Other
    }
}

/// CRC-32 in the form of records: the low 31 bits.
pub fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & CRC_MASK
}

/// Write the digits of the checksum into a record that ends with space for them.
pub fn write(record: &mut [u8]) -> Option<()> {
    let covered = record.len().checked_sub(PROPERTY_BYTES)?;
    let mut left = crc(record.get(..covered)?);
    let mut digits = [b'0'; DIGITS];
    for digit in &mut digits {
        *digit += (left % 10) as u8;
        left /= 10;
    }
    put(record, covered + HEAD.len(), &digits)
}
