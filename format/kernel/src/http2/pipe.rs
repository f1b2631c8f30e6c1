//! The transport that h2 sees: bytes in memory on both sides, and messages on their way out.
//!
//! h2 copies short pieces into its own buffer and passes slices of long ones. A slice of a long
//! body is recognised by its address, and is put out as a part of that body, not as a copy.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::incoming::Assembled;
use super::input::Input;

/// Bytes of a message that the session's owner holds as one object.
pub trait Body: AsRef<[u8]> + Send + Sync + Unpin + 'static {
    /// A message that is received.
    type Message: Assembled;
}

impl Body for Vec<u8> {
    type Message = Vec<u8>;
}

/// Shorter bodies are copied.
pub const LONG_BODY_BYTES_MIN: usize = 16 << 10;
/// Shorter slices of long bodies are copied: an object for each costs more.
const SLICE_BYTES_MIN: usize = 4 << 10;
/// What the output holds before h2 is to wait.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// What a turn of input may add to an output that is full: it has at most so many answers.
const ANSWERS_BYTES_MAX: usize = 256 << 10;

/// A piece of the output.
pub enum Piece<B> {
    Copied(Vec<u8>),
    /// A body, and the part of it.
    Part(Arc<B>, usize, usize),
}

struct State<B> {
    pieces: Vec<Piece<B>>,
    tail: Vec<u8>,
    output_bytes: usize,
    output_max: usize,
    is_blocked: bool,
    /// By address: a body, and how many messages on their way are it.
    long: BTreeMap<usize, (Arc<B>, usize)>,
    drained: Vec<u32>,
}

/// Shared by a session, the transport that h2 owns, and messages on their way out.
pub struct Pipe<B> {
    state: Mutex<State<B>>,
    input: Input,
    unsent: AtomicUsize,
}

impl<B: Body> Pipe<B> {
    pub fn new() -> Arc<Self> {
        Arc::new(Pipe {
            state: Mutex::new(State {
                pieces: Vec::new(),
                tail: Vec::new(),
                output_bytes: 0,
                output_max: OUTPUT_BYTES_MAX,
                is_blocked: false,
                long: BTreeMap::new(),
                drained: Vec::new(),
            }),
            input: Input::default(),
            unsent: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let h2 read bytes while `work` polls it. Their answers may be put out even if the output is
    /// full.
    pub fn with_input<T>(&self, bytes: &[u8], work: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        state.output_max = OUTPUT_BYTES_MAX.max(state.output_bytes + ANSWERS_BYTES_MAX);
        drop(state);
        self.input.lend(bytes, work)
    }

    /// A frame that h2 has begun may be put out even if the output is full.
    pub fn admit_frame(&self) {
        let mut state = self.lock();
        state.output_max = OUTPUT_BYTES_MAX.max(state.output_bytes + 1);
    }

    /// The output has no bound any more.
    pub fn open_wide(&self) {
        self.lock().output_max = usize::MAX;
    }

    /// Put out bytes behind all that h2 has put out.
    pub fn put(&self, bytes: &[u8]) {
        self.lock().copy(bytes);
    }

    /// Whether h2 has something that the output had no room for.
    pub fn is_blocked(&self) -> bool {
        self.lock().is_blocked
    }

    /// Whether the output has room for bytes behind all that is queued.
    pub fn has_room(&self, bytes: usize) -> bool {
        let state = self.lock();
        let unsent = self.unsent.load(Ordering::Relaxed);
        !state.is_blocked && state.output_bytes + unsent + bytes <= OUTPUT_BYTES_MAX / 2
    }

    /// Whether h2 could write; it is polled next.
    pub fn unblock(&self) -> bool {
        let mut state = self.lock();
        let has_room = state.output_bytes < state.output_max;
        state.is_blocked &= !has_room;
        has_room
    }

    pub fn take_output(&self, mut each: impl FnMut(Piece<B>)) {
        let mut state = self.lock();
        state.output_max = OUTPUT_BYTES_MAX;
        state.output_bytes = 0;
        let pieces = std::mem::take(&mut state.pieces);
        let tail = std::mem::take(&mut state.tail);
        drop(state);
        pieces.into_iter().for_each(&mut each);
        if !tail.is_empty() {
            each(Piece::Copied(tail));
        }
    }

    /// Whether bytes are put out, or h2 waits for room.
    pub fn has_output(&self) -> bool {
        let state = self.lock();
        state.is_blocked || state.output_bytes > 0
    }

    /// Bytes of messages that are not in the output, and of the output.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent.load(Ordering::Relaxed) + self.lock().output_bytes
    }

    /// Streams of which a message has left h2, or was discarded, one item for each message.
    pub fn take_drained(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().drained)
    }
}

impl<B: Body> State<B> {
    fn copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.output_bytes += bytes.len();
    }

