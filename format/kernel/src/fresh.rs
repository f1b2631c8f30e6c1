//! Python bytes that are filled without being zeroed first; PyO3 zeroes its own.
//!
//! No other code has the object before it is returned, only written bytes are read, and the rest is
//! zeroed.

use std::mem::MaybeUninit;
use std::ptr::copy_nonoverlapping;
use std::slice::from_raw_parts_mut;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Out;

/// Bytes of which the first `used` are filled.
pub struct Fresh<'a> {
    bytes: &'a mut [MaybeUninit<u8>],
    used: usize,
}

impl Out for Fresh<'_> {
    fn used(&self) -> usize {
        self.used
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<&mut [u8]> {
        let room = self.bytes.get_mut(self.used..)?.get_mut(..bytes.len())?;
        self.used += bytes.len();
        // SAFETY: both ranges are as long as `bytes` and belong to different objects, and the
        // returned range was written in the line before.
        Some(unsafe {
            copy_nonoverlapping(bytes.as_ptr(), room.as_mut_ptr().cast(), bytes.len());
            from_raw_parts_mut(room.as_mut_ptr().cast(), bytes.len())
        })
    }

    fn truncate(&mut self, len: usize) {
        self.used = self.used.min(len);
    }
}

impl Fresh<'_> {
    fn zero_rest(&mut self) {
        for byte in self.bytes.iter_mut().skip(self.used) {
            byte.write(0);
        }
    }
}

/// New bytes that are filled step by step.
pub struct Filling {
    made: Py<PyBytes>,
    len: usize,
    used: usize,
}

impl Filling {
    pub fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let size = isize::try_from(len).map_err(|_| PyMemoryError::new_err("too many bytes"))?;
        // SAFETY: a new object that belongs to this code, or null and an error.
        let made = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        let made = made.cast_into::<PyBytes>()?.unbind();
        Ok(Filling { made, len, used: 0 })
    }

    /// Fill the bytes after the filled ones.
    pub fn fill<T>(&mut self, _py: Python<'_>, fill: impl FnOnce(&mut Fresh) -> T) -> T {
        // SAFETY: the object has `len` bytes at its address, and no other code has the object
        // before it is returned. The bytes are written as uninitialized ones.
        let bytes = unsafe {
            let start = ffi::PyBytes_AsString(self.made.as_ptr());
            from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), self.len)
        };
        let mut fresh = Fresh {
            bytes,
            used: self.used,
        };
        let found = fill(&mut fresh);
        self.used = fresh.used;
        found
    }

    /// The bytes; those that are not filled are zeros.
    pub fn filled(mut self, py: Python<'_>) -> Bound<'_, PyBytes> {
        self.fill(py, |fresh| fresh.zero_rest());
        self.made.into_bound(py)
    }
}

/// New bytes, filled from the start, with zeros at the end, and the result of `fill`.
pub fn filled<'py, T>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut Fresh) -> T,
) -> PyResult<(Bound<'py, PyBytes>, T)> {
    let mut filling = Filling::new(py, len)?;
    let found = filling.fill(py, fill);
    Ok((filling.filled(py), found))
}
