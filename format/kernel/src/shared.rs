//! Memory of the pool that Python reads, and that returns to the pool when Python releases it.
//!
//! PyO3 requires unsafe code for objects that export a buffer. The buffer is read-only: all of it
//! was written before the export, no code writes to it while the object exists, and each view holds
//! a reference to the object.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::laid::Growing;
use crate::pool;

/// Bytes with Python's buffer protocol.
#[pyclass(frozen, module = "rockoon_kernel")]
pub struct Shared {
    bytes: Vec<u8>,
    used: usize,
}

impl From<Growing> for Shared {
    fn from(filled: Growing) -> Shared {
        let (bytes, used) = filled.into_parts();
        Shared { bytes, used }
    }
}

#[pymethods]
impl Shared {
    fn __len__(&self) -> usize {
        self.used
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = slf.get();
        let filled = own.bytes.get(..own.used).unwrap_or_default();
        let size = isize::try_from(filled.len()).map_err(|_| PyBufferError::new_err("too long"))?;
        let start = filled.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the interpreter passes `view` to fill it. The view holds the object, which keeps
        // the memory at its address, and the argument 1 makes it read-only.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        pool::give(std::mem::take(&mut self.bytes));
    }
}
