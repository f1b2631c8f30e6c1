//! What Python sees of the passes over a whole log: index by key, queue entries, columns.

#![deny(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::index::{self, Seconds, Slots, UNIT_BYTES};
use crate::pieces::{self, Laid};
use crate::python::{int32s, places, words, Names, WORD};
use crate::reading::put;
use crate::runs::{LogCutter, Rules, Runs};
use crate::scan::ScanEnd;
use crate::table::{table as columns_in_place, NUMBERS, WORDS};

/// Native int64 items.
fn int64s<'py>(py: Python<'py>, items: &[i64]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, items.len() * WORD, |out| {
        for (out, item) in out.chunks_exact_mut(WORD).zip(items) {
            out.copy_from_slice(&item.to_ne_bytes());
        }
        Ok(())
    })
}

type Keys<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Index keys of the records in the first `stop` bytes: hashes, positions of their records and store
/// times, int64 each; None at any doubt.
#[pyfunction]
fn index_keys<'py>(py: Python<'py>, data: &[u8], stop: usize) -> PyResult<Option<Keys<'py>>> {
    let Some(found) = py.detach(|| index::keys(data.get(..stop)?)) else {
        return Ok(None);
    };
    Ok(Some((
        int64s(py, &found.hashes)?,
        int64s(py, &found.positions)?,
        int64s(py, &found.timestamps_ms)?,
    )))
}

/// Slots of an index file, in memory. Any thread may call anything.
#[pyclass(frozen, module = "rockoon_kernel")]
struct IndexSlots {
    slots: Mutex<Slots>,
}

/// What is behind a lock: nothing panics while it is held, and leaves it half done.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl IndexSlots {
    #[new]
    fn new(count: usize) -> PyResult<Self> {
        // Beyond that no unit could be told by its number, nor memory be had.
        if count == 0 || i32::try_from(count).is_err() {
            return Err(PyValueError::new_err("an index file of so many slots"));
        }
        Ok(IndexSlots {
            slots: Mutex::new(Slots::new(count)),
        })
    }

    /// Put keys, columns int64: their units, and how many slots had none.
    #[allow(clippy::too_many_arguments)]
    fn link<'py>(
        &self,
        py: Python<'py>,
        first_unit: i32,
        first_seconds: i64,
        begin_ms: i64,
        hashes: &[u8],
        offsets: &[u8],
        timestamps_ms: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, i64)> {
        let seconds = Seconds {
            first: first_seconds,
            begin_ms,
        };
        let keys = words(hashes).zip(words(offsets)).zip(words(timestamps_ms));
        let keys = keys.map(|((hash, offset), stored_ms)| (hash, offset, stored_ms));
        let mut used = None;
        let units = PyBytes::new_with(py, hashes.len() / WORD * UNIT_BYTES, |units| {
            used = py.detach(|| held(&self.slots).link(first_unit, &seconds, keys, units));
            Ok(())
        })?;
        let used = used.ok_or_else(|| PyValueError::new_err("keys that no index file takes"))?;
        Ok((units, used))
    }

    /// The newest unit of a slot.
    fn newest(&self, slot: usize) -> PyResult<i32> {
        let refuse = || PyValueError::new_err("there is no such slot");
        held(&self.slots).newest(slot).ok_or_else(refuse)
    }

    /// So many slots from one on, as a file has them.
    fn stored<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        count: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let count = count.min(held(&self.slots).count().saturating_sub(first));
        PyBytes::new_with(py, count * 4, |out| {
            py.detach(|| held(&self.slots).stored(first, out));
            Ok(())
        })
    }

    /// Take over slots of a file.
    fn load(&self, py: Python<'_>, first: usize, stored: &[u8]) {
        py.detach(|| held(&self.slots).load(first, stored));
    }

    /// Mark the pages of slots that a file has otherwise.
    fn compare(&self, py: Python<'_>, first: usize, stored: &[u8]) {
        py.detach(|| held(&self.slots).compare(first, stored));
    }

    /// Mark the pages of slots that have units.
    fn mark_used(&self, py: Python<'_>) {
        py.detach(|| held(&self.slots).mark_used());
    }

    /// A byte for each page, 1 if it is marked.
    fn marks<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &held(&self.slots).marks())
    }

    fn unmark(&self) {
        held(&self.slots).unmark();
    }
}

pub type PackedRuns<'py> = (
    Bound<'py, PyByteArray>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Four columns int64 of what `runs::Head` has, bounds, int32, entries.
pub fn packed_runs<'py>(py: Python<'py>, found: &Runs) -> PyResult<PackedRuns<'py>> {
    let (heads, bounds, entries) = found;
    let columns = PyByteArray::new_with(py, heads.len() * 4 * WORD, |out| {
        for (row, head) in heads.iter().enumerate() {
            for (column, field) in head.iter().enumerate() {
                let at = (column * heads.len() + row) * WORD;
                put(out, at, &field.to_ne_bytes());
            }
        }
        Ok(())
    })?;
    Ok((columns, int32s(py, bounds)?, PyBytes::new(py, entries)))
}

