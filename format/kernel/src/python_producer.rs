//! Python functions of producers, for each message.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList};

use crate::reading::put;

/// Bodies of an iterator, and their total size if all are exactly of type `bytes`.
///
/// Ends after the body that reaches the limit of messages or bytes, or that is not `bytes`.
#[pyfunction]
pub fn take_bodies<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyIterator>,
    messages_max: usize,
    bytes_max: usize,
) -> PyResult<(Bound<'py, PyList>, Option<usize>)> {
    let bodies = PyList::empty(py);
    let mut total = Some(0usize);
    let mut source = source.clone();
    for _ in 0..messages_max {
        let Some(body) = source.next().transpose()? else {
            break;
        };
        total = total
            .zip(body.cast_exact::<PyBytes>().ok())
            .map(|(total, body)| total + body.as_bytes().len());
        bodies.append(body)?;
        if total.is_none_or(|total| total >= bytes_max) {
            break;
        }
    }
    Ok((bodies, total))
}

const COUNTER_BYTES: usize = 2;

/// Unique keys in upper-case hex: the same front for each, with consecutive 16-bit counters.
#[pyfunction]
pub fn unique_keys<'py>(
    py: Python<'py>,
    front: &[u8],
    counter: u16,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let digits = |bytes: &[u8]| -> Vec<u8> {
        let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves
            .map(|half| half + if half < 10 { b'0' } else { b'A' - 10 })
            .collect()
    };
    let mut key = digits(&[front, &[0; COUNTER_BYTES]].concat());
    let at = 2 * front.len();
    let mut out = Vec::with_capacity(key.len() * count);
    for number in 0..count {
        let counter = counter.wrapping_add(number as u16);
        put(&mut key, at, &digits(&counter.to_be_bytes()));
        out.extend_from_slice(&key);
    }
    Ok(PyBytes::new(py, &out))
}
