//! Hostile bytes and random calls for sessions of HTTP/2: `make fuzz`.
//!
//! A client's session and a server's are connected by a transport that cuts bytes anywhere. Random
//! calls, messages, holds and resets go through it; each message must arrive whole and in order.
//! Then the bytes of both sides are damaged, mixed with random frames, and given to new sessions:
//! nothing may panic, and nothing may follow BROKEN.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use _native::http2::client::ClientSession;
use _native::http2::metadata::{Headers, RequestHead};
use _native::http2::pipe::Piece;
use _native::http2::server::{Routes, ServerSession};
use _native::http2::{Event, Limits, Pieces};

#[path = "support/chance.rs"]
mod chance;
use chance::{at, Chance};

type Bytes = Vec<u8>;
type Client = ClientSession<Bytes>;
type Server = ServerSession<Bytes, Paths>;

const CANCEL: u32 = 8;
const LENGTHS: [usize; 8] = [0, 1, 5, 100, 3_000, 17_000, 70_000, 400_000];

struct Paths;

impl Routes for Paths {
    fn route_of(&mut self, path: &str) -> Option<(u32, bool)> {
        match path {
            "/s/One" => Some((0, false)),
            "/s/Many" => Some((1, true)),
            _ => None,
        }
    }

    fn keeps(&self, _name: &str) -> bool {
        true
    }
}

fn limits(chance: &mut Chance) -> Limits {
    Limits {
        message_bytes_max: 1 << 20,
        header_list_bytes_max: 16 << 10,
        streams_max: chance.of(&[1, 5, 100]),
        frame_bytes_max: chance.of(&[0, 16 << 10, 64 << 10, 1 << 20]),
        stream_window_bytes: chance.of(&[64 << 10, 1 << 20]),
        connection_window_bytes: chance.of(&[64 << 10, 2 << 20, u32::MAX]),
        turn_bytes: chance.of(&[100, 64 << 10]),
        turn_calls: chance.of(&[1, 64]),
        unfinished_bytes_max: 128 << 20,
        metadata_bytes_max: 2 << 20,
    }
}

/// Limits that messages of a hostile peer exceed.
fn strict_limits(chance: &mut Chance) -> Limits {
    Limits {
        unfinished_bytes_max: chance.of(&[0, 5_000, 100_000]),
        metadata_bytes_max: chance.of(&[0, 500, 2 << 20]),
        ..limits(chance)
    }
}

fn client(limits: Limits) -> Client {
    Client::new(limits).unwrap_or_else(|| unreachable!())
}

fn head(path: &str) -> RequestHead {
    RequestHead::new("http", "host:1", path, Headers::new()).unwrap_or_else(|_| unreachable!())
}

/// A message that is known by its number.
fn message(chance: &mut Chance, number: u32) -> Bytes {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(4 + chance.of(&LENGTHS), number as u8);
    bytes
}

/// Bytes as a message, whole or in pieces.
fn pieces(chance: &mut Chance, bytes: &Bytes) -> Pieces<Bytes> {
    if chance.below(2) == 0 {
        return Pieces::One(bytes.clone());
    }
    let (front, back) = bytes.split_at(chance.below(bytes.len() + 1));
    Pieces::Many(vec![front.to_vec(), Vec::new(), back.to_vec()])
}

fn add_piece(bytes: &mut Bytes, piece: Piece<Bytes>) {
    match piece {
        Piece::Copied(copied) => bytes.extend(copied),
        Piece::Part(body, offset, length) => {
            bytes.extend(
                body.get(offset..offset + length)
                    .unwrap_or_else(|| unreachable!()),
            );
        }
    }
}

/// What both sides have sent and received on a stream.
#[derive(Default)]
struct Call {
    asked: Vec<Bytes>,
    heard: Vec<Bytes>,
    answered: Vec<Bytes>,
    received: Vec<Bytes>,
    has_sent_all: bool,
    is_open_at_server: bool,
    is_over_at_client: bool,
    is_reset: bool,
}

struct Pair {
    client: Client,
    server: Server,
    to_server: Bytes,
    to_client: Bytes,
    /// All bytes, for the hostile part.
    from_client: Bytes,
    from_server: Bytes,
    calls: BTreeMap<u32, Call>,
    number: u32,
}

