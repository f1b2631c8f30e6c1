//! Sessions of HTTP/2 that carry gRPC calls, without I/O: the h2 crate, polled by hand.
//!
//! `rpc/rockoon_rpc/session.py` states their interface. Received bytes go through `scanner`, which
//! cuts them into turns, to h2, which reads them from `input`; `incoming` assembles messages from what
//! h2 returns; `pipe` is the transport that h2 writes to.
//!
//! h2 is asked for the events of those streams that had frames in the turn, so it needs no wakers.

mod charge;
pub mod client;
mod core;
pub mod incoming;
mod input;
mod late;
pub mod metadata;
pub mod pipe;
mod scanner;
pub mod server;
mod stream;

pub use self::core::Limits;
use self::metadata::Metadata;

// Statuses of gRPC.
pub const OK: u32 = 0;
pub const UNKNOWN: u32 = 2;
pub const PERMISSION_DENIED: u32 = 7;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;
pub const UNAUTHENTICATED: u32 = 16;

// Error codes of HTTP/2.
pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;

/// What has happened; see `rockoon_rpc.session`. The first number is the stream.
pub enum Event<M> {
    Ready,
    Message(u32, M),
    Reset(u32, u32, String),
    Room(u32),
    Pong,
    GoAway(u32, u32, String),
    Waste(u32, u32),
    Broken(u32, String),
    Call(u32, u32, Metadata, Option<f64>, M),
    Opened(u32, u32, Metadata, Option<f64>),
    Ended(u32),
    LateReset(u32),
    Awaited(u32),
    Answer(u32, u32, String, Metadata, Option<M>),
    Finished(u32, u32, String, Metadata),
}

/// A message to send: its bytes, or pieces of it.
pub enum Pieces<B> {
    One(B),
    Many(Vec<B>),
}

impl<B: AsRef<[u8]>> Pieces<B> {
    pub fn len(&self) -> usize {
        match self {
            Pieces::One(piece) => piece.as_ref().len(),
            Pieces::Many(pieces) => pieces.iter().map(|piece| piece.as_ref().len()).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
