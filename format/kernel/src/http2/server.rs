//! A server's session.

use std::future::Future;
use std::mem::forget;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fnv::FnvHashMap;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::charge::Charge;
use super::core::{Core, End, Limits};
use super::incoming::Refusal;
use super::late::EndedCalls;
use super::metadata::{self, Headers, Metadata};
use super::pipe::{Body, Outgoing, Piece, Wire};
use super::stream::{Half, Step};
use super::{Event, Pieces};

/// Streams that were reset are remembered for so long: the peer may still send frames of them.
const RESET_STREAMS_MAX: usize = 1_000;
const RESET_SECONDS: u64 = 2;

/// Resets that a stream beyond `streams_max` counts as. Its peer ignores SETTINGS. An honest peer
/// opens more streams only before it has received SETTINGS.
const REFUSED_RESETS: u32 = 20;

const STREAM_MAX: u32 = i32::MAX as u32;

/// The methods that the server has, and the headers that it keeps.
pub trait Routes {
    /// A number for the method of a path, and whether its requests are a stream.
    fn route_of(&mut self, path: &str) -> Option<(u32, bool)>;
    fn keeps(&self, name: &str) -> bool;
}

enum Link<B: Body> {
    Handshake(Handshake<Wire<B>, Outgoing<B>>),
    Open(Connection<Wire<B>, Outgoing<B>>),
    Ended,
}

enum Answer<B: Body> {
    Awaited(SendResponse<Outgoing<B>>),
    /// Its headers are sent.
    Begun(SendStream<Outgoing<B>>),
    /// All of it is queued. The handle is kept until it has left: h2 forgets a stream that the peer
    /// resets before that only if there is one.
    Queued(Option<SendStream<Outgoing<B>>>),
}

enum Requests<M> {
    /// Of a method with one request: what CALL reports with it.
    One {
        route: u32,
        metadata: Metadata,
        timeout: Option<f64>,
        message: Option<M>,
        is_reported: bool,
    },
    Many,
    Complete,
    /// The session has refused them, and reported it.
    Refused,
}

struct Call<B: Body> {
    half: Half<B::Message>,
    answer: Answer<B>,
    requests: Requests<B::Message>,
    _metadata: Charge,
}

impl<B: Body> Call<B> {
    /// Whether an event has named the call.
    fn is_reported(&self) -> bool {
        match self.requests {
            Requests::One { is_reported, .. } => is_reported,
            Requests::Many | Requests::Complete => true,
            Requests::Refused => false,
        }
    }

    /// Send the headers of the answer, if they are not sent.
    fn begin(&mut self, more: Headers) {
        if let Answer::Awaited(answer) = &mut self.answer {
            let mut response = Response::new(());
            *response.headers_mut() = metadata::answer_headers(more);
            self.answer = match answer.send_response(response, false) {
                Ok(stream) => Answer::Begun(stream),
                // The peer has reset the stream.
                Err(_) => Answer::Queued(None),
            };
        }
    }

    /// Queue a message; returns whether it leaves with the next output.
    fn send(&mut self, core: &mut Core<B>, message: Pieces<B>, is_framed: bool) -> bool {
        self.begin(Headers::new());
        let Answer::Begun(stream) = &mut self.answer else {
            return false;
        };
        let fits = Half::<B::Message>::fits(core, stream, &message);
        self.half.send(core, stream, message, is_framed, false);
        fits
    }

    /// Queue the status; the call is over when all is sent.
    fn finish(&mut self, status: u32, details: &str, more: Headers) {
        match std::mem::replace(&mut self.answer, Answer::Queued(None)) {
            Answer::Awaited(mut answer) => send_status_alone(&mut answer, status, details, more),
            Answer::Begun(mut stream) => {
                let mut trailers = HeaderMap::with_capacity(1);
                metadata::add_status(&mut trailers, status, details, more);
                let _ = stream.send_trailers(trailers);
                self.answer = Answer::Queued(Some(stream));
            }
            Answer::Queued(stream) => self.answer = Answer::Queued(stream),
        }
    }

