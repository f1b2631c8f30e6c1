//! A pool of memory for columns.
//!
//! The columns of a chunk of a log have about a megabyte, and those of the next chunk as much.
//! Without the pool the system would zero and map each page again, which costs up to a quarter of
//! the decoding. A buffer from the pool has undefined content: its user must write every byte that
//! is read later.

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum size of the free buffers.
const BYTES_MAX: usize = 16 << 20;
const PIECES_MAX: usize = 128;
/// Smaller buffers are cheap in the allocator.
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

/// A buffer of at least this many bytes, and less than twice as many.
pub fn take(len: usize) -> Vec<u8> {
    if len >= PIECE_BYTES_MIN {
        let mut pool = pool();
        let fits = |it: &Vec<u8>| len <= it.len() && it.len() / 2 < len;
        // The most recent buffer is most likely in the processor's cache.
        if let Some(place) = pool.free.iter().rposition(fits) {
            let found = pool.free.remove(place);
            pool.bytes -= found.len();
            return found;
        }
    }
    // Few different lengths, so that the buffers fit later requests.
    let step = (len.next_power_of_two() / 8).max(64);
    vec![0; len.next_multiple_of(step)]
}

/// Return a buffer that is no longer used.
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
