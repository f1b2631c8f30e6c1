//! The compiled twin of what `rockoon_format` does with NumPy; `rockoon_format.kernel` chooses. And
//! `http2`: the sessions of `rockoon_rpc`.
//!
//! 1. What NumPy decides it decides alike, or says that it does not know: then NumPy does it.
//!    Nothing here names a reason for a refusal.
//! 2. Unsafe code: what PyO3's macros make, `fresh`, `shared` and `http2::input`, which are
//!    short; and one line each of `ahead` and `python_http2`.
//! 3. A position that comes from bytes is asked for (`get`), never indexed with: there is no
//!    panic, which would be no `Exception` in Python.

pub mod ahead;
pub mod batch;
pub mod checksum;
pub mod columns;
pub mod delivered;
pub mod encode;
pub mod entries;
#[cfg(feature = "python")]
mod fresh;
pub mod http2;
pub mod index;
pub mod laid;
pub mod md5;
pub mod pieces;
pub mod pool;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_delivered;
#[cfg(feature = "python")]
mod python_http2;
#[cfg(feature = "python")]
mod python_logs;
#[cfg(feature = "python")]
mod python_producer;
#[cfg(feature = "python")]
mod python_reading;
#[cfg(feature = "python")]
mod python_wire;
pub mod reading;
pub mod record;
pub mod runs;
pub mod scan;
#[cfg(feature = "python")]
mod shared;
pub mod text;
pub mod window;
pub mod wire;

/// Raised with every change of what Python calls; `rockoon_format.kernel` takes only its own.
pub const INTERFACE: u32 = 22;