    /// The code with which h2 has reset the stream. Nothing else reports the reset of a call whose
    /// requests are complete.
    fn poll_reset(&mut self) -> Option<Reason> {
        let mut context = Context::from_waker(Waker::noop());
        let polled = match &mut self.answer {
            Answer::Awaited(answer) => answer.poll_reset(&mut context),
            Answer::Begun(stream) | Answer::Queued(Some(stream)) => stream.poll_reset(&mut context),
            Answer::Queued(None) => Poll::Pending,
        };
        match polled {
            Poll::Ready(Ok(reason)) => Some(reason),
            _ => None,
        }
    }

    fn reset(&mut self, reason: Reason) {
        match &mut self.answer {
            Answer::Awaited(answer) => answer.send_reset(reason),
            Answer::Begun(stream) | Answer::Queued(Some(stream)) => stream.send_reset(reason),
            Answer::Queued(None) => {}
        }
    }
}

/// Send an answer that is a status only.
fn send_status_alone<B: Body>(
    answer: &mut SendResponse<Outgoing<B>>,
    status: u32,
    details: &str,
    more: Headers,
) {
    let mut response = Response::new(());
    let mut headers = metadata::answer_headers(Headers::new());
    metadata::add_status(&mut headers, status, details, more);
    *response.headers_mut() = headers;
    // It fails for a stream that the peer has reset.
    let _ = answer.send_response(response, true);
}

/// Whether the requests are a stream, the route, the metadata and the timeout of a call.
type CallHead = (bool, u32, Metadata, Option<f64>);
type Accepted<B> = (Request<RecvStream>, SendResponse<Outgoing<B>>);

pub struct ServerSession<B: Body, R: Routes> {
    core: Core<B>,
    link: Link<B>,
    /// In boxes: an idle connection keeps the table, and not room for calls.
    streams: FnvHashMap<u32, Box<Call<B>>>,
    pub routes: R,
    accepted: Vec<Accepted<B>>,
    ended: EndedCalls,
    refuses: bool,
    metadata_bytes: Arc<AtomicUsize>,
}

impl<B: Body, R: Routes> ServerSession<B, R> {
    pub fn new(routes: R, limits: Limits) -> Self {
        let core = Core::new(limits, true);
        let limits = &core.limits;
        let handshake = Builder::new()
            .initial_window_size(limits.stream_window_bytes)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_frame_size(limits.frame_bytes_max)
            .max_header_list_size(limits.header_list_bytes_max)
            .max_concurrent_streams(limits.streams_max)
            .max_concurrent_reset_streams(RESET_STREAMS_MAX)
            .reset_stream_duration(Duration::from_secs(RESET_SECONDS))
            // The owner has budgets, which are for a time and not for the whole connection.
            .max_local_error_reset_streams(None)
            .max_pending_accept_reset_streams(usize::MAX)
            .data_frame_budget(usize::MAX)
            .handshake(Wire(core.pipe.clone()));
        let mut session = ServerSession {
            core,
            link: Link::Handshake(handshake),
            streams: FnvHashMap::default(),
            routes,
            accepted: Vec::new(),
            ended: EndedCalls::default(),
            refuses: false,
            metadata_bytes: Arc::default(),
        };
        session.poll();
        session
    }

    // Input.

    pub fn receive(&mut self, data: &[u8]) -> Vec<Event<B::Message>> {
        if self.core.is_dirty {
            self.flush();
        }
        if !self.core.is_over {
            let turn = self.core.begin_turn(data, &self.streams);
            if self.core.notes.begins_wrong {
                self.close(super::PROTOCOL_ERROR, "the first frame is not SETTINGS");
            } else {
                let pipe = self.core.pipe.clone();
                pipe.with_input(&turn, || self.poll());
                self.handle_turn();
            }
        }
        self.core.take_events()
    }

    pub fn events(&mut self) -> Vec<Event<B::Message>> {
        self.core.take_events()
    }

    pub fn is_behind(&self) -> bool {
        self.core.is_behind()
    }

    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    pub fn hold(&mut self, stream: u32) {
        if let Some(call) = known(&mut self.streams, stream) {
            call.half.hold();
        }
    }

    pub fn resume(&mut self, stream: u32) {
        if let Some(call) = known(&mut self.streams, stream) {
            call.half.resume(&mut self.core);
            self.set_window();
            self.core.is_dirty = true;
        }
    }

    // Output.