impl Pair {
    fn new(chance: &mut Chance) -> Self {
        let mut pair = Pair {
            client: client(limits(chance)),
            server: Server::new(Paths, limits(chance)),
            to_server: Vec::new(),
            to_client: Vec::new(),
            from_client: Vec::new(),
            from_server: Vec::new(),
            calls: BTreeMap::new(),
            number: 0,
        };
        pair.settle(chance);
        pair
    }

    /// Move some bytes; returns whether there were any.
    fn transfer(&mut self, chance: &mut Chance) -> bool {
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        if chance.below(8) > 0 {
            self.client
                .output(|piece| add_piece(&mut from_client, piece));
        }
        if chance.below(8) > 0 {
            self.server
                .output(|piece| add_piece(&mut from_server, piece));
        }
        self.from_client.extend(&from_client);
        self.from_server.extend(&from_server);
        self.to_server.extend(from_client);
        self.to_client.extend(from_server);
        let most = chance.of(&[9, 1_000, 70_000, 3 << 20]);
        let count = chance.below(most + 1).min(self.to_server.len());
        let part: Bytes = self.to_server.drain(..count).collect();
        let events = self.server.receive(&part);
        self.at_server(events);
        let count = chance.below(most + 1).min(self.to_client.len());
        let part: Bytes = self.to_client.drain(..count).collect();
        let events = self.client.receive(&part);
        self.at_client(events);
        let events = self.server.events();
        self.at_server(events);
        let events = self.client.events();
        self.at_client(events);
        !(self.to_server.is_empty() && self.to_client.is_empty())
            || self.server.is_behind()
            || self.client.is_behind()
    }

    /// Move bytes until there are none.
    fn settle(&mut self, chance: &mut Chance) {
        let mut idle = 0;
        while idle < 40 {
            idle = if self.transfer(chance) { 0 } else { idle + 1 };
        }
    }

    fn call(&mut self, number: u32) -> &mut Call {
        self.calls
            .get_mut(&number)
            .unwrap_or_else(|| unreachable!())
    }

    fn at_server(&mut self, events: Vec<Event<Bytes>>) {
        for event in events {
            match event {
                Event::Call(stream, _, _, _, message) => {
                    let call = self.call(stream);
                    call.heard.push(message);
                    call.is_open_at_server = true;
                }
                Event::Opened(stream, ..) => self.call(stream).is_open_at_server = true,
                Event::Message(stream, message) => {
                    self.call(stream).heard.push(message);
                }
                Event::Ended(stream) => {
                    let call = self.call(stream);
                    assert!(call.has_sent_all && call.asked == call.heard);
                }
                Event::Reset(stream, ..) => {
                    let call = self.call(stream);
                    assert!(call.is_reset || call.is_over_at_client);
                    call.is_open_at_server = false;
                }
                Event::Broken(code, reason) => unreachable!("broken: {code} {reason}"),
                _ => {}
            }
        }
    }

    fn at_client(&mut self, events: Vec<Event<Bytes>>) {
        for event in events {
            match event {
                Event::Message(stream, message) => {
                    self.call(stream).received.push(message);
                }
                Event::Answer(stream, status, _, _, message) => {
                    let call = self.call(stream);
                    call.received.extend(message);
                    assert!(status != 0 || call.received == call.answered);
                    call.is_over_at_client = true;
                }
                Event::Finished(stream, ..) => {
                    let call = self.call(stream);
                    assert!(call.received == call.answered);
                    call.is_over_at_client = true;
                }
                Event::Reset(stream, code, reason) => {
                    let call = self.call(stream);
                    assert!(call.is_reset, "stream {stream}: {code} {reason}");
                    call.is_over_at_client = true;
                }
                Event::Broken(code, reason) => unreachable!("broken: {code} {reason}"),
                _ => {}
            }
        }
    }

