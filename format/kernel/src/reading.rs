//! Big-endian integers at a position; none if the position is outside.

#![forbid(unsafe_code)]

pub fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

pub fn be_i16(bytes: &[u8], at: usize) -> Option<i16> {
    chunk(bytes, at).map(i16::from_be_bytes)
}

pub fn be_i32(bytes: &[u8], at: usize) -> Option<i32> {
    chunk(bytes, at).map(i32::from_be_bytes)
}

pub fn be_i64(bytes: &[u8], at: usize) -> Option<i64> {
    chunk(bytes, at).map(i64::from_be_bytes)
}

/// Overwrite the bytes at a position, if they are within the buffer.
pub fn put(bytes: &mut [u8], at: usize, what: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..)?
        .get_mut(..what.len())?
        .copy_from_slice(what);
    Some(())
}