    /// Pass on the pieces of the output.
    pub fn output(&mut self, each: impl FnMut(Piece<B>)) {
        if self.core.is_dirty || self.core.pipe.is_blocked() {
            self.flush();
        }
        self.core.pipe.take_output(each);
    }

    pub fn unsent_bytes(&self) -> usize {
        self.core.pipe.unsent_bytes()
    }

    pub fn send(&mut self, stream: u32, message: Pieces<B>, is_framed: bool) -> bool {
        let Some(call) = known(&mut self.streams, stream) else {
            return true;
        };
        if call.send(&mut self.core, message, is_framed) {
            return true;
        }
        self.has_left(stream)
    }

    pub fn respond(
        &mut self,
        stream: u32,
        message: Pieces<B>,
        trailing: Headers,
        is_framed: bool,
    ) -> bool {
        let Some(call) = known(&mut self.streams, stream) else {
            return true;
        };
        if !call.send(&mut self.core, message, is_framed) {
            return self.finish(stream, super::OK, "", trailing);
        }
        call.finish(super::OK, "", trailing);
        call.half.stop(&mut self.core);
        self.forget(stream);
        true
    }

    pub fn begin(&mut self, stream: u32, more: Headers) {
        if let Some(call) = known(&mut self.streams, stream) {
            call.begin(more);
            self.core.is_dirty = true;
        }
    }

    pub fn finish(&mut self, stream: u32, status: u32, details: &str, trailing: Headers) -> bool {
        let Some(call) = known(&mut self.streams, stream) else {
            return true;
        };
        call.finish(status, details, trailing);
        call.half.stop(&mut self.core);
        self.core.is_dirty = true;
        self.has_left(stream)
    }

    pub fn reset(&mut self, stream: u32, code: u32) {
        if known(&mut self.streams, stream).is_none() {
            return;
        }
        if let Some(mut call) = self.streams.remove(&stream) {
            call.reset(Reason::from(code));
            if !matches!(call.requests, Requests::Complete) {
                self.core.ended_early();
            }
            call.half.stop(&mut self.core);
            // The message that is on its way is discarded.
            self.core.pipe.admit_frame();
            self.core.is_dirty = true;
            self.flush();
        }
    }

    pub fn ping(&mut self) {
        self.core.ping();
    }

    pub fn close(&mut self, code: u32, text: &str) {
        if self.core.is_over {
            return;
        }
        self.core.pipe.open_wide();
        self.flush();
        if !self.core.is_over {
            self.core.goaway(self.core.highest, code, text);
            self.end(End::Broken(code, text.to_string()));
        }
    }

    pub fn leave(&mut self, at_once: bool) {
        if self.core.is_over || self.refuses {
            return;
        }
        self.refuses = at_once;
        // Before its own frames, h2 puts out what it has.
        self.flush();
        let last = if at_once {
            self.core.highest
        } else {
            STREAM_MAX
        };
        self.core.goaway(last, super::NO_ERROR, "");
    }

    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    // h2.

    /// Let h2 read its input and write its output.
    fn poll(&mut self) {
        self.core.polled();
        let (link, accepted) = (&mut self.link, &mut self.accepted);
        let polled = catch_unwind(AssertUnwindSafe(|| advance(link, accepted)));
        match polled {
            Ok(Ok(is_new)) => {
                self.core.put_own_frames();
                if is_new {
                    self.opened();
                }
            }
            Ok(Err(end)) => {
                if let (End::Broken(code, _), Link::Handshake(_)) = (&end, &self.link) {
                    self.core.goaway(0, *code, "this is not HTTP/2");
                }
                self.end(end);
            }
            Err(_) => {
                // h2's locks are poisoned: its objects panic when they are dropped.
                forget(std::mem::replace(&mut self.link, Link::Ended));
                forget(std::mem::take(&mut self.streams));
                forget(std::mem::take(&mut self.accepted));
                let last = self.core.highest;
                self.core.goaway(last, super::INTERNAL_ERROR, "");
                let reason = "h2 has panicked".to_string();
                self.core.end(End::Broken(super::INTERNAL_ERROR, reason));
            }
        }
    }

    /// The peer's preface has arrived.
    fn opened(&mut self) {
        if let Link::Open(connection) = &mut self.link {
            self.core.set_pings(connection.ping_pong());
        }
        if self.core.is_dirty {
            self.poll();
        }
    }

