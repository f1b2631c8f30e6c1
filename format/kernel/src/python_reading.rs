//! Python functions for records of consumers: fields as columns, damage, and ranges.

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

/// Prefixes, 48 bytes each, and then the nine columns of `frames.Parts`; None if undecided.
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

/// A state byte of each whole record: 1 damaged, 2 has a checksum; None if undecided.
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

/// A row for each back-to-back record between two positions, with sizes int64: its start and the
/// nine columns of `frames.Parts`, int64, then its prefix; and, if requested, its state as from
/// `compare`.
///
/// None unless the bytes are whole records of these sizes.
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
    // Checked before the allocation, so that a false count cannot request memory.
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

/// Queue offset, flags, stored body and, if requested, state as from `compare` of the single record
/// between two positions; None if it is not a single whole record.
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

/// Number of leading back-to-back records, with sizes int64, that have a queue's offsets, int64.
///
/// A topic that is not empty is compared with that of the first record.
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

/// Records of a queue's entries, within the limits of one read: their sizes, int64, and start and
/// end of every run of adjacent records; None if an entry is not valid.
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

/// Ranges of bytes; None if one is not within them, or has a negative length.
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
