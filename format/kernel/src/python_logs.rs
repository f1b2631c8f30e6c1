//! Python functions that read a whole log: key index, queue entries, columns.

#![deny(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::fresh::filled;
use crate::index::{self, Seconds, Slots, UNIT_BYTES};
use crate::laid::{Growing, Pieces};
use crate::python::{int32s, places, words, Names, WORD};
use crate::reading::put;
use crate::runs::{LogCutter, Rules, Runs};
use crate::scan::ScanEnd;
use crate::shared::Shared;
use crate::window::{self, Field, Wanted};

type Keys<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Index keys of the records in the first `stop` bytes: hashes, physical offsets of their records
/// and store times, int64 each; None if undecided.
#[pyfunction]
fn index_keys<'py>(py: Python<'py>, data: &[u8], stop: usize, base: i64) -> Option<Keys<'py>> {
    let found = py.detach(|| index::keys(data.get(..stop)?, base))?;
    // Copied to their exact size, because the caller keeps them for long.
    let column = |it: &Growing| PyBytes::new(py, it.filled());
    Some((
        column(&found.hashes),
        column(&found.offsets),
        column(&found.timestamps_ms),
    ))
}

/// Slots of an index file, in memory. Any thread may call all methods.
#[pyclass(frozen, module = "rockoon_kernel")]
struct IndexSlots {
    slots: Mutex<Slots>,
}

/// Lock a mutex, also a poisoned one: no code panics while it holds the lock.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl IndexSlots {
    #[new]
    fn new(count: usize) -> PyResult<Self> {
        // More units cannot be numbered.
        if count == 0 || i32::try_from(count).is_err() {
            return Err(PyValueError::new_err("an index file of so many slots"));
        }
        Ok(IndexSlots {
            slots: Mutex::new(Slots::new(count)),
        })
    }

    /// Add keys, columns int64: returns their units, and how many slots had none.
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
        let (units, used) = filled(py, hashes.len() / WORD * UNIT_BYTES, |units| {
            py.detach(|| held(&self.slots).link(first_unit, &seconds, keys, units))
        })?;
        let used = used.ok_or_else(|| {
            PyValueError::new_err("a hash outside 0 to 2^31 - 1 is not an index hash")
        })?;
        Ok((units, used))
    }

    /// The newest unit of a slot.
    fn newest(&self, slot: usize) -> PyResult<i32> {
        let refuse = || PyValueError::new_err("there is no such slot");
        held(&self.slots).newest(slot).ok_or_else(refuse)
    }

    /// Slots from `first`, in the form of a file.
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

    /// Replace slots by those of a file.
    fn load(&self, py: Python<'_>, first: usize, stored: &[u8]) {
        py.detach(|| held(&self.slots).load(first, stored));
    }

    /// Mark the pages whose slots differ from a file's.
    fn compare(&self, py: Python<'_>, first: usize, stored: &[u8]) {
        py.detach(|| held(&self.slots).compare(first, stored));
    }

    /// Mark the pages of slots that have units.
    fn mark_used(&self, py: Python<'_>) {
        py.detach(|| held(&self.slots).mark_used());
    }

    /// A byte for each page, 1 if the page is marked.
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

/// Four columns int64 of `runs::Head`, bounds, int32, and entries.
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

/// Cuts queue entries of one chunk of a log after another; see `runs::LogCutter`. Any thread may
/// call all methods.
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

    /// Add the records in the first `stop` bytes; False if undecided, and then adds none.
    fn add(&self, py: Python<'_>, data: &[u8], stop: usize, base: i64) -> bool {
        py.detach(|| {
            data.get(..stop)
                .is_some_and(|bytes| held(&self.cutter).add(bytes, base))
        })
    }

    /// Remove and return topics and runs; None if there are too many bytes.
    fn taken<'py>(&self, py: Python<'py>) -> PyResult<Option<(Names<'py>, PackedRuns<'py>)>> {
        let Some((topics, runs)) = py.detach(|| held(&self.cutter).taken()) else {
            return Ok(None);
        };
        let topics = topics.iter().map(|name| PyBytes::new(py, name)).collect();
        Ok(Some((topics, packed_runs(py, &runs)?)))
    }
}

/// Bounds, int32; content; whether each value is UTF-8; a bit for each non-empty value, if one is.
type Text = (Shared, Shared, bool, Option<Vec<u8>>);

/// Requested columns, in this order: fields, topics, bodies, properties by name, and all pairs:
/// bounds of a record's pairs, int32, names and values.
type Columns = (
    Vec<Shared>,
    Option<Text>,
    Option<Text>,
    Vec<Text>,
    Option<(Shared, Text, Text)>,
);