    fn write(&mut self, bytes: &[u8]) {
        if bytes.len() >= SLICE_BYTES_MIN {
            let address = bytes.as_ptr() as usize;
            if let Some((start, (body, _))) = self.long.range(..=address).next_back() {
                let offset = address - start;
                let length = (**body).as_ref().len();
                if offset + bytes.len() <= length {
                    let part = Piece::Part(body.clone(), offset, bytes.len());
                    if !self.tail.is_empty() {
                        let tail = std::mem::take(&mut self.tail);
                        self.pieces.push(Piece::Copied(tail));
                    }
                    self.pieces.push(part);
                    self.output_bytes += bytes.len();
                    return;
                }
            }
        }
        self.copy(bytes);
    }
}

/// What h2 reads from and writes to.
pub struct Wire<B>(pub Arc<Pipe<B>>);

impl<B: Body> AsyncRead for Wire<B> {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.input.read(buffer) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

impl<B: Body> AsyncWrite for Wire<B> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if state.output_bytes >= state.output_max {
            state.is_blocked = true;
            return Poll::Pending;
        }
        for bytes in pieces {
            state.write(bytes);
        }
        Poll::Ready(Ok(pieces.iter().map(|bytes| bytes.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes of a stream on their way out: some that are copied, then a body. h2 advances it as it
/// writes, and drops it when all is written or the stream is reset.
pub struct Outgoing<B: Body> {
    front: Vec<u8>,
    front_at: usize,
    body: Option<Arc<B>>,
    body_at: usize,
    stream: u32,
    pipe: Arc<Pipe<B>>,
}

impl<B: Body> Outgoing<B> {
    pub fn new(pipe: &Arc<Pipe<B>>, stream: u32, front: Vec<u8>, body: Option<B>) -> Self {
        let body = body.map(Arc::new);
        if let Some(body) = &body {
            let address = (**body).as_ref().as_ptr() as usize;
            let mut state = pipe.lock();
            state.long.entry(address).or_insert((body.clone(), 0)).1 += 1;
        }
        let outgoing = Outgoing {
            front,
            front_at: 0,
            body,
            body_at: 0,
            stream,
            pipe: pipe.clone(),
        };
        pipe.unsent
            .fetch_add(outgoing.remaining(), Ordering::Relaxed);
        outgoing
    }

    fn front_left(&self) -> &[u8] {
        self.front.get(self.front_at..).unwrap_or_default()
    }

    fn body_left(&self) -> &[u8] {
        let body = self.body.as_ref().map_or(&[][..], |body| (**body).as_ref());
        body.get(self.body_at..).unwrap_or_default()
    }
}

impl<B: Body> Buf for Outgoing<B> {
    fn remaining(&self) -> usize {
        self.front_left().len() + self.body_left().len()
    }

    fn chunk(&self) -> &[u8] {
        let front = self.front_left();
        if front.is_empty() {
            self.body_left()
        } else {
            front
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let left = [self.front_left(), self.body_left()];
        let left = left.into_iter().filter(|bytes| !bytes.is_empty());
        for (slice, bytes) in slices.iter_mut().zip(left) {
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        let of_front = count.min(self.front_left().len());
        self.front_at += of_front;
        self.body_at += count - of_front;
        self.pipe.unsent.fetch_sub(count, Ordering::Relaxed);
    }
}

impl<B: Body> Drop for Outgoing<B> {
    fn drop(&mut self) {
        self.pipe
            .unsent
            .fetch_sub(self.remaining(), Ordering::Relaxed);
        let mut state = self.pipe.lock();
        state.drained.push(self.stream);
        let mut last = None;
        if let Some(body) = &self.body {
            let address = (**body).as_ref().as_ptr() as usize;
            if let Some((_, count)) = state.long.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    last = state.long.remove(&address);
                }
            }
        }
        // A body can have a destructor of its own.
        drop(state);
        drop(last);
    }
}
