//! `rockoon_kernel.http2`: sessions of HTTP/2, as `rpc/rockoon_rpc/session.py` states them.

use std::collections::HashMap;
use std::hint::black_box;

use fnv::FnvHashMap;
use http::HeaderName;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use crate::batch::Out;
use crate::fresh::Filling;
use crate::http2::client::ClientSession as Client;
use crate::http2::incoming::Assembled;
use crate::http2::metadata::{self, Headers, Metadata, RequestHead as Head, Value};
use crate::http2::pipe::{Body, Piece};
use crate::http2::server::{Routes, ServerSession as Server};
use crate::http2::{Event, Limits, Pieces};

const READY: u8 = 0;
const MESSAGE: u8 = 1;
const RESET: u8 = 2;
const ROOM: u8 = 3;
const PONG: u8 = 4;
const GOAWAY: u8 = 5;
const WASTE: u8 = 6;
const BROKEN: u8 = 7;
const CALL: u8 = 8;
const OPENED: u8 = 9;
const ENDED: u8 = 10;
const LATE_RESET: u8 = 11;
const AWAITED: u8 = 12;
const ANSWER: u8 = 13;
const FINISHED: u8 = 14;

const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

fn limits_of(object: &Bound<'_, PyAny>) -> PyResult<Limits> {
    Ok(Limits {
        message_bytes_max: object.getattr("message_bytes_max")?.extract()?,
        header_list_bytes_max: object.getattr("header_list_bytes_max")?.extract()?,
        streams_max: object.getattr("streams_max")?.extract()?,
        frame_bytes_max: object.getattr("frame_bytes_max")?.extract()?,
        stream_window_bytes: object.getattr("stream_window_bytes")?.extract()?,
        connection_window_bytes: object.getattr("connection_window_bytes")?.extract()?,
        turn_bytes: object.getattr("turn_bytes")?.extract()?,
        turn_calls: object.getattr("turn_calls")?.extract()?,
        unfinished_bytes_max: object.getattr("unfinished_bytes_max")?.extract()?,
        metadata_bytes_max: object.getattr("metadata_bytes_max")?.extract()?,
    })
}

/// Call with the bytes of a buffer.
fn with_bytes<T>(data: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(work(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(data)?;
    let bytes = buffer
        .as_slice_ptr()
        .ok_or_else(|| PyTypeError::new_err("the bytes are not contiguous"))?;
    // SAFETY: the buffer keeps the bytes where they are. The session reads them before it calls
    // Python, so nothing writes to them meanwhile.
    let bytes = unsafe { bytes.as_ref() };
    Ok(work(bytes))
}

fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    Ok(data.cast::<PyBytes>()?.clone().into())
}

fn pieces_of(message: &Bound<'_, PyAny>) -> PyResult<Pieces<PyBackedBytes>> {
    let pieces = if let Ok(list) = message.cast::<PyList>() {
        Pieces::Many(
            list.iter()
                .map(|piece| bytes_of(&piece))
                .collect::<PyResult<_>>()?,
        )
    } else {
        Pieces::One(bytes_of(message)?)
    };
    if pieces.len() > MESSAGE_BYTES_MAX {
        return Err(PyValueError::new_err(format!(
            "a message of {} bytes is longer than {MESSAGE_BYTES_MAX}",
            pieces.len()
        )));
    }
    Ok(pieces)
}

/// Headers of custom metadata: pairs of a name and text or bytes.
fn headers_of(metadata: &Bound<'_, PyTuple>) -> PyResult<Headers> {
    let mut headers = Headers::with_capacity(metadata.len());
    for pair in metadata.iter_borrowed() {
        let (name, value): (Bound<'_, PyString>, Bound<'_, PyAny>) = pair.extract()?;
        let header = if let Ok(bytes) = value.cast::<PyBytes>() {
            metadata::header(name.to_str()?, bytes.as_bytes())
        } else {
            let text = value
                .cast::<PyString>()
                .map_err(|_| PyTypeError::new_err("a value of metadata is text or bytes"))?;
            metadata::header(name.to_str()?, text.to_str()?.as_bytes())
        };
        headers.push(header.map_err(PyValueError::new_err)?);
    }
    Ok(headers)
}

/// Text of bytes; those that are not UTF-8 become escape sequences, as Python's backslashreplace
/// writes them.
fn text_of<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return PyString::new(py, text);
    }
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    PyString::new(py, &text)
}

