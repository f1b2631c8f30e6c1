//! Reads the heads of frames before h2 does, to cut the input into turns and to count its cost.
//!
//! It decides nothing about the protocol: h2 receives and judges each byte. Empty DATA frames are the
//! only exception. They have no effect, and h2 ends a connection after 100 empty frames.

use fnv::FnvHashMap;

const PREFACE_BYTES: usize = 24;
pub const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const FLAG_ACK: u8 = 1;
const FLAG_END_STREAM: u8 = 1;
const FLAG_END_HEADERS: u8 = 4;
const FLAG_PADDED: u8 = 8;
const STREAM_MAX: u32 = (1 << 31) - 1;
/// Of a GOAWAY frame that is read: its two numbers and its text.
const CAPTURED_BYTES_MAX: usize = 8 + 256;

/// Costs of frames, in parts of a turn: what h2 and the events of a frame cost beside its bytes.
const TURN_COST: usize = 64 << 10;
const FRAME_COST: usize = 256;
const DATA_COST: usize = 128;
const CALL_COST: usize = 512;
/// A byte of a header block can name an entry of the table, which is decoded each time.
const HEADER_BYTE_COST: usize = 8;
/// A new value of the initial window changes each open stream.
const SETTINGS_STREAM_COST: usize = 4;

/// What a turn may cost.
#[derive(Clone, Copy)]
pub struct TurnLimits {
    pub bytes: usize,
    pub calls: usize,
}

/// DATA frames of one stream.
pub struct Touched {
    pub stream: u32,
    pub frames: u32,
    /// With their heads.
    pub bytes: usize,
}

/// The open streams of a session.
pub trait Streams {
    fn count(&self) -> usize;
    fn has(&self, stream: u32) -> bool;
}

impl<T> Streams for FnvHashMap<u32, T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn has(&self, stream: u32) -> bool {
        self.contains_key(&stream)
    }
}

/// What the frames of a turn were.
#[derive(Default)]
pub struct Notes {
    /// Streams with DATA; a stream can be there twice.
    pub touched: Vec<Touched>,
    /// Where empty DATA frames end, which h2 does not receive.
    pub dropped: Vec<usize>,
    /// Streams with headers, or with another frame that can break the stream.
    pub headed: Vec<u32>,
    /// Streams that the peer has reset, with the error code.
    pub resets: Vec<(u32, u32)>,
    pub goaway: Option<(u32, u32, String)>,
    /// A SETTINGS frame that is no acknowledgement.
    pub settings: bool,
    /// The connection does not begin with SETTINGS, which h2 does not check.
    pub begins_wrong: bool,
    /// Frames without effect.
    pub idle_frames: u32,
    /// Streams that the peer opens.
    pub calls: u32,
    /// Streams that the peer has opened: their headers are complete.
    pub opened: u32,
}

impl Notes {
    pub fn clear(&mut self) {
        self.touched.clear();
        self.dropped.clear();
        self.headed.clear();
        self.resets.clear();
        self.goaway = None;
        self.settings = false;
        self.idle_frames = 0;
        self.calls = 0;
        self.opened = 0;
    }
}

pub struct Scanner {
    preface_left: usize,
    has_begun: bool,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    payload_left: usize,
    captured: Vec<u8>,
    /// The highest stream that the peer has opened; `STREAM_MAX` of a client, whose peer opens none.
    highest: u32,
    /// The headers of the highest stream are not complete.
    is_opening: bool,
    /// Any headers are not complete.
    is_in_headers: bool,
}

impl Scanner {
    pub fn new(is_server: bool) -> Self {
        Scanner {
            preface_left: if is_server { PREFACE_BYTES } else { 0 },
            has_begun: false,
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            payload_left: 0,
            captured: Vec::new(),
            highest: if is_server { 0 } else { STREAM_MAX },
            is_opening: false,
            is_in_headers: false,
        }
    }

