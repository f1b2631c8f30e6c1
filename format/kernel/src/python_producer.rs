//! What a producer does for each message that is neither a record nor checked by one, and what it
//! and a broker say to each other.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString};

use crate::reading::put;
use crate::wire;

/// Bodies of an iterator, and how many bytes they have if all are `bytes`, of no subclass.
///
/// Ends with the body that makes it so many messages or bytes, or is no `bytes`.
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

/// Unique keys in upper-case hex: so many times the same front, each with the next 16-bit counter.
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

/// Topic, queue id, where the records are, their sizes, route revision and request id.
type Batch<'py> = (
    Bound<'py, PyString>,
    i32,
    (usize, usize),
    Bound<'py, PyBytes>,
    i64,
    i64,
);

/// The batches of a request of an append stream; None where protobuf is to read it.
#[pyfunction]
pub fn append_request<'py>(
    py: Python<'py>,
    message: &Bound<'py, PyBytes>,
) -> Option<Vec<Batch<'py>>> {
    let batch = |of: wire::Request| {
        (
            PyString::new(py, of.topic),
            of.queue_id,
            (of.frames.start, of.frames.end),
            PyBytes::new(py, of.sizes),
            of.route_revision,
            of.request_id,
        )
    };
    let found = wire::requests(message.as_bytes())?;
    Some(found.into_iter().map(batch).collect())
}

/// A number of an idempotent producer, which is not told; messages, queue offset, physical offset,
/// store time and host of a batch.
type Run<'py> = (i64, i32, i64, i64, i64, Bound<'py, PyBytes>);

/// The answer to a request whose batches went there, at least one, each behind its request id.
#[pyfunction]
pub fn append_reply<'py>(
    py: Python<'py>,
    batches: Vec<(i64, Run<'py>)>,
) -> Option<Bound<'py, PyBytes>> {
    let stored: Vec<wire::Stored> = batches
        .iter()
        .map(
            |(request_id, (_, messages, first, offset, time, host))| wire::Stored {
                request_id: *request_id,
                first_queue_offset: *first,
                first_physical_offset: *offset,
                messages: *messages,
                store_timestamp_ms: *time,
                store_host: host.as_bytes(),
            },
        )
        .collect();
    wire::reply(&stored).map(|reply| PyBytes::new(py, &reply))
}

/// Request id, queue offset, physical offset, messages, store time and host.
type Stored<'py> = (i64, i64, i64, i32, i64, Bound<'py, PyBytes>);

/// Where the batches of a request went; None where protobuf is to read the answer.
#[pyfunction]
pub fn appended<'py>(py: Python<'py>, message: &Bound<'py, PyBytes>) -> Option<Vec<Stored<'py>>> {
    let batch = |of: wire::Stored| {
        (
            of.request_id,
            of.first_queue_offset,
            of.first_physical_offset,
            of.messages,
            of.store_timestamp_ms,
            PyBytes::new(py, of.store_host),
        )
    };
    let found = wire::stored(message.as_bytes())?;
    Some(found.into_iter().map(batch).collect())
}
