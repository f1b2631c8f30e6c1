//! Python functions for messages between brokers and their clients.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::wire;

/// Topic, queue id, range of the records, their sizes, route revision and request id.
type Batch<'py> = (
    Bound<'py, PyString>,
    i32,
    (usize, usize),
    Bound<'py, PyBytes>,
    i64,
    i64,
);

/// The batches of a request of an append stream; None if protobuf must parse it.
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

/// An unused number of an idempotent producer; messages, queue offset, physical offset, store time
/// and host of a batch.
type Run<'py> = (i64, i32, i64, i64, i64, Bound<'py, PyBytes>);

/// The response to a request with at least one stored batch, each after its request id.
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

/// Positions of the batches of a request; None if protobuf must parse the response.
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

/// Status, next, minimum and maximum offset, the records' source and range in it, their sizes,
/// subscription id, and whether the subscription has ended.
type Found<'py> = (
    i32,
    i64,
    i64,
    i64,
    Bound<'py, PyBytes>,
    Option<(usize, usize)>,
    Bound<'py, PyBytes>,
    i64,
    bool,
);

/// The responses in a message of a pull stream; None if protobuf must parse it. Records of several
/// responses are copied, so that one response does not keep the others in memory.
#[pyfunction]
pub fn pull_answers<'py>(
    py: Python<'py>,
    message: &Bound<'py, PyBytes>,
) -> Option<Vec<Found<'py>>> {
    let bytes = message.as_bytes();
    let all = wire::found(bytes)?;
    let is_alone = all.len() == 1;
    let answer = |of: wire::Found<'_>| {
        let (source, bounds) = if is_alone {
            (message.clone(), Some((of.frames.start, of.frames.end)))
        } else {
            (PyBytes::new(py, bytes.get(of.frames)?), None)
        };
        Some((
            of.status,
            of.next_offset,
            of.min_offset,
            of.max_offset,
            source,
            bounds,
            PyBytes::new(py, of.sizes),
            of.subscription_id,
            of.ended,
        ))
    };
    all.into_iter().map(answer).collect()
}

/// The part of a pull response before the records; without a subscription, of a unary pull.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (status, next_offset, min_offset, max_offset, frames_bytes, sizes, subscription_id, ended))]
pub fn pull_front<'py>(
    py: Python<'py>,
    status: i32,
    next_offset: i64,
    min_offset: i64,
    max_offset: i64,
    frames_bytes: usize,
    sizes: &[u8],
    subscription_id: Option<i64>,
    ended: bool,
) -> Bound<'py, PyBytes> {
    let found = wire::Found {
        status,
        next_offset,
        min_offset,
        max_offset,
        frames: 0..frames_bytes,
        sizes,
        subscription_id: subscription_id.unwrap_or_default(),
        ended,
    };
    PyBytes::new(py, &wire::front(&found, subscription_id.is_some()))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(append_reply, module)?)?;
    module.add_function(wrap_pyfunction!(append_request, module)?)?;
    module.add_function(wrap_pyfunction!(appended, module)?)?;
    module.add_function(wrap_pyfunction!(pull_answers, module)?)?;
    module.add_function(wrap_pyfunction!(pull_front, module)?)
}