    /// Read the frames of a turn; returns how many bytes belong to it.
    pub fn scan(
        &mut self,
        bytes: &[u8],
        limits: TurnLimits,
        streams: &impl Streams,
        notes: &mut Notes,
    ) -> usize {
        let highest_before = self.highest;
        let mut rest = bytes.get(..limits.bytes).unwrap_or(bytes);
        let whole = rest.len();
        let mut cost = 0;
        let skipped = self.preface_left.min(rest.len());
        self.preface_left -= skipped;
        rest = rest.get(skipped..).unwrap_or_default();
        while !rest.is_empty() {
            if self.payload_left == 0 {
                if self.head_bytes == 0
                    && (cost >= TURN_COST || notes.calls as usize >= limits.calls)
                {
                    break;
                }
                let took = (HEAD_BYTES - self.head_bytes).min(rest.len());
                let (part, behind) = rest.split_at(took);
                for (to, from) in self.head.iter_mut().skip(self.head_bytes).zip(part) {
                    *to = *from;
                }
                rest = behind;
                self.head_bytes += took;
                if self.head_bytes < HEAD_BYTES {
                    break;
                }
                self.payload_left = self.length();
                cost += self.begin(streams.count(), notes);
                if took == HEAD_BYTES && self.has_no_effect(highest_before, streams) {
                    notes.dropped.push(whole - rest.len());
                }
            }
            let took = self.payload_left.min(rest.len());
            let (part, behind) = rest.split_at(took);
            let (kind, _, _) = self.fields();
            if matches!(kind, RST_STREAM | GOAWAY) {
                let room = CAPTURED_BYTES_MAX.saturating_sub(self.captured.len());
                self.captured.extend(part.iter().take(room));
            }
            rest = behind;
            self.payload_left -= took;
            if self.payload_left == 0 {
                self.end(notes);
                self.head_bytes = 0;
                // The session ends: the frames behind are not read.
                if notes.goaway.is_some()
                    && !self.is_client()
                    && streams.count() == 0
                    && notes.calls == 0
                {
                    break;
                }
            }
        }
        whole - rest.len()
    }

    fn is_client(&self) -> bool {
        self.highest == STREAM_MAX
    }

    fn length(&self) -> usize {
        let [a, b, c, ..] = self.head;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// Kind, flags and stream of the frame whose head was read.
    fn fields(&self) -> (u8, u8, u32) {
        let [_, _, _, kind, flags, a, b, c, d] = self.head;
        (kind, flags, u32::from_be_bytes([a, b, c, d]) & STREAM_MAX)
    }

    /// Whether h2 need not receive the frame whose head was read: empty DATA of an open stream.
    fn has_no_effect(&self, highest_before: u32, streams: &impl Streams) -> bool {
        let (kind, flags, stream) = self.fields();
        kind == DATA
            && self.payload_left == 0
            && flags & (FLAG_END_STREAM | FLAG_PADDED) == 0
            && !self.is_in_headers
            && (streams.has(stream)
                || stream % 2 == 1 && (highest_before + 1..=self.highest).contains(&stream))
    }

    /// Note the head of a frame; returns the frame's cost.
    fn begin(&mut self, open_streams: usize, notes: &mut Notes) -> usize {
        let length = self.length();
        let (kind, flags, stream) = self.fields();
        if !std::mem::replace(&mut self.has_begun, true) {
            notes.begins_wrong = kind != SETTINGS || flags & FLAG_ACK != 0;
        }
        match kind {
            DATA => {
                if length == 0 && flags & FLAG_END_STREAM == 0 {
                    notes.idle_frames += 1;
                }
                DATA_COST
            }
            HEADERS => {
                let mut cost = FRAME_COST + length * HEADER_BYTE_COST;
                if stream > self.highest {
                    self.highest = stream;
                    self.is_opening = true;
                    notes.calls += 1;
                    cost += CALL_COST;
                }
                cost
            }
            CONTINUATION => FRAME_COST + length * HEADER_BYTE_COST,
            RST_STREAM => FRAME_COST,
            SETTINGS => {
                notes.idle_frames += 1;
                FRAME_COST + open_streams * SETTINGS_STREAM_COST
            }
            _ => {
                notes.idle_frames += 1;
                FRAME_COST
            }
        }
    }

    /// Note a frame whose last byte was read.
    fn end(&mut self, notes: &mut Notes) {
        let (kind, flags, stream) = self.fields();
        if matches!(kind, HEADERS | CONTINUATION) && flags & FLAG_END_HEADERS != 0 {
            notes.opened += u32::from(std::mem::take(&mut self.is_opening));
        }
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.is_in_headers = flags & FLAG_END_HEADERS == 0;
        }
        match kind {
            HEADERS | CONTINUATION | PRIORITY | WINDOW_UPDATE
                if notes.headed.last() != Some(&stream) || kind == HEADERS =>
            {
                notes.headed.push(stream);
            }
            DATA => {
                let bytes = HEAD_BYTES + self.length();
                match notes.touched.last_mut() {
                    Some(last) if last.stream == stream => {
                        last.frames += 1;
                        last.bytes += bytes;
                    }
                    _ => notes.touched.push(Touched {
                        stream,
                        frames: 1,
                        bytes,
                    }),
                }
            }
            RST_STREAM => {
                if let Some((code, _)) = number(&self.captured) {
                    notes.resets.push((stream, code));
                }
            }
            SETTINGS => notes.settings |= flags & FLAG_ACK == 0,
            GOAWAY => {
                if let Some((last, rest)) = number(&self.captured) {
                    if let Some((code, text)) = number(rest) {
                        let text = String::from_utf8_lossy(text).into_owned();
                        notes.goaway = Some((last & STREAM_MAX, code, text));
                    }
                }
            }
            _ => {}
        }
        self.captured = Vec::new();
    }
}

/// A big-endian number, and the bytes behind it.
fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (front, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*front), rest))
}
