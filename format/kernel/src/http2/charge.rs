//! Counts bytes that the calls of a session hold.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Bytes of one call in a total of all calls; subtracted when the call is dropped.
pub struct Charge {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    /// Add bytes to a total; None if the total would exceed a bound.
    pub fn within(total: &Arc<AtomicUsize>, bytes: usize, bytes_max: usize) -> Option<Charge> {
        let charged = total.load(Ordering::Relaxed).saturating_add(bytes);
        (charged <= bytes_max).then(|| {
            total.store(charged, Ordering::Relaxed);
            Charge {
                total: total.clone(),
                bytes,
            }
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
