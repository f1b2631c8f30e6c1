//! Records that readers get: their fields as columns, whether they are what was stored, and pieces.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

use crate::columns::{self, PARTS, PREFIX_BYTES};
use crate::entries;
use crate::python::{aside, places, words, WORD};
use crate::reading::put;

/// Prefixes, 48 bytes each, and the nine columns of `frames.Parts` behind them; None at any doubt.
#[pyfunction]
fn locate<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
) -> PyResult<Option<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)>> {
    let count = starts.len() / WORD;
    let mut is_right = None;
    let mut parts = None;
    let prefixes = PyByteArray::new_with(py, count * PREFIX_BYTES, |prefixes| {
        parts = Some(PyByteArray::new_with(py, count * PARTS * WORD, |out| {
            is_right = aside(py, data.len(), || {
                for (row, start) in words(starts).enumerate() {
                    let (prefix, found) = columns::locate(data, start)?;
                    put(prefixes, row * PREFIX_BYTES, prefix)?;
                    for (column, field) in found.into_iter().enumerate() {
                        put(out, (column * count + row) * WORD, &field.to_ne_bytes())?;
                    }
                }
                Some(())
            });
            Ok(())
        })?);
        Ok(())
    })?;
    Ok(is_right.and(parts).map(|parts| (prefixes, parts)))
}

/// Of each whole record one byte: 1 it is damaged, 2 it has a checksum; None at any doubt.
#[pyfunction]
fn compare<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    sizes: &[u8],
    checksums: bool,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let mut is_right = None;
    let made = PyByteArray::new_with(py, starts.len() / WORD, |out| {
        is_right = aside(py, data.len(), || {
            for (out, (start, size)) in out.iter_mut().zip(words(starts).zip(words(sizes))) {
                *out = columns::compare(data, start, size, checksums)?;
            }
            Some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| made))
}

/// Records back to back between two positions, their sizes int64: columns int64, where each starts and
/// the nine of `frames.Parts`, then prefixes, 48 bytes each, then, if asked, what `compare` gives of
/// each; None unless they are records of these sizes.
#[pyfunction]
fn decode<'py>(
    py: Python<'py>,
    data: &[u8],
    sizes: &[u8],
    start: usize,
    end: usize,
    compared: bool,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let count = sizes.len() / WORD;
    let column_bytes = count * WORD;
    let record_bytes = (1 + PARTS) * WORD + PREFIX_BYTES + usize::from(compared);
    let mut is_right = None;
    let made = PyByteArray::new_with(py, count * record_bytes, |out| {
        is_right = aside(py, data.len(), || {
            let (columns, rest) = out.split_at_mut_checked((1 + PARTS) * column_bytes)?;
            let (prefixes, states) = rest.split_at_mut_checked(count * PREFIX_BYTES)?;
            let mut at = start;
            for (row, size) in words(sizes).enumerate() {
                let record = data.get(at..end)?.get(..usize::try_from(size).ok()?)?;
                let found = columns::sound(record)?;
                put(columns, row * WORD, &(at as i64).to_ne_bytes())?;
                for (column, field) in (1..).zip(found.columns(at)) {
                    let place = column * column_bytes + row * WORD;
                    put(columns, place, &field.to_ne_bytes())?;
                }
                put(prefixes, row * PREFIX_BYTES, record.get(..PREFIX_BYTES)?)?;
                if compared {
                    *states.get_mut(row)? = columns::compare_parts(record, &found, true)?;
                }
                at += record.len();
            }
            (at == end).then_some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| made))
}

/// How many leading records, back to back, their sizes int64, are those of a queue's offsets, int64.
///
/// A topic that is not empty is compared with that of the first.
#[pyfunction]
fn matching(
    py: Python<'_>,
    data: &[u8],
    sizes: &[u8],
    queue_offsets: &[u8],
    topic: &[u8],
    queue_id: i64,
) -> usize {
    aside(py, data.len(), || {
        entries::matching(
            data,
            words(sizes).zip(words(queue_offsets)),
            topic,
            queue_id,
        )
    })
}

/// Records that a queue's entries lead to, as many as one read may have: their sizes, int64, and for
/// every run of neighbours where it starts and ends; None where an entry is none of a record.
#[pyfunction]
fn readable<'py>(
    py: Python<'py>,
    entries: &[u8],
    log_min: i64,
    log_end: i64,
    file_bytes: i64,
    messages_max: usize,
    bytes_max: i64,
) -> Option<(Bound<'py, PyBytes>, Vec<entries::Run>)> {
    let log = entries::Log {
        min: log_min,
        end: log_end,
        file_bytes,
    };
    let (sizes, runs) = entries::readable(entries, &log, messages_max, bytes_max)?;
    Some((PyBytes::new(py, &sizes), runs))
}

/// Pieces of bytes; None if one does not lie within them.
#[pyfunction]
fn slices<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<Bound<'py, PyList>>> {
    let Some(pieces) = places(starts, lengths)
        .map(|(start, length)| columns::piece(data, start, length))
        .collect::<Option<Vec<&[u8]>>>()
    else {
        return Ok(None);
    };
    PyList::new(py, pieces.into_iter().map(|piece| PyBytes::new(py, piece))).map(Some)
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(compare, module)?)?;
    module.add_function(wrap_pyfunction!(decode, module)?)?;
    module.add_function(wrap_pyfunction!(locate, module)?)?;
    module.add_function(wrap_pyfunction!(matching, module)?)?;
    module.add_function(wrap_pyfunction!(readable, module)?)?;
    module.add_function(wrap_pyfunction!(slices, module)?)
}
