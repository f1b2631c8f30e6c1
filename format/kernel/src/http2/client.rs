//! A client's session.

use std::future::Future;
use std::mem::forget;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::{pin, Pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fnv::FnvHashMap;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, StatusCode};

use super::core::{Core, End, Limits};
use super::incoming::Refusal;
use super::metadata::{self, Headers, Metadata, RequestHead};
use super::pipe::{Body, Outgoing, Piece, Wire};
use super::stream::{Half, Step};
use super::{Event, Pieces};

/// Streams that were reset are remembered for so long: the server may still send frames of them.
const RESET_STREAMS_MAX: usize = 10_000;
const RESET_SECONDS: u64 = 2;
const STREAMS_MAX: usize = i32::MAX as usize;

struct Link<B: Body> {
    connection: Connection<Wire<B>, Outgoing<B>>,
    requests: SendRequest<Outgoing<B>>,
}

struct Call<B: Body> {
    half: Half<B::Message>,
    answer: Option<ResponseFuture>,
    out: SendStream<Outgoing<B>>,
    has_sent_all: bool,
    one_answer: bool,
    message: Option<B::Message>,
    /// Headers with a status, of an answer that is nothing else.
    status: Option<HeaderMap>,
}

pub struct ClientSession<B: Body> {
    core: Core<B>,
    link: Option<Link<B>>,
    /// In boxes: an idle connection keeps the table, and not room for calls.
    streams: FnvHashMap<u32, Box<Call<B>>>,
}

impl<B: Body> ClientSession<B> {
    /// Returns None if h2 does not begin, which it does with any limits that it accepts.
    pub fn new(limits: Limits) -> Option<Self> {
        let mut core = Core::new(limits, false);
        let limits = &core.limits;
        let mut builder = Builder::new();
        builder
            .initial_window_size(limits.stream_window_bytes)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_frame_size(limits.frame_bytes_max)
            .max_header_list_size(limits.header_list_bytes_max)
            .max_concurrent_streams(0)
            .enable_push(false)
            // The peer's SETTINGS allow streams.
            .initial_max_send_streams(0)
            .max_concurrent_reset_streams(RESET_STREAMS_MAX)
            .reset_stream_duration(Duration::from_secs(RESET_SECONDS))
            .max_local_error_reset_streams(None)
            .data_frame_budget(usize::MAX);
        let mut context = Context::from_waker(Waker::noop());
        // It only writes, and the pipe has room.
        let handshake = pin!(builder.handshake(Wire(core.pipe.clone())));
        let Poll::Ready(Ok((requests, mut connection))) = handshake.poll(&mut context) else {
            return None;
        };
        core.set_pings(connection.ping_pong());
        let link = Some(Link {
            connection,
            requests,
        });
        let mut session = ClientSession {
            core,
            link,
            streams: FnvHashMap::default(),
        };
        session.poll();
        Some(session)
    }

    // Input.