fn text(pieces: Pieces, may_be_missing: bool) -> Text {
    let is_utf8 = pieces.is_utf8();
    let valid = may_be_missing.then(|| pieces.validity()).flatten();
    let (bounds, content) = (pieces.bounds.into(), pieces.content.into());
    (bounds, content, is_utf8, valid)
}

/// Values that are not text.
fn raw(pieces: Pieces) -> Text {
    (pieces.bounds.into(), pieces.content.into(), false, None)
}

/// Records of some bytes; see `window::Window`. Any thread may call all methods.
#[pyclass(frozen, module = "rockoon_kernel")]
struct Window {
    data: Py<PyBytes>,
    window: window::Window,
}

#[pymethods]
impl Window {
    /// The leading whole records whose physical offset is right; None if undecided.
    #[staticmethod]
    fn following(py: Python<'_>, data: Bound<'_, PyBytes>, base: i64, end: usize) -> Option<Self> {
        let bytes = data.as_bytes();
        let window = py.detach(|| window::Window::following(bytes, base, end))?;
        let data = data.unbind();
        Some(Window { data, window })
    }

    /// Records at `starts`, with `sizes`, int64 both; None if one is not whole.
    #[staticmethod]
    fn at(py: Python<'_>, data: Bound<'_, PyBytes>, starts: &[u8], sizes: &[u8]) -> Option<Self> {
        let bytes = data.as_bytes();
        let window = py.detach(|| window::Window::at(bytes, places(starts, sizes)))?;
        let data = data.unbind();
        Some(Window { data, window })
    }

    /// Number of records, their end, and whether more bytes are needed to decode the next one.
    fn extent(&self) -> (usize, usize, bool) {
        let more = matches!(self.window.why, ScanEnd::MoreBytes);
        (self.window.count(), self.window.stop, more)
    }

    /// A column of `window::Field::ALL`, int64 or int32.
    fn field<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.data.as_bytes(py);
        let field = Field::ALL.get(number).copied().ok_or_else(unknown)?;
        PyBytes::new_with(py, self.window.count() * field.bytes(), |out| {
            let done = py.detach(|| self.window.field(bytes, field, out));
            done.ok_or_else(unknown)
        })
    }

    /// Distinct topics, in order of appearance.
    fn topics<'py>(&self, py: Python<'py>) -> Names<'py> {
        let names = self.window.topics.iter();
        names.map(|name| PyBytes::new(py, name)).collect()
    }

    /// System flags of all records, combined with OR.
    fn sys_flags(&self) -> i32 {
        self.window.sys_flags
    }

    /// Columns of `window::Field::ALL` by number, topics, stored bodies, some properties (empty if
    /// a record has none), and all pairs.
    fn columns(
        &self,
        py: Python<'_>,
        fields: Vec<usize>,
        topics: bool,
        bodies: bool,
        names: Vec<Vec<u8>>,
        maps: bool,
    ) -> PyResult<Columns> {
        let bytes = self.data.as_bytes(py);
        let fields = fields.iter().map(|it| Field::ALL.get(*it).copied());
        let fields: Vec<Field> = fields.collect::<Option<_>>().ok_or_else(unknown)?;
        let wanted = Wanted {
            fields: &fields,
            topics,
            bodies,
            names: &names,
            maps,
        };
        let laid = py.detach(|| {
            let found = self.window.columns(bytes, &wanted)?;
            Some((
                found.fields.into_iter().map(Shared::from).collect(),
                found.topics.map(|it| text(it, false)),
                found.bodies.map(raw),
                found.asked.into_iter().map(|it| text(it, true)).collect(),
                found.maps.map(|it| {
                    let (names, values) = (text(it.names, false), text(it.values, false));
                    (it.rows.into(), names, values)
                }),
            ))
        });
        laid.ok_or_else(|| PyValueError::new_err("2 GiB of pieces"))
    }

    /// A byte for each record, 1 if it is damaged; empty if none is.
    fn damaged<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.data.as_bytes(py);
        let found = py.detach(|| self.window.damaged(bytes));
        Ok(PyBytes::new(py, &found.ok_or_else(unknown)?))
    }
}

fn unknown() -> PyErr {
    PyValueError::new_err("there is no such column")
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<IndexSlots>()?;
    module.add_class::<Window>()?;
    module.add_class::<Shared>()?;
    module.add_class::<QueueCutter>()?;
    module.add_function(wrap_pyfunction!(index_keys, module)?)
}
