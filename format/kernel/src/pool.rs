//! Memory that is used again.
//!
//! Columns of a piece of a log are about a megabyte, and the next piece's as much. Given back to the
//! system and asked for again, each page of it would be zeroed and mapped anew, which costs up to a
//! quarter of what decoding does. What is taken holds whatever was in it before: who takes it writes all that
//! others get to see.

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What waits to be used again.
const BYTES_MAX: usize = 16 << 20;
const PIECES_MAX: usize = 128;
/// Smaller ones cost the allocator nothing.
const PIECE_BYTES_MIN: usize = 4096;

struct Pool {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: Vec::new(),
    bytes: 0,
});

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many bytes at least, and not twice as many.
pub fn take(len: usize) -> Vec<u8> {
    if len >= PIECE_BYTES_MIN {
        let mut pool = pool();
        let fits = |it: &Vec<u8>| len <= it.len() && it.len() / 2 < len;
        // What came last is most likely in the processor's cache.
        if let Some(place) = pool.free.iter().rposition(fits) {
            let found = pool.free.remove(place);
            pool.bytes -= found.len();
            return found;
        }
    }
    // Of few different lengths, so that they fit what is asked for next.
    let step = (len.next_power_of_two() / 8).max(64);
    vec![0; len.next_multiple_of(step)]
}

/// What nobody looks at any more.
pub fn give(bytes: Vec<u8>) {
    if bytes.len() < PIECE_BYTES_MIN {
        return;
    }
    let mut pool = pool();
    if bytes.len() <= BYTES_MAX - pool.bytes && pool.free.len() < PIECES_MAX {
        pool.bytes += bytes.len();
        pool.free.push(bytes);
    }
}
