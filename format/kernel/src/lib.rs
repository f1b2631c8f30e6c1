//! The compiled form of `rockoon_format`'s NumPy code, selected by `rockoon_format.kernel`, and
//! `http2`: the sessions of `rockoon_rpc`.
//!
//! 1. A function returns the result of the NumPy code, or reports that it cannot decide; then NumPy
//!    decides. No function here names the reason for a refusal.
//! 2. Unsafe code is in PyO3's macros, in `fresh`, `shared` and `http2::input`, which are short,
//!    and in one line each of `ahead` and `python_http2`.
//! 3. Positions from untrusted bytes are used with `get`, never as an index: a panic would not be
//!    an `Exception` in Python.

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

/// Increased when a Python function changes; `rockoon_format.kernel` accepts only its own number.
pub const INTERFACE: u32 = 23;
