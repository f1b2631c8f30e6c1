//! Asking for memory before it is needed.
//!
//! An instruction that only asks is done at once. One that reads is waited for, and while the oldest one
//! waits, the processor does not come to more than a few of those behind it.

/// Have an item be in the cache soon; nothing is read.
#[inline]
pub fn fetch<T>(item: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = item {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: it is unsafe for its pointer alone, and may be given any. Here something is behind it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    // Elsewhere there is no stable way to say so.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