impl Body for PyBackedBytes {
    type Message = Filling;
}

impl Assembled for Filling {
    fn with_room(length: usize) -> Option<Self> {
        Python::attach(|py| Filling::new(py, length).ok())
    }

    fn append(&mut self, part: &[u8]) {
        Python::attach(|py| self.fill(py, |out| out.copy(part).is_some()));
    }
}

/// Names of headers as Python's strings, made once.
#[derive(Default)]
struct Names(HashMap<HeaderName, Py<PyString>>);

/// Beyond it names are made for each header: peers choose them.
const NAMES_MAX: usize = 64;

impl Names {
    fn text<'py>(&mut self, py: Python<'py>, name: &HeaderName) -> Bound<'py, PyString> {
        if let Some(text) = self.0.get(name) {
            return text.bind(py).clone();
        }
        let text = PyString::new(py, name.as_str());
        if self.0.len() < NAMES_MAX {
            self.0.insert(name.clone(), text.clone().unbind());
        }
        text
    }

    fn metadata<'py>(
        &mut self,
        py: Python<'py>,
        metadata: Metadata,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut pairs = Vec::with_capacity(metadata.len());
        for (name, value) in metadata {
            let value = match value {
                Value::Text(text) => text_of(py, text.as_bytes()).into_any(),
                Value::Binary(bytes) => PyBytes::new(py, &bytes).into_any(),
            };
            pairs.push((self.text(py, &name), value).into_pyobject(py)?);
        }
        PyTuple::new(py, pairs)
    }
}

fn events_of<'py>(
    py: Python<'py>,
    events: Vec<Event<Filling>>,
    names: &mut Names,
    routes: &[Py<PyAny>],
) -> PyResult<Bound<'py, PyList>> {
    let mut objects: Vec<Bound<'py, PyTuple>> = Vec::with_capacity(events.len());
    let route_of = |route: u32| {
        routes
            .get(route as usize)
            .map(|route| route.bind(py).clone())
    };
    for event in events {
        let object = match event {
            Event::Ready => (READY,).into_pyobject(py),
            Event::Message(stream, message) => {
                (MESSAGE, stream, message.filled(py)).into_pyobject(py)
            }
            Event::Reset(stream, code, reason) => (RESET, stream, code, reason).into_pyobject(py),
            Event::Room(stream) => (ROOM, stream).into_pyobject(py),
            Event::Pong => (PONG,).into_pyobject(py),
            Event::GoAway(last, code, text) => (GOAWAY, last, code, text).into_pyobject(py),
            Event::Waste(idle_frames, resets) => (WASTE, idle_frames, resets).into_pyobject(py),
            Event::Broken(code, reason) => (BROKEN, code, reason).into_pyobject(py),
            Event::Call(stream, route, metadata, timeout, message) => (
                CALL,
                stream,
                route_of(route),
                names.metadata(py, metadata)?,
                timeout,
                message.filled(py),
            )
                .into_pyobject(py),
            Event::Opened(stream, route, metadata, timeout) => (
                OPENED,
                stream,
                route_of(route),
                names.metadata(py, metadata)?,
                timeout,
            )
                .into_pyobject(py),
            Event::Ended(stream) => (ENDED, stream).into_pyobject(py),
            Event::LateReset(stream) => (LATE_RESET, stream).into_pyobject(py),
            Event::Awaited(stream) => (AWAITED, stream).into_pyobject(py),
            Event::Answer(stream, status, details, trailing, message) => {
                let message = message.map(|message| message.filled(py));
                let trailing = names.metadata(py, trailing)?;
                (ANSWER, stream, status, details, trailing, message).into_pyobject(py)
            }
            Event::Finished(stream, status, details, trailing) => {
                let trailing = names.metadata(py, trailing)?;
                (FINISHED, stream, status, details, trailing).into_pyobject(py)
            }
        };
        objects.push(object?);
    }
    PyList::new(py, objects)
}

