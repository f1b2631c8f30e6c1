//! MD5 of bodies, which clients of RocketMQ's protocol compare (RFC 1321). Not for secrets.

#![forbid(unsafe_code)]

use ::md5::{Digest, Md5};

pub const DIGITS: usize = 32;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The digest in upper-case hexadecimal.
pub fn hex(bytes: &[u8]) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    let halves = Md5::digest(bytes)
        .into_iter()
        .flat_map(|byte| [byte >> 4, byte & 15]);
    for (out, half) in digits.iter_mut().zip(halves) {
        *out = HEX.get(usize::from(half)).copied().unwrap_or_default();
    }
    digits
}
