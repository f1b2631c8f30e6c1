//! The bytes that h2 reads: those of a turn, where their owner has them.
//!
//! h2 owns its transport, which cannot borrow: bytes are lent for the time of a call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::ReadBuf;

/// Of a buffer that is kept while it is empty.
const KEPT_CAPACITY_MAX: usize = 4 << 10;

#[derive(Default)]
struct State {
    lent: &'static [u8],
    /// Bytes that h2 did not read while they were lent.
    left: Vec<u8>,
    /// The number of bytes of `left` that h2 has read since.
    read: usize,
}

#[derive(Default)]
pub struct Input(Mutex<State>);

impl Input {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let h2 read bytes while `work` runs. What it does not read is copied for later.
    pub fn lend<T>(&self, bytes: &[u8], work: impl FnOnce() -> T) -> T {
        let end = End(self);
        // SAFETY: the bytes are read under the lock only, and `end` forgets them before this
        // function returns or panics.
        self.lock().lent = unsafe { std::mem::transmute::<&[u8], &'static [u8]>(bytes) };
        let found = work();
        drop(end);
        found
    }

    /// Copy bytes into a buffer, as many as it has room for; returns whether there were any.
    pub fn read(&self, buffer: &mut ReadBuf<'_>) -> bool {
        let mut state = self.lock();
        let left = state.left.get(state.read..).unwrap_or_default();
        if left.is_empty() {
            let count = state.lent.len().min(buffer.remaining());
            let (part, behind) = state.lent.split_at(count);
            buffer.put_slice(part);
            state.lent = behind;
            return count > 0;
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        state.read += count;
        if state.read == state.left.len() {
            state.read = 0;
            state.left.clear();
            state.left.shrink_to(KEPT_CAPACITY_MAX);
        }
        true
    }
}

/// The end of a loan.
struct End<'a>(&'a Input);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let rest = std::mem::take(&mut state.lent);
        state.left.extend_from_slice(rest);
    }
}