/// The pieces of an output as Python's objects; parts of long bodies are not copied.
struct Output<'py> {
    py: Python<'py>,
    pieces: Vec<Bound<'py, PyAny>>,
    failure: Option<PyErr>,
}

impl<'py> Output<'py> {
    fn new(py: Python<'py>) -> Self {
        Output {
            py,
            pieces: Vec::new(),
            failure: None,
        }
    }

    fn add(&mut self, piece: Piece<PyBackedBytes>) {
        match self.object(&piece) {
            Ok(object) => self.pieces.push(object),
            Err(failure) => self.failure = Some(failure),
        }
    }

    fn object(&self, piece: &Piece<PyBackedBytes>) -> PyResult<Bound<'py, PyAny>> {
        match piece {
            Piece::Copied(bytes) => Ok(PyBytes::new(self.py, bytes).into_any()),
            Piece::Part(body, offset, length) => {
                let body = (&**body).into_pyobject(self.py)?;
                let part = PySlice::new(self.py, *offset as isize, (offset + length) as isize, 1);
                PyMemoryView::from(&body)?.get_item(part)
            }
        }
    }

    fn list(self) -> PyResult<Bound<'py, PyList>> {
        match self.failure {
            Some(failure) => Err(failure),
            None => PyList::new(self.py, self.pieces),
        }
    }
}

/// The routes of a server, asked for by their paths.
struct Paths {
    route_of: Option<Py<PyAny>>,
    known: FnvHashMap<String, (u32, bool)>,
    routes: Vec<Py<PyAny>>,
    kept: Option<Vec<String>>,
}

impl Routes for Paths {
    fn route_of(&mut self, path: &str) -> Option<(u32, bool)> {
        if let Some(known) = self.known.get(path) {
            return Some(*known);
        }
        Python::attach(|py| {
            let route_of = self.route_of.as_ref()?.bind(py);
            let found = route_of
                .call1((path,))
                .and_then(|found| found.extract::<Option<(Py<PyAny>, bool)>>());
            match found {
                Ok(Some((route, is_stream))) => {
                    let number = self.routes.len() as u32;
                    self.routes.push(route);
                    self.known.insert(path.to_string(), (number, is_stream));
                    Some((number, is_stream))
                }
                Ok(None) => None,
                Err(failure) => {
                    failure.write_unraisable(py, Some(route_of));
                    None
                }
            }
        })
    }

    fn keeps(&self, name: &str) -> bool {
        match &self.kept {
            Some(kept) => kept.iter().any(|each| each == name),
            None => true,
        }
    }
}

/// The pieces of an output, and the events that it caused.
type OutputAndEvents<'py> = (Bound<'py, PyList>, Bound<'py, PyAny>);

#[pyclass(module = "rockoon_kernel.http2")]
struct ServerSession {
    session: Server<PyBackedBytes, Paths>,
    names: Names,
}

