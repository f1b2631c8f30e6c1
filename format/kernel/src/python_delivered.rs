//! Python functions for messages on their way to receivers.

#![deny(unsafe_code)]

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::columns::piece;
use crate::delivered::{Common, Reserved, Writer};
use crate::python::{places, words, Names};

const ANSWER_BYTES_GUESS: usize = 256;

/// Encodes records as responses; any thread may call it.
#[pyclass(frozen, module = "rockoon_kernel")]
pub struct DeliveredAnswers {
    reserved: Reserved,
}

#[pymethods]
impl DeliveredAnswers {
    /// `reserved` names, and names with the prefix, are not user properties.
    #[new]
    fn new(reserved: Names<'_>, prefix: &[u8]) -> Self {
        let names = reserved.iter().map(|name| name.as_bytes().to_vec());
        DeliveredAnswers {
            reserved: Reserved::new(names, prefix),
        }
    }

    /// Responses for records, each with its five-byte head, the end of each, and the number of
    /// records that are left to the caller and have no bytes.
    ///
    /// Columns int64: starts of records, their sizes, their offsets in the delivery.
    #[allow(clippy::too_many_arguments)]
    fn framed<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        starts: &[u8],
        sizes: &[u8],
        offsets: &[u8],
        topic: &[u8],
        broker: &[u8],
        queue_id: i32,
        attempt: i64,
        handle_front: &[u8],
        handle_back: &[u8],
    ) -> (Bound<'py, PyBytes>, Vec<usize>, usize) {
        let (out, ends, left) = py.detach(|| {
            let mut writer = Writer::new(
                &self.reserved,
                Common {
                    topic,
                    broker,
                    queue_id,
                    attempt,
                    handle_front,
                    handle_back,
                },
            );
            let stored: i64 = words(sizes).map(|size| size.max(0)).sum();
            let guess = starts.len() * ANSWER_BYTES_GUESS / 8 + stored as usize;
            let mut out = Vec::with_capacity(guess.min(2 * data.len() + ANSWER_BYTES_GUESS));
            let mut left = 0;
            let mut ends = Vec::with_capacity(starts.len() / 8);
            for ((start, size), offset) in places(starts, sizes).zip(words(offsets)) {
                let end = out.len();
                let record = piece(data, start, size);
                if record
                    .and_then(|it| writer.add(it, offset, &mut out))
                    .is_none()
                {
                    out.truncate(end);
                    left += 1;
                }
                ends.push(out.len());
            }
            (out, ends, left)
        });
        (PyBytes::new(py, &out), ends, left)
    }
}