    fn step(&mut self, chance: &mut Chance) {
        self.number += 1;
        let number = self.number;
        let streams: Vec<u32> = self.calls.keys().copied().collect();
        if streams.is_empty() || chance.below(4) == 0 {
            return self.begin(chance);
        }
        let stream = at(&streams, chance.below(streams.len()));
        let is_open_at_server = self.call(stream).is_open_at_server;
        let may_ask = !self.call(stream).has_sent_all && !self.call(stream).is_over_at_client;
        match chance.below(12) {
            0..=3 if may_ask => {
                let sent = message(chance, number);
                self.client.send(stream, pieces(chance, &sent), false);
                self.call(stream).asked.push(sent);
            }
            4 if may_ask => {
                self.client.end(stream);
                self.call(stream).has_sent_all = true;
            }
            0..=5 if is_open_at_server => {
                let sent = message(chance, number);
                if chance.below(3) == 0 && self.call(stream).answered.is_empty() {
                    self.server
                        .respond(stream, pieces(chance, &sent), Headers::new(), false);
                    self.call(stream).is_open_at_server = false;
                } else {
                    self.server.send(stream, pieces(chance, &sent), false);
                }
                self.call(stream).answered.push(sent);
            }
            6 if is_open_at_server => {
                self.server.finish(stream, 5, "fünf", Headers::new());
                self.call(stream).is_open_at_server = false;
            }
            7 => self.client.hold(stream),
            8 => self.client.resume(stream),
            9 => self.server.hold(stream),
            10 => self.server.resume(stream),
            11 if chance.below(4) == 0 => {
                self.call(stream).is_reset = true;
                if chance.below(2) == 0 {
                    self.client.reset(stream, CANCEL);
                    self.call(stream).is_over_at_client = true;
                } else {
                    self.server.reset(stream, CANCEL);
                    self.call(stream).is_open_at_server = false;
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, chance: &mut Chance) {
        let is_one = chance.below(2) == 0;
        let mut call = Call::default();
        let sent = message(chance, self.number);
        let first = is_one.then(|| pieces(chance, &sent));
        let head = head(if is_one { "/s/One" } else { "/s/Many" });
        let stream = self
            .client
            .request(&head, first, Some(9.5), Headers::new(), false);
        if stream > 0 {
            call.has_sent_all = is_one;
            call.asked.extend(is_one.then_some(sent));
            self.calls.insert(stream, call);
        }
    }

    /// End all calls; all that was sent must have arrived.
    fn finish(&mut self, chance: &mut Chance) {
        let streams: Vec<u32> = self.calls.keys().copied().collect();
        for stream in &streams {
            self.client.resume(*stream);
            self.server.resume(*stream);
            if !self.call(*stream).is_over_at_client {
                self.client.end(*stream);
                self.call(*stream).has_sent_all = true;
            }
        }
        self.settle(chance);
        for stream in &streams {
            if self.call(*stream).is_open_at_server {
                self.server.finish(*stream, 0, "", Headers::new());
            }
        }
        self.settle(chance);
        for (stream, call) in &self.calls {
            let lost =
                call.is_reset || call.is_over_at_client && call.heard.len() < call.asked.len();
            assert!(call.is_over_at_client, "stream {stream} has no end");
            assert!(
                lost || call.heard == call.asked,
                "stream {stream}: requests"
            );
            assert!(
                call.is_reset || call.received == call.answered,
                "stream {stream}: answers"
            );
        }
        assert_eq!(self.client.open_streams(), 0);
        assert_eq!(self.server.open_streams(), 0);
        assert_eq!(self.client.unsent_bytes() + self.server.unsent_bytes(), 0);
    }
}

/// A frame of any kind, which most often has a sensible length.
fn frame(chance: &mut Chance) -> Bytes {
    let kind = chance.below(12) as u8;
    let most = if chance.below(8) == 0 { 20_000 } else { 40 };
    let payload = match kind {
        3 | 8 => chance.bytes(4).into_iter().chain([0; 4]).take(4).collect(),
        4 => chance
            .bytes(7)
            .into_iter()
            .flat_map(|it| [0, it % 8, 0, it, 9, it])
            .collect(),
        6 => vec![7; 8],
        _ => chance.bytes(most),
    };
    let length = match chance.below(30) {
        0 => chance.below(1 << 24),
        _ => payload.len(),
    };
    let mut bytes = (length as u32)
        .to_be_bytes()
        .get(1..)
        .map(<[u8]>::to_vec)
        .unwrap_or_default();
    bytes.extend([kind, chance.of(&[0, 1, 4, 5, 9, 0x2d, 0xff])]);
    bytes.extend((chance.below(12) as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Damage bytes in some places, and put frames between them.
fn hostile(chance: &mut Chance, honest: &[u8]) -> Bytes {
    let mut bytes = honest
        .get(..honest.len().min(200_000))
        .unwrap_or_default()
        .to_vec();
    for _ in 0..chance.below(6) {
        let place = chance.below(bytes.len());
        match chance.below(4) {
            0 => {
                let frame = frame(chance);
                bytes.splice(place..place, frame);
            }
            1 => bytes.truncate(place),
            2 => {
                let until = (place + chance.below(60)).min(bytes.len());
                bytes.drain(place..until);
            }
            _ => {
                let with = chance.next() as u8;
                bytes
                    .iter_mut()
                    .skip(place)
                    .take(1)
                    .for_each(|it| *it = with);
            }
        }
    }
    for _ in 0..chance.below(30) {
        bytes.extend(frame(chance));
    }
    bytes
}

/// Check the events of a hostile peer; returns streams that can be answered.
fn check(events: &[Event<Bytes>], is_broken: &mut bool) -> Vec<u32> {
    let mut streams = Vec::new();
    for event in events {
        let kind = std::mem::discriminant(event);
        assert!(!*is_broken, "an event behind BROKEN: {kind:?}");
        match event {
            Event::Broken(_, reason) => {
                assert!(!reason.contains("panic"), "h2 has panicked");
                *is_broken = true;
            }
            Event::Call(stream, ..) | Event::Opened(stream, ..) => streams.push(*stream),
            _ => {}
        }
    }
    streams
}

fn attack_server(chance: &mut Chance, honest: &[u8]) {
    let mut server = Server::new(Paths, strict_limits(chance));
    let mut is_broken = false;
    let bytes = hostile(chance, honest);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() || server.is_behind() {
        let (part, behind) = rest.split_at(chance.below(3_000).min(rest.len()));
        rest = behind;
        let events = server.receive(part);
        for stream in check(&events, &mut is_broken) {
            match chance.below(5) {
                0 => server.reset(stream, CANCEL),
                1 => server.hold(stream),
                2 => {
                    server.finish(stream, 3, "no", Headers::new());
                }
                _ => {
                    let answer = message(chance, stream);
                    server.respond(stream, Pieces::One(answer), Headers::new(), false);
                }
            }
        }
        if chance.below(2) == 0 {
            server.output(|_| {});
        }
        check(&server.events(), &mut is_broken);
    }
}

fn attack_client(chance: &mut Chance, honest: &[u8]) {
    let mut client = client(strict_limits(chance));
    let mut is_broken = false;
    let bytes = hostile(chance, honest);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() || client.is_behind() {
        let (part, behind) = rest.split_at(chance.below(3_000).min(rest.len()));
        rest = behind;
        check(&client.receive(part), &mut is_broken);
        let first = (chance.below(2) == 0).then(|| Pieces::One(message(chance, 1)));
        let stream = client.request(
            &head("/s/One"),
            first,
            None,
            Headers::new(),
            chance.below(2) == 0,
        );
        if chance.below(8) == 0 {
            client.reset(stream, CANCEL);
        }
        if chance.below(2) == 0 {
            client.output(|_| {});
        }
        check(&client.events(), &mut is_broken);
    }
}

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse::<u64>().ok());
    let (seconds, seed) = (words.next().unwrap_or(60), words.next().unwrap_or(1));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = words.next().unwrap_or(0);
    println!("seed {seed}: a round can be had again by SECONDS, SEED and the round before it");
    while Instant::now() < until {
        rounds += 1;
        let mut chance = Chance(seed.wrapping_mul(1 << 40).wrapping_add(rounds).max(1));
        chance.next();
        let current = rounds;
        let told = std::panic::catch_unwind(move || {
            let mut pair = Pair::new(&mut chance);
            for _ in 0..chance.below(150) {
                pair.step(&mut chance);
                pair.transfer(&mut chance);
            }
            pair.finish(&mut chance);
            let (from_client, from_server) = (pair.from_client, pair.from_server);
            for _ in 0..20 {
                attack_server(&mut chance, &from_client);
                attack_client(&mut chance, &from_server);
            }
        });
        if let Err(panic) = told {
            println!("round {current} of seed {seed} has failed");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{rounds} rounds of HTTP/2 in {seconds} s from seed {seed}: nothing found");
}
