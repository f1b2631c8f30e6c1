//! MD5 of bodies, as receivers of RocketMQ's protocol compare it (RFC 1321). Not for secrets.

#![forbid(unsafe_code)]

const BLOCK: usize = 64;
const LENGTH_AT: usize = BLOCK - 8;
pub const DIGITS: usize = 32;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn mix_f(b: u32, c: u32, d: u32) -> u32 {
    d ^ (b & (c ^ d))
}

fn mix_g(b: u32, c: u32, d: u32) -> u32 {
    // A sum, not a union: the bits exclude each other, and a step waits for one operation less.
    (b & d).wrapping_add(c & !d)
}

fn mix_h(b: u32, c: u32, d: u32) -> u32 {
    b ^ c ^ d
}

fn mix_i(b: u32, c: u32, d: u32) -> u32 {
    c ^ (b | !d)
}

macro_rules! step {
    ($mix:ident, $a:ident, $b:ident, $c:ident, $d:ident, $word:expr, $turn:literal, $add:literal) => {
        $a = $a
            .wrapping_add($word)
            .wrapping_add($add)
            .wrapping_add($mix($b, $c, $d))
            .rotate_left($turn)
            .wrapping_add($b);
    };
}

/// Take one block into the state.
#[rustfmt::skip]
fn take(state: &mut [u32; 4], block: &[u8; BLOCK]) {
    let mut words = [0u32; 16];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
    }
    let [mut a, mut b, mut c, mut d] = *state;
    step!(mix_f, a, b, c, d, words[0], 7, 0xd76aa478);
    step!(mix_f, d, a, b, c, words[1], 12, 0xe8c7b756);
    step!(mix_f, c, d, a, b, words[2], 17, 0x242070db);
    step!(mix_f, b, c, d, a, words[3], 22, 0xc1bdceee);
    step!(mix_f, a, b, c, d, words[4], 7, 0xf57c0faf);
    step!(mix_f, d, a, b, c, words[5], 12, 0x4787c62a);
    step!(mix_f, c, d, a, b, words[6], 17, 0xa8304613);
    step!(mix_f, b, c, d, a, words[7], 22, 0xfd469501);
    step!(mix_f, a, b, c, d, words[8], 7, 0x698098d8);
    step!(mix_f, d, a, b, c, words[9], 12, 0x8b44f7af);
    step!(mix_f, c, d, a, b, words[10], 17, 0xffff5bb1);
    step!(mix_f, b, c, d, a, words[11], 22, 0x895cd7be);
    step!(mix_f, a, b, c, d, words[12], 7, 0x6b901122);
    step!(mix_f, d, a, b, c, words[13], 12, 0xfd987193);
    step!(mix_f, c, d, a, b, words[14], 17, 0xa679438e);
    step!(mix_f, b, c, d, a, words[15], 22, 0x49b40821);
    step!(mix_g, a, b, c, d, words[1], 5, 0xf61e2562);
    step!(mix_g, d, a, b, c, words[6], 9, 0xc040b340);
    step!(mix_g, c, d, a, b, words[11], 14, 0x265e5a51);
    step!(mix_g, b, c, d, a, words[0], 20, 0xe9b6c7aa);
    step!(mix_g, a, b, c, d, words[5], 5, 0xd62f105d);
    step!(mix_g, d, a, b, c, words[10], 9, 0x02441453);
    step!(mix_g, c, d, a, b, words[15], 14, 0xd8a1e681);
    step!(mix_g, b, c, d, a, words[4], 20, 0xe7d3fbc8);
    step!(mix_g, a, b, c, d, words[9], 5, 0x21e1cde6);
    step!(mix_g, d, a, b, c, words[14], 9, 0xc33707d6);
    step!(mix_g, c, d, a, b, words[3], 14, 0xf4d50d87);
    step!(mix_g, b, c, d, a, words[8], 20, 0x455a14ed);
    step!(mix_g, a, b, c, d, words[13], 5, 0xa9e3e905);
    step!(mix_g, d, a, b, c, words[2], 9, 0xfcefa3f8);
    step!(mix_g, c, d, a, b, words[7], 14, 0x676f02d9);
    step!(mix_g, b, c, d, a, words[12], 20, 0x8d2a4c8a);
    step!(mix_h, a, b, c, d, words[5], 4, 0xfffa3942);
    step!(mix_h, d, a, b, c, words[8], 11, 0x8771f681);
    step!(mix_h, c, d, a, b, words[11], 16, 0x6d9d6122);
    step!(mix_h, b, c, d, a, words[14], 23, 0xfde5380c);
    step!(mix_h, a, b, c, d, words[1], 4, 0xa4beea44);
    step!(mix_h, d, a, b, c, words[4], 11, 0x4bdecfa9);
    step!(mix_h, c, d, a, b, words[7], 16, 0xf6bb4b60);
    step!(mix_h, b, c, d, a, words[10], 23, 0xbebfbc70);
    step!(mix_h, a, b, c, d, words[13], 4, 0x289b7ec6);
    step!(mix_h, d, a, b, c, words[0], 11, 0xeaa127fa);
    step!(mix_h, c, d, a, b, words[3], 16, 0xd4ef3085);
    step!(mix_h, b, c, d, a, words[6], 23, 0x04881d05);
    step!(mix_h, a, b, c, d, words[9], 4, 0xd9d4d039);
    step!(mix_h, d, a, b, c, words[12], 11, 0xe6db99e5);
    step!(mix_h, c, d, a, b, words[15], 16, 0x1fa27cf8);
    step!(mix_h, b, c, d, a, words[2], 23, 0xc4ac5665);
    step!(mix_i, a, b, c, d, words[0], 6, 0xf4292244);
    step!(mix_i, d, a, b, c, words[7], 10, 0x432aff97);
    step!(mix_i, c, d, a, b, words[14], 15, 0xab9423a7);
    step!(mix_i, b, c, d, a, words[5], 21, 0xfc93a039);
    step!(mix_i, a, b, c, d, words[12], 6, 0x655b59c3);
    step!(mix_i, d, a, b, c, words[3], 10, 0x8f0ccc92);
    step!(mix_i, c, d, a, b, words[10], 15, 0xffeff47d);
    step!(mix_i, b, c, d, a, words[1], 21, 0x85845dd1);
    step!(mix_i, a, b, c, d, words[8], 6, 0x6fa87e4f);
    step!(mix_i, d, a, b, c, words[15], 10, 0xfe2ce6e0);
    step!(mix_i, c, d, a, b, words[6], 15, 0xa3014314);
    step!(mix_i, b, c, d, a, words[13], 21, 0x4e0811a1);
    step!(mix_i, a, b, c, d, words[4], 6, 0xf7537e82);
    step!(mix_i, d, a, b, c, words[11], 10, 0xbd3af235);
    step!(mix_i, c, d, a, b, words[2], 15, 0x2ad7d2bb);
    step!(mix_i, b, c, d, a, words[9], 21, 0xeb86d391);
    for (sum, own) in state.iter_mut().zip([a, b, c, d]) {
        *sum = sum.wrapping_add(own);
    }
}

/// The digest in upper-case hexadecimal.
pub fn hex(bytes: &[u8]) -> [u8; DIGITS] {
    let mut state = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
    let mut blocks = bytes.chunks_exact(BLOCK);
    while let Some(block) = blocks.next().and_then(|it| it.first_chunk()) {
        take(&mut state, block);
    }
    let rest = blocks.remainder();
    let mut last = [0; BLOCK];
    for (out, byte) in last.iter_mut().zip(rest.iter().chain(&[0x80])) {
        *out = *byte;
    }
    if rest.len() >= LENGTH_AT {
        take(&mut state, &last);
        last = [0; BLOCK];
    }
    let bits = (bytes.len() as u64).wrapping_mul(8).to_le_bytes();
    for (out, byte) in last.iter_mut().skip(LENGTH_AT).zip(bits) {
        *out = byte;
    }
    take(&mut state, &last);
    let mut digits = [0; DIGITS];
    let halves = state.iter().flat_map(|it| it.to_le_bytes());
    let halves = halves.flat_map(|byte| [byte >> 4, byte & 15]);
    for (out, half) in digits.iter_mut().zip(halves) {
        *out = HEX.get(usize::from(half)).copied().unwrap_or_default();
    }
    digits
}