/// Cuts queue entries of one piece of a log after another; see `runs::LogCutter`. Any thread may
/// call anything.
#[pyclass(frozen, module = "rockoon_kernel")]
struct QueueCutter {
    cutter: Mutex<LogCutter>,
}

#[pymethods]
impl QueueCutter {
    #[new]
    fn new(
        marks: Vec<(Vec<u8>, i64)>,
        others: Vec<Vec<u8>>,
        unlisted: i32,
        file_entries: i64,
    ) -> Self {
        QueueCutter {
            cutter: Mutex::new(LogCutter::new(Rules {
                marks: marks.into_iter().collect(),
                others: others.into_iter().collect(),
                unlisted,
                file_entries,
            })),
        }
    }

    /// Add the records in the first `stop` bytes; False at any doubt, and none is added.
    fn add(&self, py: Python<'_>, data: &[u8], stop: usize, base: i64) -> bool {
        py.detach(|| {
            data.get(..stop)
                .is_some_and(|bytes| held(&self.cutter).add(bytes, base))
        })
    }

    /// Topics and runs of what was added since; None where there are too many bytes.
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Option<(Names<'py>, PackedRuns<'py>)>> {
        let Some((topics, runs)) = py.detach(|| held(&self.cutter).taken()) else {
            return Ok(None);
        };
        let topics = topics.iter().map(|name| PyBytes::new(py, name)).collect();
        Ok(Some((topics, packed_runs(py, &runs)?)))
    }
}

type Tabled<'py> = (Bound<'py, PyBytes>, Names<'py>, usize, usize, bool);

/// Columns of whole records in their places, as `table::table` has them, the words before the numbers:
/// columns, topics, how many records, where they end, and whether more bytes are needed to tell what
/// is there.
#[pyfunction]
fn table<'py>(
    py: Python<'py>,
    data: &[u8],
    base: i64,
    end: usize,
) -> PyResult<Option<Tabled<'py>>> {
    let Some(found) = py.detach(|| columns_in_place(data, base, end)) else {
        return Ok(None);
    };
    let count = found.words.len();
    let words_bytes = count * WORDS * WORD;
    let columns = PyBytes::new_with(py, words_bytes + count * NUMBERS * 4, |out| {
        py.detach(|| {
            let Some((words, numbers)) = out.split_at_mut_checked(words_bytes) else {
                return;
            };
            columns_of(&found.words, words, i64::to_ne_bytes);
            columns_of(&found.numbers, numbers, i32::to_ne_bytes);
        });
        Ok(())
    })?;
    let topics = found.topics.names.iter().map(|name| PyBytes::new(py, name));
    let more = matches!(found.why, ScanEnd::MoreBytes);
    Ok(Some((columns, topics.collect(), count, found.stop, more)))
}

/// Rows as columns.
fn columns_of<T: Copy, const FIELDS: usize, const BYTES: usize>(
    rows: &[[T; FIELDS]],
    out: &mut [u8],
    bytes_of: fn(T) -> [u8; BYTES],
) {
    let columns = out.chunks_exact_mut((rows.len() * BYTES).max(1));
    for (number, column) in columns.enumerate() {
        for (out, row) in column.chunks_exact_mut(BYTES).zip(rows) {
            if let Some(field) = row.get(number) {
                out.copy_from_slice(&bytes_of(*field));
            }
        }
    }
}

/// Bounds, int32, content, and whether each piece is UTF-8.
type Text<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, bool);

fn text<'py>(py: Python<'py>, laid: &Laid) -> PyResult<Text<'py>> {
    let is_utf8 = py.detach(|| laid.is_utf8());
    let content = PyBytes::new(py, &laid.content);
    Ok((int32s(py, &laid.bounds)?, content, is_utf8))
}

/// Some properties of each section, empty where there is none; None at any doubt.
#[pyfunction]
fn property_values<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
    names: Vec<Vec<u8>>,
) -> PyResult<Option<Vec<Text<'py>>>> {
    let found = py.detach(|| pieces::values(data, places(starts, lengths), &names));
    found
        .map(|found| found.iter().map(|laid| text(py, laid)).collect())
        .transpose()
}

/// All properties of each section: bounds of its pairs, int32, then names and values.
#[pyfunction]
fn property_maps<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<(Bound<'py, PyBytes>, Text<'py>, Text<'py>)>> {
    let Some((rows, names, values)) = py.detach(|| pieces::maps(data, places(starts, lengths)))
    else {
        return Ok(None);
    };
    Ok(Some((
        int32s(py, &rows)?,
        text(py, &names)?,
        text(py, &values)?,
    )))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<IndexSlots>()?;
    module.add_function(wrap_pyfunction!(property_maps, module)?)?;
    module.add_function(wrap_pyfunction!(property_values, module)?)?;
    module.add_function(wrap_pyfunction!(table, module)?)?;
    module.add_class::<QueueCutter>()?;
    module.add_function(wrap_pyfunction!(index_keys, module)?)
}