    fn end(&mut self, end: End) {
        self.core.end(end);
        self.streams.clear();
        self.accepted.clear();
        self.link = Link::Ended;
    }

    fn set_window(&mut self) {
        if let Link::Open(connection) = &mut self.link {
            if let Some(window) = self.core.new_window() {
                connection.set_target_window_size(window);
                self.core.is_dirty = true;
            }
            if let Some(window) = self.core.new_window_of_streams() {
                // It fails while the peer has not acknowledged SETTINGS; a later turn tries again.
                if connection.set_initial_window_size(window).is_ok() {
                    self.core.set_window_of_streams(window);
                }
            }
        }
    }

    /// Put out what is queued, as far as windows and the output have room.
    fn flush(&mut self) {
        if !self.core.is_over && self.core.pipe.unblock() {
            self.poll();
        }
        self.settle();
    }

    /// Note which messages have left.
    fn settle(&mut self) {
        for number in self.core.pipe.take_drained() {
            let Some(call) = self.streams.get_mut(&number) else {
                continue;
            };
            call.half.queued = call.half.queued.saturating_sub(1);
            if call.half.queued > 0 {
                continue;
            }
            let wants_room = std::mem::take(&mut call.half.wants_room);
            if matches!(call.answer, Answer::Queued(_)) {
                self.forget(number);
            }
            if wants_room {
                self.core.event(Event::Room(number));
            }
        }
    }

    /// Whether all that was queued on a stream has left; else ROOM follows.
    fn has_left(&mut self, stream: u32) -> bool {
        self.flush();
        let Some(call) = self.streams.get_mut(&stream) else {
            return true;
        };
        if call.half.queued > 0 {
            call.half.wants_room = true;
            return false;
        }
        if matches!(call.answer, Answer::Queued(_)) {
            self.forget(stream);
        }
        true
    }

    /// The answer has left.
    fn forget(&mut self, stream: u32) {
        if let Some(call) = self.streams.remove(&stream) {
            if matches!(call.requests, Requests::Complete) {
                self.ended.ended(stream);
            } else {
                self.core.ended_early();
                // Dropping the handles resets the stream; the next output has the frame.
                self.core.is_dirty = true;
            }
        }
    }

    // Turns.

    fn handle_turn(&mut self) {
        if self.core.is_over {
            return;
        }
        self.core.report_ready();
        let opened = self.core.notes.opened;
        // Streams that h2 has reset or refused by itself.
        let refused = opened.saturating_sub(self.accepted.len() as u32);
        let is_full =
            self.streams.len() + self.accepted.len() >= self.core.limits.streams_max as usize;
        self.core.resets += if is_full {
            refused * REFUSED_RESETS
        } else {
            refused
        };
        let mut resets = std::mem::take(&mut self.core.notes.resets);
        let mut accepted = std::mem::take(&mut self.accepted);
        for (request, answer) in accepted.drain(..) {
            let number = answer.stream_id().as_u32();
            self.core.highest = self.core.highest.max(number);
            self.ended.opened(number);
            match resets.iter().position(|(stream, _)| *stream == number) {
                Some(at) => {
                    resets.swap_remove(at);
                    self.core.resets += 1;
                }
                None => self.accept(number, request, answer),
            }
        }
        // An idle connection keeps room for one.
        if accepted.capacity() == 1 {
            self.accepted = accepted;
        }
        for (number, code) in resets {
            self.peer_reset(number, code);
        }
        for number in std::mem::take(&mut self.core.unread) {
            self.read(number);
        }
        let touched = std::mem::take(&mut self.core.notes.touched);
        for data in &touched {
            if !self.read(data.stream) {
                self.core.late_data(data);
            }
        }
        self.core.notes.touched = touched;
        // Behind those with DATA, so that calls keep the order of their requests.
        let headed = std::mem::take(&mut self.core.notes.headed);
        for number in &headed {
            self.read(*number);
        }
        self.core.notes.headed = headed;
        if let Some((last, code, text)) = self.core.notes.goaway.take() {
            self.core.event(Event::GoAway(last, code, text));
        }
        self.set_window();
        self.core.end_turn();
        self.settle();
    }

