//! Prefetching of memory.
//!
//! A prefetch instruction completes immediately. A read waits for memory, and while the oldest read
//! waits, the processor can execute only a few later instructions.

/// Prefetch an item into the cache; reads nothing.
#[inline]
pub fn fetch<T>(item: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = item {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch accepts any pointer and reads nothing. This pointer is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    // Other platforms have no stable prefetch.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
