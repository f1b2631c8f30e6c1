//! Records that readers get: their fields as columns, whether they are what was stored, and pieces.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

use crate::batch::Out;
use crate::columns::{self, PARTS, PREFIX_BYTES};
use crate::entries;
use crate::fresh::filled;
use crate::python::{aside, places, words, WORD};
use crate::reading::{be_i64, put};
use crate::record::{length, AT_QUEUE_OFFSET, RECORD_BYTES_MIN};

const ROW_BYTES: usize = (1 + PARTS) * WORD + PREFIX_BYTES;

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

/// A row for each of the records back to back between two positions, of sizes int64: int64 where it
/// starts and the nine of `frames.Parts`, then its prefix; and, if asked, what `compare` gives of each.
///
/// None unless they are records of these sizes.
#[pyfunction]
fn decode<'py>(
    py: Python<'py>,
    data: &[u8],
    sizes: &[u8],
    start: usize,
    end: usize,
    compared: bool,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let count = sizes.len() / WORD;
    // Before there is memory for them: claims cost nobody else anything.
    if end > data.len() || count > end.saturating_sub(start) / RECORD_BYTES_MIN {
        return Ok(None);
    }
    let (rows, states) = filled(py, count * ROW_BYTES, |out| {
        aside(py, data.len(), || {
            let mut states = Vec::with_capacity(if compared { count } else { 0 });
            let mut at = start;
            for size in words(sizes) {
                let record = data.get(at..end)?.get(..usize::try_from(size).ok()?)?;
                let found = columns::sound(record)?;
                let mut row = [0; ROW_BYTES];
                let (fields, prefix) = row.split_at_mut_checked((1 + PARTS) * WORD)?;
                let values = [at as i64].into_iter().chain(found.columns(at));
                for (out, value) in fields.chunks_exact_mut(WORD).zip(values) {
                    put(out, 0, &value.to_ne_bytes())?;
                }
                put(prefix, 0, record.get(..PREFIX_BYTES)?)?;
                out.copy(&row)?;
                if compared {
                    states.push(columns::compare_parts(record, &found, true)?);
                }
                at += record.len();
            }
            (at == end).then_some(states)
        })
    })?;
    Ok(states.map(|states| (rows, PyBytes::new(py, &states))))
}

/// Of the only record between two positions its queue offset, its flags, its body as stored and, if
/// asked, what `compare` gives; None unless it is one.
#[pyfunction]
fn only_record<'py>(
    py: Python<'py>,
    data: &[u8],
    start: usize,
    end: usize,
    compared: bool,
) -> Option<(i64, i32, Bound<'py, PyBytes>, u8)> {
    let record = data.get(start..end)?;
    let found = columns::sound(record)?;
    let body = record
        .get(found.body_start..)?
        .get(..length(found.body_length))?;
    let state = if compared {
        columns::compare_parts(record, &found, true)?
    } else {
        0
    };
    let queue_offset = be_i64(record, AT_QUEUE_OFFSET)?;
    Some((queue_offset, found.sys_flag, PyBytes::new(py, body), state))
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
fn records_to_read<'py>(
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
    let (sizes, runs) = entries::records_to_read(entries, &log, messages_max, bytes_max)?;
    Some((PyBytes::new(py, &sizes), runs))
}

/// Pieces of bytes; None if one does not lie within them, or is of a negative length.
#[pyfunction]
fn slices<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<Bound<'py, PyList>>> {
    if starts.len() != lengths.len() {
        return Ok(None);
    }
    let Some(pieces) = places(starts, lengths)
        .map(|(start, length)| columns::piece(data, start, length).filter(|_| length >= 0))
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
    module.add_function(wrap_pyfunction!(only_record, module)?)?;
    module.add_function(wrap_pyfunction!(records_to_read, module)?)?;
    module.add_function(wrap_pyfunction!(slices, module)?)
}
