//! The halves of a stream: messages that arrive, and messages that are queued.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::core::Core;
use super::incoming::{Assembled, Incoming, Refusal, PREFIX_BYTES};
use super::pipe::{Body, Outgoing, Pipe, LONG_BODY_BYTES_MIN};
use super::Pieces;

/// What a stream has next.
pub enum Step<M> {
    Message(M),
    /// The peer sends no further messages. Trailers, if there are any.
    Ended(Option<HeaderMap>),
    Pending,
    /// The turn has had its messages.
    Full,
    Refused(Refusal),
    Failed(h2::Error),
}

/// The receiving half, and what is known of the sending one.
pub struct Half<M> {
    pub recv: Option<RecvStream>,
    incoming: Incoming<M>,
    /// Its message is not reported before the call is complete.
    is_one: bool,
    /// Received, and not read.
    rest: Bytes,
    is_held: bool,
    withheld: usize,
    /// Queued bodies that have not left h2.
    pub queued: u32,
    pub wants_room: bool,
}

impl<M: Assembled> Half<M> {
    pub fn new(recv: Option<RecvStream>, is_one: bool) -> Self {
        Half {
            recv,
            incoming: Incoming::default(),
            is_one,
            rest: Bytes::new(),
            is_held: false,
            withheld: 0,
            queued: 0,
            wants_room: false,
        }
    }

    /// Whether a part of a message has arrived, and the rest has not.
    pub fn is_cut(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Read what h2 has for the stream.
    pub fn next<B: Body>(&mut self, core: &mut Core<B>) -> Step<M> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if !self.rest.is_empty() {
                if core.messages_left == 0 {
                    return Step::Full;
                }
                let bytes_max = core.limits.message_bytes_max;
                let (rest, unfinished) = (&mut self.rest, &mut core.unfinished);
                match self.incoming.read(rest, bytes_max, unfinished) {
                    Ok(Some(message)) if !self.is_one => {
                        self.incoming.release(unfinished);
                        core.messages_left -= 1;
                        return Step::Message(message);
                    }
                    Ok(found) => {
                        let ends = self.recv.as_ref().is_some_and(RecvStream::is_end_stream);
                        if let (Some(refusal), false) = (unfinished.refusal(), ends) {
                            return Step::Refused(refusal);
                        }
                        if let Some(message) = found {
                            core.messages_left -= 1;
                            return Step::Message(message);
                        }
                    }
                    Err(refusal) => return Step::Refused(refusal),
                }
                continue;
            }
            let Some(recv) = &mut self.recv else {
                return Step::Pending;
            };
            match recv.poll_data(&mut context) {
                Poll::Ready(Some(Ok(bytes))) => {
                    if self.is_held {
                        self.withheld += bytes.len();
                        core.withhold(bytes.len());
                    } else {
                        // It fails for no more than was received.
                        let _ = recv.flow_control().release_capacity(bytes.len());
                        // A WINDOW_UPDATE may be due.
                        core.is_dirty = true;
                    }
                    self.rest = bytes;
                }
                Poll::Ready(Some(Err(error))) => return Step::Failed(error),
                Poll::Ready(None) => {
                    let trailers = recv.poll_trailers(&mut context);
                    return match trailers {
                        Poll::Ready(Ok(trailers)) => Step::Ended(trailers),
                        Poll::Ready(Err(error)) => Step::Failed(error),
                        Poll::Pending => Step::Pending,
                    };
                }
                Poll::Pending => return Step::Pending,
            }
        }
    }

    pub fn hold(&mut self) {
        self.is_held = true;
    }

    pub fn resume<B: Body>(&mut self, core: &mut Core<B>) {
        self.is_held = false;
        let withheld = std::mem::take(&mut self.withheld);
        if let Some(recv) = &mut self.recv {
            let _ = recv.flow_control().release_capacity(withheld);
        }
        core.release(withheld);
    }

    /// Nothing is received any more.
    pub fn stop<B: Body>(&mut self, core: &mut Core<B>) {
        self.recv = None;
        self.rest = Bytes::new();
        self.incoming.discard(&mut core.unfinished);
        core.release(std::mem::take(&mut self.withheld));
    }

    /// Whether the windows and the output have room for a message. If it is queued then, it leaves
    /// with the next output for certain.
    pub fn fits<B: Body>(
        core: &Core<B>,
        stream: &mut SendStream<Outgoing<B>>,
        message: &Pieces<B>,
    ) -> bool {
        let bytes = message.len() + PREFIX_BYTES;
        if !core.pipe.has_room(bytes) {
            return false;
        }
        stream.reserve_capacity(bytes);
        stream.capacity() >= bytes
    }

    /// Queue a message.
    pub fn send<B: Body>(
        &mut self,
        core: &mut Core<B>,
        stream: &mut SendStream<Outgoing<B>>,
        message: Pieces<B>,
        is_framed: bool,
        is_last: bool,
    ) {
        core.sent(message.len());
        core.is_dirty = true;
        let number = stream.stream_id().as_u32();
        let mut queue = Queue {
            pipe: &core.pipe,
            stream,
            number,
            last: None,
            count: 0,
        };
        let length = message.len() as u32;
        let mut front = Vec::with_capacity(match &message {
            Pieces::One(body) if body.as_ref().len() < LONG_BODY_BYTES_MIN => {
                message.len() + PREFIX_BYTES
            }
            _ => 64,
        });
        if !is_framed {
            front.push(0);
            front.extend(length.to_be_bytes());
        }
        match message {
            Pieces::One(body) => queue.add(&mut front, body),
            Pieces::Many(bodies) => bodies
                .into_iter()
                .for_each(|body| queue.add(&mut front, body)),
        }
        if !front.is_empty() {
            queue.put(front, None);
        }
        self.queued += queue.end(is_last);
    }
}

/// Bodies of a message on their way to h2, one behind the other.
struct Queue<'a, B: Body> {
    pipe: &'a Arc<Pipe<B>>,
    stream: &'a mut SendStream<Outgoing<B>>,
    number: u32,
    last: Option<Outgoing<B>>,
    count: u32,
}

impl<B: Body> Queue<'_, B> {
    fn add(&mut self, front: &mut Vec<u8>, body: B) {
        if body.as_ref().len() < LONG_BODY_BYTES_MIN {
            front.extend_from_slice(body.as_ref());
        } else {
            self.put(std::mem::take(front), Some(body));
        }
    }

    fn put(&mut self, front: Vec<u8>, body: Option<B>) {
        let outgoing = Outgoing::new(self.pipe, self.number, front, body);
        if let Some(before) = self.last.replace(outgoing) {
            self.pass(before, false);
        }
    }

    fn pass(&mut self, outgoing: Outgoing<B>, is_last: bool) {
        self.count += 1;
        // A stream that the peer has reset refuses it; the reset is reported.
        let _ = self.stream.send_data(outgoing, is_last);
    }

    fn end(mut self, is_last: bool) -> u32 {
        if let Some(outgoing) = self.last.take() {
            self.pass(outgoing, is_last);
        }
        self.count
    }
}
