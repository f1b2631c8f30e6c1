//! What a server's session and a client's have in common, but their streams.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use h2::{Ping, PingPong};

use super::incoming::Unfinished;
use super::pipe::{Body, Pipe};
use super::scanner::{Notes, Scanner, Streams, Touched, TurnLimits, HEAD_BYTES};
use super::Event;

/// Of all events of a turn, so that short messages in one frame do not make a long turn.
const TURN_MESSAGES: usize = 512;
/// Frames without effect that an honest peer sends with a call, and bytes that it receives for one:
/// it opens windows.
const IDLE_FRAMES_PER_CALL: u64 = 4;
const SENT_BYTES_PER_IDLE_FRAME: u64 = 8;
/// Fewer frames without effect are reported with later ones.
const IDLE_FRAMES_REPORTED_MIN: u32 = 16;
/// The connection's window grows and shrinks in such steps for streams that are held.
const WINDOW_STEP: usize = 1 << 20;
const WINDOW_MAX: usize = 64 << 20;
/// If held streams have more bytes than this, each stream gets a short window, so that the held
/// ones do not fill the connection's window: the other streams can go on, slowly.
const WITHHELD_BYTES_MAX: usize = 32 << 20;
const SHORT_WINDOW_BYTES: u32 = 16 << 10;
/// So many bytes that were read wait for other output until h2 is polled for a WINDOW_UPDATE, if
/// they are a small share of each window: a poll for each short message costs more.
const READ_BYTES_MAX: usize = 16 << 10;
const READ_SHARE: usize = 4;
const DEBUG_TEXT_BYTES_MAX: usize = 256;
const GOAWAY: u8 = 7;

/// Bounds on what a peer may cost; see `rockoon_rpc.limits`.
#[derive(Clone)]
pub struct Limits {
    pub message_bytes_max: usize,
    pub header_list_bytes_max: u32,
    pub streams_max: u32,
    pub frame_bytes_max: u32,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub turn_bytes: usize,
    pub turn_calls: usize,
    pub unfinished_bytes_max: usize,
    pub metadata_bytes_max: usize,
}

/// What HTTP/2 permits (RFC 9113, section 6.5.2); h2 panics beyond it.
const FRAME_BYTES: std::ops::RangeInclusive<u32> = 16 << 10..=(1 << 24) - 1;
const WINDOW_BYTES_MAX: u32 = i32::MAX as u32;

impl Limits {
    /// The nearest limits that HTTP/2 permits.
    fn permitted(mut self) -> Limits {
        let (least, most) = (*FRAME_BYTES.start(), *FRAME_BYTES.end());
        self.frame_bytes_max = self.frame_bytes_max.clamp(least, most);
        self.stream_window_bytes = self.stream_window_bytes.min(WINDOW_BYTES_MAX);
        self.connection_window_bytes = self.connection_window_bytes.min(WINDOW_BYTES_MAX);
        self
    }

    fn turn(&self) -> TurnLimits {
        TurnLimits {
            bytes: self.turn_bytes.max(1),
            calls: self.turn_calls.max(1),
        }
    }
}

/// How h2's connection ends.
pub enum End {
    /// No further stream follows, and none is left.
    Over,
    Broken(u32, String),
}

impl End {
    pub fn of(error: &h2::Error) -> End {
        if error.is_go_away() && error.is_remote() {
            return End::Over;
        }
        let code = error.reason().map_or(super::INTERNAL_ERROR, u32::from);
        End::Broken(code, error.to_string())
    }
}

pub struct Core<B: Body> {
    pub pipe: Arc<Pipe<B>>,
    pub limits: Limits,
    pub notes: Notes,
    pub unfinished: Unfinished,
    /// Streams that had more messages than a turn.
    pub unread: Vec<u32>,
    pub messages_left: usize,
    pub calls_left: usize,
    /// The highest stream that the peer has opened.
    pub highest: u32,
    /// Streams that were reset because of the peer.
    pub resets: u32,
    /// Something was queued in h2 that is not in the output.
    pub is_dirty: bool,
    pub is_over: bool,
    is_broken: bool,
    events: Vec<Event<B::Message>>,
    /// How many events were reported together the last time.
    events_before: usize,
    scanner: Scanner,
    own_frames: Vec<u8>,
    kept: Vec<u8>,
    is_ready: bool,
    sent_bytes: u64,
    idle_frames: u32,
    /// Bytes that were read since h2 was polled.
    read_bytes: usize,
    read_bytes_max: usize,
    withheld: usize,
    window: usize,
    has_short_windows: bool,
    /// That the peer may still send on streams which this side has ended before the peer did.
    late_bytes: usize,
    pings: Option<PingPong>,
    is_ping_sent: bool,
    wants_ping: bool,
}