#[pymethods]
impl ServerSession {
    #[new]
    #[pyo3(signature = (route_of, limits, kept=None))]
    fn new(
        route_of: Py<PyAny>,
        limits: &Bound<'_, PyAny>,
        kept: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kept = match kept {
            Some(kept) => Some(
                kept.try_iter()?
                    .map(|name| name?.extract())
                    .collect::<PyResult<_>>()?,
            ),
            None => None,
        };
        let paths = Paths {
            route_of: Some(route_of),
            known: FnvHashMap::default(),
            routes: Vec::new(),
            kept,
        };
        Ok(ServerSession {
            session: Server::new(paths, limits_of(limits)?),
            names: Names::default(),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(route_of) = &self.session.routes.route_of {
            visit.call(route_of)?;
        }
        self.session
            .routes
            .routes
            .iter()
            .try_for_each(|route| visit.call(route))
    }

    fn __clear__(&mut self) {
        self.session.routes.route_of = None;
    }

    fn receive<'py>(&mut self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let events = with_bytes(data, |bytes| self.session.receive(bytes))?;
        events_of(
            data.py(),
            events,
            &mut self.names,
            &self.session.routes.routes,
        )
    }

    #[getter]
    fn is_behind(&self) -> bool {
        self.session.is_behind()
    }

    #[getter]
    fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    fn hold(&mut self, stream: u32) {
        self.session.hold(stream);
    }

    fn resume(&mut self, stream: u32) {
        self.session.resume(stream);
    }

    fn output<'py>(&mut self, py: Python<'py>) -> PyResult<OutputAndEvents<'py>> {
        let mut output = Output::new(py);
        self.session.output(|piece| output.add(piece));
        let events = self.session.events();
        let events = if events.is_empty() {
            PyTuple::empty(py).into_any()
        } else {
            events_of(py, events, &mut self.names, &self.session.routes.routes)?.into_any()
        };
        Ok((output.list()?, events))
    }

    #[getter]
    fn unsent_bytes(&self) -> usize {
        self.session.unsent_bytes()
    }

    #[pyo3(signature = (stream, message, framed=false))]
    fn send(&mut self, stream: u32, message: &Bound<'_, PyAny>, framed: bool) -> PyResult<bool> {
        Ok(self.session.send(stream, pieces_of(message)?, framed))
    }

    #[pyo3(signature = (stream, message, trailing=None, framed=false))]
    fn respond(
        &mut self,
        stream: u32,
        message: &Bound<'_, PyAny>,
        trailing: Option<&Bound<'_, PyTuple>>,
        framed: bool,
    ) -> PyResult<bool> {
        let trailing = trailing.map(headers_of).transpose()?.unwrap_or_default();
        let message = pieces_of(message)?;
        Ok(self.session.respond(stream, message, trailing, framed))
    }

    #[pyo3(signature = (stream, metadata=None))]
    fn begin(&mut self, stream: u32, metadata: Option<&Bound<'_, PyTuple>>) -> PyResult<()> {
        let metadata = metadata.map(headers_of).transpose()?.unwrap_or_default();
        self.session.begin(stream, metadata);
        Ok(())
    }

    #[pyo3(signature = (stream, status, details, trailing=None))]
    fn finish(
        &mut self,
        stream: u32,
        status: u32,
        details: &str,
        trailing: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<bool> {
        let trailing = trailing.map(headers_of).transpose()?.unwrap_or_default();
        Ok(self.session.finish(stream, status, details, trailing))
    }

    fn reset(&mut self, stream: u32, code: u32) {
        self.session.reset(stream, code);
    }

    fn ping(&mut self) {
        self.session.ping();
    }

    fn close(&mut self, code: u32, text: &str) {
        self.session.close(code, text);
    }

    fn leave(&mut self, at_once: bool) {
        self.session.leave(at_once);
    }

    #[getter]
    fn open_streams(&self) -> usize {
        self.session.open_streams()
    }
}

#[pyclass(module = "rockoon_kernel.http2")]
struct ClientSession {
    session: Client<PyBackedBytes>,
    names: Names,
}

#[pymethods]
impl ClientSession {
    #[new]
    fn new(limits: &Bound<'_, PyAny>) -> PyResult<Self> {
        let session = Client::new(limits_of(limits)?)
            .ok_or_else(|| PyValueError::new_err("h2 does not accept these limits"))?;
        Ok(ClientSession {
            session,
            names: Names::default(),
        })
    }