    fn peer_reset(&mut self, number: u32, code: u32) {
        self.core.resets += 1;
        if let Some(mut call) = self.streams.remove(&number) {
            call.half.stop(&mut self.core);
            if call.is_reported() {
                let reason = format!("the peer has reset the stream: {:?}", Reason::from(code));
                self.core.event(Event::Reset(number, code, reason));
            }
        } else if self.ended.was_ended(number) {
            self.core.event(Event::LateReset(number));
        }
    }

    /// A stream that the peer has opened.
    fn accept(
        &mut self,
        number: u32,
        request: Request<RecvStream>,
        mut answer: SendResponse<Outgoing<B>>,
    ) {
        // What ends here is sent with the turn; a request that is not complete is given up when
        // its handles are dropped.
        self.core.is_dirty = true;
        let (head, recv) = request.into_parts();
        let ends_early = !recv.is_end_stream();
        if self.refuses {
            self.core.resets += 1;
            answer.send_reset(Reason::REFUSED_STREAM);
        } else if head.method != Method::POST || !metadata::is_grpc(&head.headers) {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let _ = answer.send_response(response, true);
        } else {
            match self.call_of(&head) {
                Ok(found) => return self.begin_call(number, found, recv, answer),
                Err(refusal) => {
                    let text = &refusal.text;
                    send_status_alone(&mut answer, refusal.status, text, Headers::new());
                }
            }
        }
        if ends_early {
            self.core.ended_early();
        }
    }

    fn begin_call(
        &mut self,
        number: u32,
        (is_stream, route, metadata, timeout): CallHead,
        recv: RecvStream,
        mut answer: SendResponse<Outgoing<B>>,
    ) {
        let bytes = metadata::list_bytes(&metadata);
        let bytes_max = self.core.limits.metadata_bytes_max;
        let Some(charge) = Charge::within(&self.metadata_bytes, bytes, bytes_max) else {
            self.core.resets += 1;
            answer.send_reset(Reason::REFUSED_STREAM);
            if !recv.is_end_stream() {
                self.core.ended_early();
            }
            return;
        };
        let requests = if is_stream {
            self.core
                .event(Event::Opened(number, route, metadata, timeout));
            Requests::Many
        } else {
            Requests::One {
                route,
                metadata,
                timeout,
                message: None,
                is_reported: false,
            }
        };
        let call = Call {
            half: Half::new(Some(recv), !is_stream),
            answer: Answer::Awaited(answer),
            requests,
            _metadata: charge,
        };
        self.streams.insert(number, Box::new(call));
    }

    fn call_of(&mut self, head: &http::request::Parts) -> Result<CallHead, Refusal> {
        let path = head.uri.path();
        let Some((route, is_stream)) = self.routes.route_of(path) else {
            let text = format!("there is no method {path}");
            return Err(Refusal::new(super::UNIMPLEMENTED, text));
        };
        let timeout = metadata::timeout(&head.headers)?;
        let routes = &self.routes;
        let metadata = metadata::metadata(&head.headers, |name| routes.keeps(name.as_str()))?;
        Ok((is_stream, route, metadata, timeout))
    }

    /// Report messages and the end of a stream; returns false if the stream is over.
    fn read(&mut self, number: u32) -> bool {
        if !self.streams.contains_key(&number) {
            return number == 0 || number > self.core.highest;
        }
        self.read_call(number);
        true
    }

    fn read_call(&mut self, number: u32) {
        let Some(call) = self.streams.get_mut(&number) else {
            return;
        };
        if call.half.recv.is_none() {
            if let Some(reason) = call.poll_reset() {
                let text = format!("the peer has broken the stream: {reason:?}");
                self.failed(number, reason.into(), text);
            }
            return;
        }
        if self.core.calls_left == 0 && matches!(call.requests, Requests::One { .. }) {
            return self.core.unread.push(number);
        }
        loop {
            match call.half.next(&mut self.core) {
                Step::Message(message) => match &mut call.requests {
                    Requests::Many => self.core.event(Event::Message(number, message)),
                    Requests::One { message: first, .. } => {
                        if first.replace(message).is_some() {
                            let text = "several requests to a method that has one";
                            return self.refuse(number, Refusal::new(super::INTERNAL, text));
                        }
                    }
                    Requests::Complete | Requests::Refused => {}
                },
                Step::Ended(_) => return self.requests_ended(number),
                Step::Pending => {
                    if let Requests::One { is_reported, .. } = &mut call.requests {
                        if !std::mem::replace(is_reported, true) {
                            self.core.event(Event::Awaited(number));
                        }
                    }
                    return;
                }
                Step::Full => return self.core.unread.push(number),
                Step::Refused(refusal) => return self.refuse(number, refusal),
                Step::Failed(error) => {
                    let code = error.reason().map_or(super::INTERNAL_ERROR, u32::from);
                    return self.failed(number, code, error.to_string());
                }
            }
        }
    }