impl<B: Body> Core<B> {
    pub fn new(limits: Limits, is_server: bool) -> Self {
        let limits = limits.permitted();
        Core {
            pipe: Pipe::new(),
            notes: Notes::default(),
            unfinished: Unfinished::new(limits.unfinished_bytes_max),
            unread: Vec::new(),
            messages_left: 0,
            calls_left: 0,
            highest: 0,
            resets: 0,
            is_dirty: false,
            is_over: false,
            is_broken: false,
            events: Vec::new(),
            events_before: 0,
            scanner: Scanner::new(is_server),
            own_frames: Vec::new(),
            kept: Vec::new(),
            is_ready: false,
            sent_bytes: 0,
            idle_frames: 0,
            read_bytes: 0,
            read_bytes_max: Self::read_bytes_max(&limits, limits.stream_window_bytes),
            withheld: 0,
            window: limits.connection_window_bytes as usize,
            has_short_windows: false,
            late_bytes: 0,
            pings: None,
            is_ping_sent: false,
            wants_ping: false,
            limits,
        }
    }

    /// Report an event, unless the connection is broken.
    pub fn event(&mut self, event: Event<B::Message>) {
        if !self.is_broken {
            self.is_broken = matches!(event, Event::Broken(..));
            if self.events.capacity() == 0 {
                self.events.reserve_exact(self.events_before.max(1));
            }
            self.events.push(event);
        }
    }

    pub fn take_events(&mut self) -> Vec<Event<B::Message>> {
        if !self.events.is_empty() {
            self.events_before = self.events.len();
        }
        std::mem::take(&mut self.events)
    }

    // Input.