    pub fn receive(&mut self, data: &[u8]) -> Vec<Event<B::Message>> {
        if self.core.is_dirty {
            self.flush();
        }
        if self.core.is_over {
            self.core.begin_last_turn();
            self.handle_turn();
        } else {
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
        if let Some(call) = self.streams.get_mut(&stream) {
            call.half.hold();
        }
    }

    pub fn resume(&mut self, stream: u32) {
        if let Some(call) = self.streams.get_mut(&stream) {
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

    /// Begin a call; returns its stream, or 0 if the peer allows no further one.
    pub fn request(
        &mut self,
        head: &RequestHead,
        message: Option<Pieces<B>>,
        timeout: Option<f64>,
        more: Headers,
        one_answer: bool,
    ) -> u32 {
        if self.streams.len() >= self.streams_max() {
            return 0;
        }
        let Some(link) = &mut self.link else {
            return 0;
        };
        let request = head.request(timeout, more);
        // It fails when the peer has sent GOAWAY, or all numbers of streams are used.
        let Ok((answer, out)) = link.requests.send_request(request, false) else {
            return 0;
        };
        let number = out.stream_id().as_u32();
        let mut call = Call {
            half: Half::new(None, one_answer),
            answer: Some(answer),
            out,
            has_sent_all: message.is_some(),
            one_answer,
            message: None,
            status: None,
        };
        self.core.is_dirty = true;
        if let Some(message) = message {
            call.half
                .send(&mut self.core, &mut call.out, message, false, true);
        }
        self.streams.insert(number, Box::new(call));
        number
    }

    pub fn send(&mut self, stream: u32, message: Pieces<B>, is_framed: bool) -> bool {
        let Some(call) = self.streams.get_mut(&stream) else {
            return true;
        };
        let fits = Half::<B::Message>::fits(&self.core, &mut call.out, &message);
        call.half
            .send(&mut self.core, &mut call.out, message, is_framed, false);
        if fits {
            return true;
        }
        self.flush();
        let Some(call) = self.streams.get_mut(&stream) else {
            return true;
        };
        call.half.wants_room = call.half.queued > 0;
        !call.half.wants_room
    }

    pub fn end(&mut self, stream: u32) {
        if let Some(call) = self.streams.get_mut(&stream) {
            if !std::mem::replace(&mut call.has_sent_all, true) {
                let nothing = Outgoing::new(&self.core.pipe, stream, Vec::new(), None);
                call.half.queued += 1;
                let _ = call.out.send_data(nothing, true);
                self.core.is_dirty = true;
            }
        }
    }

    pub fn reset(&mut self, stream: u32, code: u32) {
        if let Some(mut call) = self.streams.remove(&stream) {
            call.out.send_reset(Reason::from(code));
            self.core.ended_early();
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
            self.core.goaway(0, code, text);
            self.over(End::Broken(code, text.to_string()));
        }
    }

    pub fn streams_max(&self) -> usize {
        match &self.link {
            Some(link) if self.core.is_ready() => {
                link.requests.current_max_send_streams().min(STREAMS_MAX)
            }
            _ => 0,
        }
    }

    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    // h2.

    /// Let h2 read its input and write its output.
    fn poll(&mut self) {
        self.core.polled();
        let Some(link) = &mut self.link else {
            return;
        };
        let mut context = Context::from_waker(Waker::noop());
        let connection = &mut link.connection;
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(connection).poll(&mut context)));
        match polled {
            Ok(Poll::Pending) => self.core.put_own_frames(),
            Ok(Poll::Ready(Ok(()))) => self.over(End::Over),
            Ok(Poll::Ready(Err(error))) => self.over(End::of(&error)),
            Err(_) => {
                // h2's locks are poisoned: its objects panic when they are dropped.
                forget(self.link.take());
                forget(std::mem::take(&mut self.streams));
                self.core.goaway(0, super::INTERNAL_ERROR, "");
                let reason = "h2 has panicked".to_string();
                self.core.end(End::Broken(super::INTERNAL_ERROR, reason));
            }
        }
    }

    fn over(&mut self, end: End) {
        // Streams that GOAWAY named are reported by the turn that has it, and messages that were
        // received by the turns behind it.
        let unread = std::mem::take(&mut self.core.unread);
        let is_broken = matches!(end, End::Broken(..));
        self.core.end(end);
        if is_broken {
            self.streams.clear();
        } else {
            self.core.unread = unread;
        }
        self.link = None;
    }

    fn set_window(&mut self) {
        if let Some(link) = &mut self.link {
            if let Some(window) = self.core.new_window() {
                link.connection.set_target_window_size(window);
                self.core.is_dirty = true;
            }
            if let Some(window) = self.core.new_window_of_streams() {
                // It fails while the peer has not acknowledged SETTINGS; a later turn tries again.
                if link.connection.set_initial_window_size(window).is_ok() {
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
            if let Some(call) = self.streams.get_mut(&number) {
                call.half.queued = call.half.queued.saturating_sub(1);
                if call.half.queued == 0 && std::mem::take(&mut call.half.wants_room) {
                    self.core.event(Event::Room(number));
                }
            }
        }
    }

    // Turns.

    fn handle_turn(&mut self) {
        self.core.report_ready();
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
        let headed = std::mem::take(&mut self.core.notes.headed);
        for number in &headed {
            self.read(*number);
        }
        self.core.notes.headed = headed;
        if let Some((last, code, text)) = self.core.notes.goaway.take() {
            self.peer_leaves(last, code, text);
        }
        for (number, code) in std::mem::take(&mut self.core.notes.resets) {
            self.core.resets += 1;
            let reason = format!("the server has reset the stream: {:?}", Reason::from(code));
            self.lost(number, code, reason);
        }
        self.set_window();
        self.core.end_turn();
        self.settle();
    }

    fn peer_leaves(&mut self, last: u32, code: u32, text: String) {
        let reason = format!("the server leaves: {:?} {text}", Reason::from(code));
        self.core.event(Event::GoAway(last, code, text));
        let numbers = self.streams.keys().copied();
        let mut refused: Vec<u32> = numbers.filter(|number| *number > last).collect();
        refused.sort_unstable();
        for number in refused {
            if let Some(mut call) = self.streams.remove(&number) {
                call.half.stop(&mut self.core);
                let event = Event::Reset(number, super::REFUSED_STREAM, reason.clone());
                self.core.event(event);
            }
        }
    }

    /// Report what has arrived on a stream; returns whether the stream is known.
    fn read(&mut self, number: u32) -> bool {
        let Some(call) = self.streams.get_mut(&number) else {
            return number == 0;
        };
        if let Some(answer) = &mut call.answer {
            let mut context = Context::from_waker(Waker::noop());
            match Pin::new(answer).poll(&mut context) {
                Poll::Ready(Ok(response)) => {
                    call.answer = None;
                    let (head, body) = response.into_parts();
                    call.half.recv = Some(body);
                    if let Err(refusal) = checked(&head) {
                        self.refuse(number, refusal);
                        return true;
                    }
                    if head.headers.contains_key(metadata::GRPC_STATUS) {
                        call.status = Some(head.headers);
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.failed(number, &error);
                    return true;
                }
                Poll::Pending => return true,
            }
        }
        loop {
            match call.half.next(&mut self.core) {
                Step::Message(message) if !call.one_answer => {
                    self.core.event(Event::Message(number, message));
                }
                Step::Message(message) => {
                    if call.message.replace(message).is_some() {
                        let text = "several answers to a call that has one";
                        self.refuse(number, Refusal::new(super::INTERNAL, text));
                        break;
                    }
                }
                Step::Ended(trailers) => {
                    self.answer_ended(number, trailers);
                    break;
                }
                Step::Pending => break,
                Step::Full => {
                    self.core.unread.push(number);
                    break;
                }
                Step::Refused(refusal) => {
                    self.refuse(number, refusal);
                    break;
                }
                Step::Failed(error) => {
                    self.failed(number, &error);
                    break;
                }
            }
        }
        true
    }

    /// The server sends no further answers.
    fn answer_ended(&mut self, number: u32, trailers: Option<HeaderMap>) {
        let Some(mut call) = self.streams.remove(&number) else {
            return;
        };
        let headers = trailers.or(call.status.take()).unwrap_or_default();
        let (mut status, mut details) = metadata::status(&headers).unwrap_or_else(|| {
            let text = "the answer ends without a status".to_string();
            (super::INTERNAL, text)
        });
        if status == super::OK && call.half.is_cut() {
            status = super::INTERNAL;
            details = "the last answer is not complete".to_string();
        }
        let trailing = metadata::metadata(&headers, |_| true).unwrap_or_else(|refusal| {
            (status, details) = (refusal.status, refusal.text);
            Metadata::new()
        });
        self.over_with(number, call, status, details, trailing);
    }

    fn over_with(
        &mut self,
        number: u32,
        mut call: Box<Call<B>>,
        status: u32,
        details: String,
        trailing: Metadata,
    ) {
        call.half.stop(&mut self.core);
        if !call.has_sent_all {
            call.out.send_reset(Reason::NO_ERROR);
            self.core.is_dirty = true;
        }
        self.core.event(if call.one_answer {
            let message = call.message.take().filter(|_| status == super::OK);
            Event::Answer(number, status, details, trailing, message)
        } else {
            Event::Finished(number, status, details, trailing)
        });
    }

    /// End a call with a status of the session's own.
    fn refuse(&mut self, number: u32, refusal: Refusal) {
        if let Some(mut call) = self.streams.remove(&number) {
            call.out.send_reset(Reason::CANCEL);
            call.has_sent_all = true;
            self.core.is_dirty = true;
            let trailing = Metadata::new();
            self.over_with(number, call, refusal.status, refusal.text, trailing);
        }
    }

    /// A stream is reset.
    fn failed(&mut self, number: u32, error: &h2::Error) {
        if error.is_go_away() {
            // Reported behind GOAWAY.
            return;
        }
        self.core.resets += u32::from(!error.is_remote());
        let code = error.reason().map_or(super::INTERNAL_ERROR, u32::from);
        self.lost(number, code, error.to_string());
    }

    fn lost(&mut self, number: u32, code: u32, reason: String) {
        let Some(mut call) = self.streams.remove(&number) else {
            return;
        };
        call.half.stop(&mut self.core);
        self.core.is_dirty = true;
        if code == super::REFUSED_STREAM && call.answer.is_none() {
            // The server has begun to answer, so it may have handled the call.
            call.has_sent_all = true;
            self.over_with(number, call, super::UNAVAILABLE, reason, Metadata::new());
        } else {
            self.core.event(Event::Reset(number, code, reason));
        }
    }
}

/// Whether the head of an answer is that of a gRPC server.
fn checked(head: &http::response::Parts) -> Result<(), Refusal> {
    if head.status != StatusCode::OK {
        let status = metadata::status_of_http(head.status);
        let text = format!(
            "the server answers with HTTP status {}",
            head.status.as_u16()
        );
        return Err(Refusal::new(status, text));
    }
    if !metadata::is_grpc(&head.headers) {
        let text = "the content type of the answer is not gRPC's";
        return Err(Refusal::new(super::UNKNOWN, text));
    }
    Ok(())
}