    /// The peer sends no further requests.
    fn requests_ended(&mut self, number: u32) {
        let Some(call) = self.streams.get_mut(&number) else {
            return;
        };
        if call.half.is_cut() {
            let text = "the last request is not complete";
            return self.refuse(number, Refusal::new(super::INTERNAL, text));
        }
        call.half.stop(&mut self.core);
        match std::mem::replace(&mut call.requests, Requests::Complete) {
            Requests::One {
                route,
                metadata,
                timeout,
                message: Some(message),
                ..
            } => {
                self.core.calls_left = self.core.calls_left.saturating_sub(1);
                self.core
                    .event(Event::Call(number, route, metadata, timeout, message));
            }
            requests @ Requests::One { .. } => {
                call.requests = requests;
                let text = "the call has no request";
                self.refuse(number, Refusal::new(super::INTERNAL, text));
            }
            Requests::Many => self.core.event(Event::Ended(number)),
            requests @ (Requests::Complete | Requests::Refused) => call.requests = requests,
        }
    }

    /// End a call with a status of the session's own.
    fn refuse(&mut self, number: u32, refusal: Refusal) {
        let Some(call) = self.streams.get_mut(&number) else {
            return;
        };
        call.finish(refusal.status, &refusal.text, Headers::new());
        call.half.stop(&mut self.core);
        call.half.wants_room = false;
        self.core.is_dirty = true;
        if call.is_reported() {
            self.core
                .event(Event::Reset(number, super::CANCEL, refusal.text));
        }
        call.requests = Requests::Refused;
        if call.half.queued == 0 {
            self.forget(number);
        }
    }

    /// h2 has reset a stream because of the peer.
    fn failed(&mut self, number: u32, code: u32, reason: String) {
        if let Some(mut call) = self.streams.remove(&number) {
            self.core.resets += 1;
            call.half.stop(&mut self.core);
            self.core.is_dirty = true;
            if call.is_reported() {
                self.core.event(Event::Reset(number, code, reason));
            }
        }
    }
}

/// A stream that the owner has not been told to forget.
fn known<B: Body>(
    streams: &mut FnvHashMap<u32, Box<Call<B>>>,
    stream: u32,
) -> Option<&mut Call<B>> {
    let call: &mut Call<B> = streams.get_mut(&stream)?;
    (!matches!(call.requests, Requests::Refused)).then_some(call)
}

/// Poll h2 until it waits for input; returns whether the connection is new.
fn advance<B: Body>(link: &mut Link<B>, accepted: &mut Vec<Accepted<B>>) -> Result<bool, End> {
    let mut context = Context::from_waker(Waker::noop());
    let mut is_new = false;
    if let Link::Handshake(handshake) = link {
        match Pin::new(handshake).poll(&mut context) {
            Poll::Ready(Ok(connection)) => *link = Link::Open(connection),
            Poll::Ready(Err(error)) => return Err(End::of(&error)),
            Poll::Pending => return Ok(false),
        }
        is_new = true;
    }
    let Link::Open(connection) = link else {
        return Ok(false);
    };
    loop {
        match connection.poll_accept(&mut context) {
            Poll::Ready(Some(Ok(stream))) => {
                if accepted.capacity() == 0 {
                    accepted.reserve_exact(1);
                }
                accepted.push(stream);
            }
            Poll::Ready(Some(Err(error))) => {
                return Err(match End::of(&error) {
                    End::Over => client_leaves(),
                    end => end,
                })
            }
            Poll::Ready(None) => return Err(client_leaves()),
            Poll::Pending => return Ok(is_new),
        }
    }
}

/// The client has sent GOAWAY, with an error or without, and no call is left.
fn client_leaves() -> End {
    End::Broken(super::NO_ERROR, "the client leaves".to_string())
}