    /// Return the bytes of one turn; keep the rest.
    pub fn begin_turn<'a>(&mut self, data: &'a [u8], streams: &impl Streams) -> Cow<'a, [u8]> {
        self.messages_left = TURN_MESSAGES;
        let limits = self.limits.turn();
        self.calls_left = limits.calls;
        if self.kept.is_empty() {
            let count = self.scanner.scan(data, limits, streams, &mut self.notes);
            let (turn, rest) = data.split_at_checked(count).unwrap_or((data, &[]));
            self.kept.extend_from_slice(rest);
            self.without_dropped(Cow::Borrowed(turn))
        } else {
            self.kept.extend_from_slice(data);
            let mut kept = std::mem::take(&mut self.kept);
            let count = self.scanner.scan(&kept, limits, streams, &mut self.notes);
            self.kept = kept.split_off(count.min(kept.len()));
            self.without_dropped(Cow::Owned(kept))
        }
    }

    /// The bytes of a turn without the frames that h2 does not receive.
    fn without_dropped<'a>(&self, turn: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        if self.notes.dropped.is_empty() {
            return turn;
        }
        let mut left = Vec::with_capacity(turn.len());
        let mut from = 0;
        for end in &self.notes.dropped {
            left.extend_from_slice(turn.get(from..end - HEAD_BYTES).unwrap_or_default());
            from = *end;
        }
        left.extend_from_slice(turn.get(from..).unwrap_or_default());
        Cow::Owned(left)
    }

    /// This side has ended a stream before the peer did. DATA that the peer sends until it notices
    /// the end is no waste.
    pub fn ended_early(&mut self) {
        let bytes_max = self.limits.connection_window_bytes as usize;
        let more = self.limits.stream_window_bytes as usize;
        self.late_bytes = (self.late_bytes + more).min(bytes_max);
    }

    /// DATA of a stream that is over has arrived.
    pub fn late_data(&mut self, data: &Touched) {
        match self.late_bytes.checked_sub(data.bytes) {
            Some(left) => self.late_bytes = left,
            None => self.notes.idle_frames += data.frames,
        }
    }

    /// Report messages that arrived before the connection was over.
    pub fn begin_last_turn(&mut self) {
        self.messages_left = TURN_MESSAGES;
    }

    pub fn is_behind(&self) -> bool {
        !(self.kept.is_empty() && self.unread.is_empty())
    }

    /// Whether nothing is kept for the next turn, to be put out, or to be reported.
    pub fn is_idle(&self) -> bool {
        !(self.is_behind() || self.is_dirty || self.pipe.has_output()) && self.events.is_empty()
    }

    /// Report what the frames of the turn say by themselves.
    pub fn end_turn(&mut self) {
        if self.is_ping_sent {
            let mut context = Context::from_waker(Waker::noop());
            let polled = self
                .pings
                .as_mut()
                .map(|pings| pings.poll_pong(&mut context));
            if let Some(Poll::Ready(Ok(_))) = polled {
                self.is_ping_sent = false;
                self.event(Event::Pong);
                self.send_ping();
            }
        }
        let allowed = u64::from(self.notes.calls) * IDLE_FRAMES_PER_CALL
            + self.sent_bytes / SENT_BYTES_PER_IDLE_FRAME;
        if self.notes.idle_frames > 0 {
            self.sent_bytes = 0;
        }
        let allowed = u32::try_from(allowed).unwrap_or(u32::MAX);
        self.idle_frames += self.notes.idle_frames.saturating_sub(allowed);
        let resets = std::mem::take(&mut self.resets);
        if self.idle_frames >= IDLE_FRAMES_REPORTED_MIN || resets > 0 {
            let idle_frames = std::mem::take(&mut self.idle_frames);
            self.event(Event::Waste(idle_frames, resets));
        }
        self.notes.clear();
    }

    /// Report the peer's first SETTINGS.
    pub fn report_ready(&mut self) {
        if self.notes.settings && !self.is_ready {
            self.is_ready = true;
            self.event(Event::Ready);
        }
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    // Windows.

    /// Count bytes whose window h2 gives back.
    pub fn read(&mut self, bytes: usize) {
        self.read_bytes += bytes;
        self.is_dirty |= self.read_bytes > self.read_bytes_max;
    }

    /// h2 is polled.
    pub fn polled(&mut self) {
        self.is_dirty = false;
        self.read_bytes = 0;
    }

    /// Count bytes for which a held stream gets no window. Returns the connection's window if it
    /// has to change.
    pub fn withhold(&mut self, bytes: usize) {
        self.withheld += bytes;
    }

    pub fn release(&mut self, bytes: usize) {
        self.withheld = self.withheld.saturating_sub(bytes);
    }

    /// The connection's window, if it has to change: withheld bytes must not stop other streams.
    pub fn new_window(&mut self) -> Option<u32> {
        let own = self.limits.connection_window_bytes as usize;
        let more = self.withheld.next_multiple_of(WINDOW_STEP);
        let window = (own + more).min(WINDOW_MAX.max(own));
        (window != self.window).then(|| {
            self.window = window;
            window as u32
        })
    }

    /// The window of each stream, if it has to change; `set_window_of_streams` follows.
    pub fn new_window_of_streams(&self) -> Option<u32> {
        let own = self.limits.stream_window_bytes;
        if self.has_short_windows {
            (self.withheld < WITHHELD_BYTES_MAX / 2).then_some(own)
        } else {
            (self.withheld > WITHHELD_BYTES_MAX).then_some(SHORT_WINDOW_BYTES.min(own))
        }
    }

    /// h2 sends the new window of each stream.
    pub fn set_window_of_streams(&mut self, window: u32) {
        self.has_short_windows = !self.has_short_windows;
        self.read_bytes_max = Self::read_bytes_max(&self.limits, window);
        self.is_dirty = true;
    }

    fn read_bytes_max(limits: &Limits, stream_window: u32) -> usize {
        let window = stream_window.min(limits.connection_window_bytes) as usize;
        READ_BYTES_MAX.min(window / READ_SHARE)
    }

    // Pings.

    pub fn set_pings(&mut self, pings: Option<PingPong>) {
        self.pings = pings;
        self.send_ping();
    }

    pub fn ping(&mut self) {
        self.wants_ping = true;
        if !self.is_ping_sent {
            self.send_ping();
        }
    }

    fn send_ping(&mut self) {
        if let (true, Some(pings)) = (self.wants_ping, &mut self.pings) {
            self.wants_ping = false;
            self.is_ping_sent = pings.send_ping(Ping::opaque()).is_ok();
            self.is_dirty = true;
        }
    }

    // Output.

    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    /// Put out a GOAWAY frame of our own, when h2 is between two frames: h2 sends none with a
    /// text, and decides itself when a server refuses streams.
    pub fn goaway(&mut self, last: u32, code: u32, text: &str) {
        let text = text.as_bytes();
        let text = text.get(..DEBUG_TEXT_BYTES_MAX).unwrap_or(text);
        let length = 8 + text.len() as u32;
        let mut frame = length.to_be_bytes().get(1..).unwrap_or_default().to_vec();
        frame.extend([GOAWAY, 0, 0, 0, 0, 0]);
        frame.extend(last.to_be_bytes());
        frame.extend(code.to_be_bytes());
        frame.extend(text);
        self.own_frames.extend(frame);
        self.put_own_frames();
    }

    /// Put out own frames, unless h2 is within a frame.
    pub fn put_own_frames(&mut self) {
        if !self.own_frames.is_empty() && !self.pipe.is_blocked() {
            self.pipe.put(&std::mem::take(&mut self.own_frames));
        }
    }

    /// Nothing is read or sent any more.
    pub fn end(&mut self, end: End) {
        self.is_over = true;
        self.kept = Vec::new();
        self.unread.clear();
        self.pings = None;
        if let End::Broken(code, reason) = end {
            self.event(Event::Broken(code, reason));
        }
    }
}
