//! Messages of a stream, assembled from the payloads of DATA frames.
//!
//! Each part is copied into the message as soon as it arrives. Then h2's buffer is free for the next
//! frames, and is still in the processor's cache.

use bytes::Bytes;

pub const PREFIX_BYTES: usize = 5;
/// Memory of messages of a connection that is allocated when they begin. Beyond it a message has
/// memory for its whole length when a quarter has arrived: a peer can announce any length.
const EARLY_BYTES_MAX: usize = 16 << 20;

/// A message that is filled from its beginning on.
pub trait Assembled: Sized {
    /// None if there is no memory.
    fn with_room(length: usize) -> Option<Self>;
    /// Add a part, which is no longer than the missing rest.
    fn append(&mut self, part: &[u8]);
}

impl Assembled for Vec<u8> {
    fn with_room(length: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok().map(|()| bytes)
    }

    fn append(&mut self, part: &[u8]) {
        self.extend_from_slice(part);
    }
}

/// Why a message is not accepted: a status of gRPC and its text.
pub struct Refusal {
    pub status: u32,
    pub text: String,
}

impl Refusal {
    pub fn new(status: u32, text: impl Into<String>) -> Self {
        Refusal {
            status,
            text: text.into(),
        }
    }
}

/// Bytes of a connection's messages that have arrived in part, or whose call is not complete.
pub struct Unfinished {
    bytes: usize,
    bytes_max: usize,
    /// The sum of the lengths of messages that had memory when they began.
    early: usize,
}

impl Unfinished {
    pub fn new(bytes_max: usize) -> Self {
        Unfinished {
            bytes: 0,
            bytes_max,
            early: 0,
        }
    }

    /// The refusal of the message that has exceeded the bound.
    pub fn refusal(&self) -> Option<Refusal> {
        (self.bytes > self.bytes_max).then(|| {
            let text = format!(
                "unfinished messages of the connection are longer than {} bytes",
                self.bytes_max
            );
            Refusal::new(super::RESOURCE_EXHAUSTED, text)
        })
    }
}

/// A message of which a part has arrived.
pub struct Incoming<M> {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Of the message.
    length: usize,
    /// Bytes of the message that have not arrived.
    left: usize,
    message: Option<M>,
    /// Parts that arrived before there was memory for the whole message.
    first: Vec<u8>,
    /// The share of this stream in `Unfinished`.
    counted: usize,
    early: usize,
}

impl<M> Default for Incoming<M> {
    fn default() -> Self {
        Incoming {
            prefix: [0; PREFIX_BYTES],
            prefix_bytes: 0,
            length: 0,
            left: 0,
            message: None,
            first: Vec::new(),
            counted: 0,
            early: 0,
        }
    }
}

impl<M: Assembled> Incoming<M> {
    /// Whether no part of a message has arrived.
    pub fn is_empty(&self) -> bool {
        self.prefix_bytes == 0
    }

    /// Read bytes up to the end of a message. They are counted until `release`.
    pub fn read(
        &mut self,
        bytes: &mut Bytes,
        bytes_max: usize,
        unfinished: &mut Unfinished,
    ) -> Result<Option<M>, Refusal> {
        if self.prefix_bytes < PREFIX_BYTES {
            let took = (PREFIX_BYTES - self.prefix_bytes).min(bytes.len());
            let part = bytes.split_to(took);
            for (to, from) in self.prefix.iter_mut().skip(self.prefix_bytes).zip(&part) {
                *to = *from;
            }
            self.prefix_bytes += took;
            if self.prefix_bytes < PREFIX_BYTES {
                return Ok(None);
            }
            let [compressed, a, b, c, d] = self.prefix;
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if compressed != 0 {
                return Err(Refusal::new(
                    super::UNIMPLEMENTED,
                    "compressed messages are not supported",
                ));
            }
            if length > bytes_max {
                let text = format!("a message of {length} bytes is longer than {bytes_max}");
                return Err(Refusal::new(super::RESOURCE_EXHAUSTED, text));
            }
            if bytes.len() >= length {
                self.prefix_bytes = 0;
                self.count(length, unfinished);
                let mut message: M = with_room(length)?;
                message.append(&bytes.split_to(length));
                return Ok(Some(message));
            }
            (self.length, self.left) = (length, length);
        }
        let part = bytes.split_to(self.left.min(bytes.len()));
        self.count(part.len(), unfinished);
        self.left -= part.len();
        self.keep(&part, unfinished)?;
        if self.left > 0 {
            return Ok(None);
        }
        self.prefix_bytes = 0;
        Ok(self.message.take())
    }

    fn count(&mut self, bytes: usize, unfinished: &mut Unfinished) {
        unfinished.bytes += bytes;
        self.counted += bytes;
    }

    fn keep(&mut self, part: &[u8], unfinished: &mut Unfinished) -> Result<(), Refusal> {
        if self.message.is_none() {
            let has_arrived = self.length - self.left;
            if unfinished.early + self.length <= EARLY_BYTES_MAX {
                unfinished.early += self.length;
                self.early += self.length;
            } else if has_arrived < self.length / 4 {
                self.first.extend_from_slice(part);
                return Ok(());
            }
            let mut message: M = with_room(self.length)?;
            message.append(&std::mem::take(&mut self.first));
            self.message = Some(message);
        }
        if let Some(message) = &mut self.message {
            message.append(part);
        }
        Ok(())
    }

    /// Count nothing of the stream any more.
    pub fn release(&mut self, unfinished: &mut Unfinished) {
        unfinished.bytes -= std::mem::take(&mut self.counted);
        unfinished.early -= std::mem::take(&mut self.early);
    }

    /// Discard a message that has arrived in part.
    pub fn discard(&mut self, unfinished: &mut Unfinished) {
        self.message = None;
        self.first = Vec::new();
        self.release(unfinished);
    }
}

fn with_room<M: Assembled>(length: usize) -> Result<M, Refusal> {
    M::with_room(length).ok_or_else(|| {
        let text = format!("there is no memory for a message of {length} bytes");
        Refusal::new(super::RESOURCE_EXHAUSTED, text)
    })
}