    fn receive<'py>(&mut self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let events = with_bytes(data, |bytes| self.session.receive(bytes))?;
        events_of(data.py(), events, &mut self.names, &[])
    }

    #[getter]
    fn is_behind(&self) -> bool {
        self.session.is_behind()
    }

    #[getter]
    fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    fn hold(&mut self, stream: u32) {
        self.session.hold(stream);
    }

    fn resume(&mut self, stream: u32) {
        self.session.resume(stream);
    }

    fn output<'py>(&mut self, py: Python<'py>) -> PyResult<OutputAndEvents<'py>> {
        let mut output = Output::new(py);
        self.session.output(|piece| output.add(piece));
        let events = self.session.events();
        let events = if events.is_empty() {
            PyTuple::empty(py).into_any()
        } else {
            events_of(py, events, &mut self.names, &[])?.into_any()
        };
        Ok((output.list()?, events))
    }

    #[getter]
    fn unsent_bytes(&self) -> usize {
        self.session.unsent_bytes()
    }

    #[pyo3(signature = (head, message, timeout=None, metadata=None, one_answer=true))]
    fn request(
        &mut self,
        head: &RequestHead,
        message: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'_, PyTuple>>,
        one_answer: bool,
    ) -> PyResult<u32> {
        let metadata = metadata.map(headers_of).transpose()?.unwrap_or_default();
        let message = message.map(pieces_of).transpose()?;
        let session = &mut self.session;
        Ok(session.request(&head.0, message, timeout, metadata, one_answer))
    }

    #[pyo3(signature = (stream, message, framed=false))]
    fn send(&mut self, stream: u32, message: &Bound<'_, PyAny>, framed: bool) -> PyResult<bool> {
        Ok(self.session.send(stream, pieces_of(message)?, framed))
    }

    fn end(&mut self, stream: u32) {
        self.session.end(stream);
    }

    fn reset(&mut self, stream: u32, code: u32) {
        self.session.reset(stream, code);
    }

    fn ping(&mut self) {
        self.session.ping();
    }

    fn close(&mut self, code: u32, text: &str) {
        self.session.close(code, text);
    }

    #[getter]
    fn streams_max(&self) -> usize {
        self.session.streams_max()
    }

    #[getter]
    fn open_streams(&self) -> usize {
        self.session.open_streams()
    }
}

/// The headers that all calls of a method have in common.
#[pyclass(frozen, module = "rockoon_kernel.http2")]
struct RequestHead(Head);

#[pyfunction]
#[pyo3(signature = (scheme, authority, path, metadata=None))]
fn request_head(
    scheme: &str,
    authority: &str,
    path: &str,
    metadata: Option<&Bound<'_, PyTuple>>,
) -> PyResult<RequestHead> {
    let metadata = metadata.map(headers_of).transpose()?.unwrap_or_default();
    let head = Head::new(scheme, authority, path, metadata).map_err(PyValueError::new_err)?;
    Ok(RequestHead(head))
}

/// A block of memory that is freed at the start. glibc then keeps up to twice as much free memory
/// (mallopt(3), M_MMAP_THRESHOLD). Otherwise it may return a message's memory to the system each
/// time, and the page faults of 1 MiB cost five times as much as receiving it.
const FIRST_FREED_BYTES: usize = 4 << 20;

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    drop(black_box(Vec::<u8>::with_capacity(FIRST_FREED_BYTES)));
    let http2 = PyModule::new(module.py(), "http2")?;
    http2.add_class::<ServerSession>()?;
    http2.add_class::<ClientSession>()?;
    http2.add_class::<RequestHead>()?;
    http2.add_function(wrap_pyfunction!(request_head, &http2)?)?;
    module.add_submodule(&http2)
}
