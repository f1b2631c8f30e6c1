//! Values back to back in Arrow's layout, in reused memory.

#![forbid(unsafe_code)]

use crate::pieces::Span;
use crate::pool;
use crate::reading::{chunk, put};

/// A copy of this many bytes is faster than a copy of the exact length; the next copy overwrites
/// the excess.
pub const WIDE: usize = 32;
const WIDE_MAX: usize = 4 * WIDE;
/// The maximum of Arrow's int32 bounds.
const BYTES_MAX: usize = i32::MAX as usize - WIDE;

/// Number of finished records and of all records, to estimate the remaining bytes.
#[derive(Clone, Copy)]
pub struct Progress {
    pub done: usize,
    pub count: usize,
}

/// A buffer that is filled from its start.
pub struct Growing {
    bytes: Vec<u8>,
    used: usize,
}

impl Growing {
    pub fn new(len: usize) -> Growing {
        Growing {
            bytes: pool::take(len + WIDE),
            used: 0,
        }
    }

    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    /// The whole buffer, and its filled length.
    pub fn into_parts(mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.bytes), self.used)
    }

    /// A range of this length, to be filled by position.
    pub fn whole(&mut self, len: usize) -> Option<&mut [u8]> {
        self.used = len;
        self.bytes.get_mut(..len)
    }

    /// None if Arrow's bounds cannot hold the size.
    #[cold]
    fn grow(&mut self, more: usize, progress: Progress) -> Option<()> {
        let least = self.used + more;
        let guess = if progress.done < 16 {
            2 * self.used
        } else {
            let likely = self.used as u64 * progress.count as u64 / progress.done as u64;
            likely as usize + likely as usize / 16
        };
        if least > BYTES_MAX {
            return None;
        }
        let mut bytes = pool::take(guess.clamp(least, BYTES_MAX));
        put(&mut bytes, 0, self.filled())?;
        pool::give(std::mem::replace(&mut self.bytes, bytes));
        Some(())
    }

    #[inline]
    fn reserve(&mut self, more: usize, progress: Progress) -> Option<()> {
        if self.used + more > self.bytes.len() {
            self.grow(more, progress)?;
        }
        Some(())
    }

    #[inline]
    pub fn put<const N: usize>(&mut self, item: [u8; N], progress: Progress) -> Option<()> {
        self.reserve(N, progress)?;
        let (out, _) = self
            .bytes
            .get_mut(self.used..)?
            .split_first_chunk_mut::<N>()?;
        *out = item;
        self.used += N;
        Some(())
    }

    /// Add a range of bytes; none if it is not within them.
    #[inline]
    fn add(&mut self, bytes: &[u8], piece: Span, progress: Progress) -> Option<()> {
        let len = piece.len();
        self.reserve(len + WIDE, progress)?;
        let out = self.bytes.get_mut(self.used..)?;
        if len <= WIDE_MAX && piece.start() + len.next_multiple_of(WIDE).max(WIDE) <= bytes.len() {
            let mut at = 0;
            loop {
                let wide: [u8; WIDE] = chunk(bytes, piece.start() + at)?;
                *out.get_mut(at..)?.first_chunk_mut()? = wide;
                at += WIDE;
                if at >= len {
                    break;
                }
            }
        } else {
            out.get_mut(..len)?.copy_from_slice(piece.of(bytes)?);
        }
        self.used += len;
        Some(())
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        pool::give(std::mem::take(&mut self.bytes));
    }
}

/// Start of each value and end of the last one, int32, and the values.
pub struct Pieces {
    pub bounds: Growing,
    pub content: Growing,
}

impl Pieces {
    /// `count` and `bytes` are the final numbers, or estimates.
    pub fn new(count: usize, bytes: usize) -> Option<Pieces> {
        if bytes > BYTES_MAX {
            return None;
        }
        let mut bounds = Growing::new(4 * (count + 1));
        bounds.put([0; 4], Progress { done: 0, count })?;
        Some(Pieces {
            bounds,
            content: Growing::new(bytes),
        })
    }

    #[inline]
    pub fn push(&mut self, bytes: &[u8], piece: Span, progress: Progress) -> Option<()> {
        self.content.add(bytes, piece, progress)?;
        // Does not overflow: `grow` limits the size.
        let end = self.content.used as i32;
        self.bounds.put(end.to_ne_bytes(), progress)
    }

    /// Add values that are already back to back: all bytes except a margin at the end, and the end
    /// of each value.
    #[inline]
    pub fn push_joined(
        &mut self,
        bytes: &[u8],
        all: Span,
        ends: &[i32],
        progress: Progress,
    ) -> Option<()> {
        let from = self.content.used as i32;
        self.content.add(bytes, all, progress)?;
        for end in ends {
            self.bounds.put((from + end).to_ne_bytes(), progress)?;
        }
        Some(())
    }

    pub fn count(&self) -> usize {
        self.bounds.used / 4 - 1
    }

    fn bounds(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let bounds = self.bounds.filled().chunks_exact(4);
        bounds.filter_map(|it| it.first_chunk().map(|it| i32::from_ne_bytes(*it) as usize))
    }

    /// Iterate over the values.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        let content = self.content.filled();
        let pairs = self.bounds().zip(self.bounds().skip(1));
        pairs.filter_map(|(start, end)| content.get(start..end))
    }

    /// Whether each value is UTF-8.
    pub fn is_utf8(&self) -> bool {
        self.content.filled().is_ascii() || self.each().all(|it| std::str::from_utf8(it).is_ok())
    }

    /// A bit for each value, zero if it is empty; none if no value is empty.
    pub fn validity(&self) -> Option<Vec<u8>> {
        let empty = || {
            self.bounds()
                .zip(self.bounds().skip(1))
                .map(|(start, end)| start == end)
        };
        // Not `any`, which the compiler does not vectorise.
        if empty().fold(0, |sum, it| sum + usize::from(it)) == 0 {
            return None;
        }
        let mut bits = vec![0; self.count().div_ceil(8)];
        for (number, is_empty) in empty().enumerate() {
            *bits.get_mut(number / 8)? |= u8::from(!is_empty) << (number % 8);
        }
        Some(bits)
    }
}
