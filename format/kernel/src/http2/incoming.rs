//! Messages of a stream, assembled from the payloads of DATA frames.

use bytes::{Buf, Bytes, BytesMut};

pub const PREFIX_BYTES: usize = 5;
/// Shorter payloads are copied, so that a few bytes do not keep h2's whole buffer.
const SHARED_BYTES_MIN: usize = 2 << 10;

/// The bytes of a message, in pieces.
pub enum Message {
    Whole(Bytes),
    Pieces(Vec<Bytes>),
}

impl Message {
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Message::Whole(bytes) => std::slice::from_ref(bytes),
            Message::Pieces(pieces) => pieces,
        }
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

/// A message of which a part has arrived.
#[derive(Default)]
pub struct Incoming {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Of the message; behind its prefix.
    left: usize,
    pieces: Vec<Bytes>,
    tail: BytesMut,
}

impl Incoming {
    /// Whether no part of a message has arrived.
    pub fn is_empty(&self) -> bool {
        self.prefix_bytes == 0
    }

    /// Read bytes up to the end of a message.
    pub fn read(
        &mut self,
        bytes: &mut Bytes,
        bytes_max: usize,
    ) -> Result<Option<Message>, Refusal> {
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
                return Err(Refusal::new(
                    super::RESOURCE_EXHAUSTED,
                    format!("a message of {length} bytes is longer than {bytes_max}"),
                ));
            }
            if bytes.len() >= length {
                self.prefix_bytes = 0;
                return Ok(Some(Message::Whole(bytes.split_to(length))));
            }
            self.left = length;
        }
        let part = bytes.split_to(self.left.min(bytes.len()));
        self.left -= part.len();
        self.keep(part);
        if self.left > 0 {
            return Ok(None);
        }
        self.prefix_bytes = 0;
        self.end_tail();
        Ok(Some(Message::Pieces(std::mem::take(&mut self.pieces))))
    }

    fn keep(&mut self, part: Bytes) {
        if part.len() >= SHARED_BYTES_MIN {
            self.end_tail();
            self.pieces.push(part);
        } else {
            self.tail.extend_from_slice(part.chunk());
        }
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
            self.tail = BytesMut::new();
        }
    }
}
