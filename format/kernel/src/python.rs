//! What Python sees: bytes go in, bytes of columns come out, the interpreter is free meanwhile.

#![deny(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::batch::{self, Rules, Stamp, ENTRY_BYTES};
use crate::reading::put;

const WORD: usize = 8;

/// Native int64 items; NumPy's `tobytes()` of them.
fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = i64> + '_ {
    bytes
        .chunks_exact(WORD)
        .map(|word| word.first_chunk().map_or(0, |it| i64::from_ne_bytes(*it)))
}

/// Check a batch: its layout as five columns int64 and one bool, or None at any doubt.
///
/// Columns: starts, sizes, tag codes, store positions, properties' lengths; which have room.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn check_batch<'py>(
    py: Python<'py>,
    frames: &[u8],
    sizes: &[u8],
    topic: &[u8],
    queue_id: i64,
    body_bytes_max: i64,
    properties_bytes_max: i64,
    record_bytes_max: i64,
    sys_flags_allowed: i32,
    sources_allowed: bool,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let rules = Rules {
        topic,
        queue_id,
        body_bytes_max,
        properties_bytes_max,
        record_bytes_max,
        sys_flags_allowed,
        sources_allowed,
    };
    let count = sizes.len() / WORD;
    let mut is_right = false;
    let columns = PyByteArray::new_with(py, count * (5 * WORD + 1), |out| {
        is_right = py.detach(|| {
            let mut row = 0;
            batch::check(frames, words(sizes), &rules, |found| {
                let fields = [
                    found.start as i64,
                    found.size as i64,
                    found.tag_code,
                    found.store_position as i64,
                    i64::from(found.properties_length),
                ];
                for (column, field) in fields.into_iter().enumerate() {
                    put(out, (column * count + row) * WORD, &field.to_ne_bytes())?;
                }
                put(out, 5 * count * WORD + row, &[u8::from(found.has_room)])?;
                row += 1;
                Some(())
            })
        });
        Ok(())
    })?;
    Ok(is_right.then_some(columns))
}

/// Stamp a batch that was checked: its bytes as they are stored, and its queue entries.
#[pyfunction]
fn stamp_batch<'py>(
    py: Python<'py>,
    frames: &[u8],
    codes: &[u8],
    first_queue_offset: i64,
    first_physical_offset: i64,
    store_timestamp_ms: i64,
    store_host: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let refuse = || PyValueError::new_err("these frames are not the batch that was checked");
    let stamp = Stamp {
        first_queue_offset,
        first_physical_offset,
        store_timestamp_ms,
        store_host: store_host.try_into().map_err(|_| refuse())?,
    };
    let mut stored = None;
    let entries = PyBytes::new_with(py, codes.len() / WORD * ENTRY_BYTES, |entries| {
        let made = PyBytes::new_with(py, frames.len(), |copy| {
            py.detach(|| batch::stamp(frames, words(codes), &stamp, copy, entries))
                .ok_or_else(refuse)
        })?;
        stored = Some(made);
        Ok(())
    })?;
    Ok((stored.ok_or_else(refuse)?, entries))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", crate::INTERFACE)?;
    module.add_function(wrap_pyfunction!(check_batch, module)?)?;
    module.add_function(wrap_pyfunction!(stamp_batch, module)?)?;
    Ok(())
}
