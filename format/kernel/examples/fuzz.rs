//! Hostile bytes for the kernel: `make fuzz`, which builds this with AddressSanitizer and checks of
//! arithmetic.
//!
//! Batches are made, stamped, damaged in a few places and torn; then all that reads bytes reads them.
//! Nothing may panic or touch memory that it does not own, and what is accepted must be whole.

use std::time::{Duration, Instant};

use _native::batch::{append, check, stamp, Piece, Rules, Stamp, ENTRY_BYTES};
use _native::columns::{
    code, compare, compare_parts, key_hashes, locate, piece, piece_crc, sequence_end, sound, WRONG,
};
use _native::delivered::{Common as Delivery, Reserved, Writer, FRAME_HEAD_BYTES};
use _native::encode::{record, size, Columns, Common};
use _native::entries::{matching, records_to_read, Log};
use _native::index::{keys, Seconds, Slots, UNIT_BYTES};
use _native::laid::{Pieces, Progress};
use _native::pieces::{offset_id, room, Properties, Span};
use _native::reading::{chunk, put};
use _native::runs::{cut, Listed, LogCutter, Rules as Entries};
use _native::scan::{chain, extent, scan, Checks, Limits};
use _native::text::tags_code;
use _native::window::{Field, Wanted, Window};
use _native::wire::{found, front, reply, requests, stored, Found, Stored};

#[path = "support/chance.rs"]
mod chance;
use chance::{at, Chance};

const TAILS: [&[u8]; 5] = [
    b"",
    b"__CRC32#\x01----------\x02",
    b"__CRC32#\x010123456789\x02",
    b"__CRC32#\x01----------\x03",
    b"\x02__CRC32#\x01---",
];
const SECTIONS: [&[u8]; 7] = [
    b"",
    b"TAGS\x01a\x02",
    b"KEYS\x01a b  c\x02UNIQ_KEY\x01u\x02",
    b"TAGS\x01\xff\x02TAGS\x01\xe4\xb8\xad\x02",
    b"\x02\x02\x01\x01TAGS\x01",
    b"TAGS\x01first\x02TAGS\x01\x02",
    b"UNIQ_KEY\x01\xed\xa0\x80\x02",
];
/// Numbers that lengths and flags are replaced by.
const EDGES: [i32; 10] = [
    0,
    1,
    -1,
    i32::MAX,
    i32::MIN,
    0x7FFF,
    0x10,
    0x20,
    -626843477,
    -875286124,
];

/// Some records back to back, and how long each is.
fn batch(chance: &mut Chance) -> (Vec<u8>, Vec<i64>) {
    let mut head = vec![0; if chance.below(2) == 0 { 88 } else { 100 }];
    let is_long = chance.below(4) == 0;
    let magic = if is_long { -626843477i32 } else { -626843481 };
    put(&mut head, 4, &magic.to_be_bytes());
    let sys_flag = if head.len() == 100 { 0x10 } else { 0 };
    put(&mut head, 39, &[sys_flag]);
    let topic: &[u8] = if is_long { b"\x00\x01T" } else { b"\x01T" };
    let (mut frames, mut sizes) = (Vec::new(), Vec::new());
    for number in 0..=chance.below(6) {
        let body = chance.bytes(300);
        let properties = [
            chance.of(&SECTIONS),
            chance.of(&SECTIONS),
            chance.of(&TAILS),
        ]
        .concat();
        let common = Common {
            head: &head,
            topic,
            ending: b"",
        };
        let Some(bytes) = size(&common, body.len(), properties.len()) else {
            continue;
        };
        let mut out = vec![0; bytes];
        assert!(record(
            &common,
            &Columns::default(),
            number,
            &body,
            &properties,
            &mut out
        )
        .is_some());
        frames.extend(out);
        sizes.push(bytes as i64);
    }
    (frames, sizes)
}

/// Damage a few places.
fn harm(chance: &mut Chance, bytes: &mut [u8]) {
    for _ in 0..chance.below(4) {
        let place = chance.below(bytes.len());
        if chance.below(2) == 0 {
            let bit = 1 << chance.below(8);
            bytes
                .iter_mut()
                .skip(place)
                .take(1)
                .for_each(|it| *it ^= bit);
        } else {
            put(bytes, place, &chance.of(&EDGES).to_be_bytes());
        }
    }
}

/// A number that is most often a position, and sometimes anything.
fn wild(chance: &mut Chance, most: usize) -> i64 {
    match chance.below(8) {
        0 => chance.next() as i64,
        1 => -1,
        _ => chance.below(most + 2) as i64,
    }
}

fn read_all(chance: &mut Chance, frames: &[u8], sizes: &[i64]) {
    for _ in 0..8 {
        let (start, length) = (wild(chance, frames.len()), wild(chance, frames.len()));
        locate(frames, start);
        compare(frames, start, length, chance.below(2) == 0);
        if let Some((whole, parts)) =
            piece(frames, start, length).and_then(|it| Some((it, sound(it)?)))
        {
            assert!(compare_parts(whole, &parts, true).is_some());
            assert!(parts
                .columns(start as usize)
                .iter()
                .all(|it| *it <= frames.len() as i64));
        }
        let places = sizes.iter().map(|it| (*it, start)).chain([(length, 0)]);
        assert!(matching(frames, places, b"T", 3) <= sizes.len() + 1);
        let log = Log {
            min: wild(chance, 99),
            end: wild(chance, frames.len()),
            file_bytes: length,
        };
        if let Some((taken, runs)) = records_to_read(frames, &log, chance.below(9), length) {
            assert!(runs
                .iter()
                .all(|run| log.min <= run.0 && run.0 < run.1 && run.1 <= log.end));
            assert!(runs.len() <= taken.len() / 8);
        }
        code(frames, start, length);
        piece_crc(frames, start, length);
        sequence_end(frames, start);
        key_hashes(frames, start, length, 7, |_| {});
        let spans = [(start, length), (0, 1)].map(|(start, length)| {
            Span::new(start.max(0) as usize, length.max(0) as usize).unwrap_or_default()
        });
        pieces(chance, frames, &spans);
        room(frames, start, length);
        offset_id(frames, start, length);
    }
    let end = frames.len() + chance.below(9);
    let limits = Limits {
        end,
        bytes: 1 << 20,
        records: chance.below(5) + 1,
    };
    let checks = Checks {
        checksums: chance.below(2) == 0,
        checksums_from: (chance.below(2) == 0).then_some(chance.below(500) as i64),
    };
    let compared = (chance.below(2) == 0).then_some(&checks);
    if let Some(found) = scan(frames, &limits, compared, chance.below(2) == 0) {
        assert!(found.stop <= frames.len());
        assert_eq!(
            found.rows.iter().map(|row| at(row, 1)).sum::<i64>(),
            found.stop as i64
        );
    }
    let (mut lengths, base) = (Vec::new(), wild(chance, 2));
    let (_, stop) = chain(frames, base, end, wild(chance, end) as usize, &mut lengths);
    assert!(stop <= frames.len() && lengths.iter().sum::<i64>() == stop as i64);

    let (_, behind) = extent(frames, base, end);
    assert!(stop <= behind && behind <= frames.len());

    let windows = [
        Window::following(frames, base, end),
        Window::at(frames, [(0, wild(chance, end)), (base, 91)].into_iter()),
        Window::at(
            frames,
            lengths
                .iter()
                .scan(0, |at, it| Some((std::mem::replace(at, *at + it), *it))),
        ),
    ];
    for found in windows.iter().flatten() {
        columns(chance, frames, found);
    }
    pass(chance, frames);
    deliver(chance, frames, sizes);

    let rules = Rules {
        topic: b"T",
        queue_id: 0,
        body_bytes_max: 1000,
        properties_bytes_max: 1000,
        record_bytes_max: 2000,
        sys_flags_allowed: 0x713,
        sources_allowed: false,
    };
    let mut codes = Vec::new();
    let accepted = check(frames, sizes.iter().copied(), &rules, |it| {
        codes.push(tags_code(frames.get(it.properties())?)?);
        Some(())
    });
    let said = Stamp {
        first_queue_offset: chance.next() as i64,
        first_physical_offset: chance.next() as i64,
        store_timestamp_ms: chance.next() as i64,
        store_host: &[1, 2, 3, 4, 5, 6, 7, 8],
    };
    let (mut copy, mut entries) = (vec![0; frames.len()], vec![0; codes.len() * ENTRY_BYTES]);
    let stamped = stamp(frames, codes.into_iter(), &said, &mut copy, &mut entries);
    if accepted {
        assert!(stamped.is_some());
        let mut start = 0;
        for size in sizes {
            assert_eq!(
                compare(&copy, start, *size, true).map(|state| state & WRONG),
                Some(0)
            );
            start += size;
        }
    }
    append_all(chance, frames, sizes, accepted);
}

/// What receivers get of a record is as long as it says.
fn deliver(chance: &mut Chance, frames: &[u8], sizes: &[i64]) {
    let reserved = Reserved::new([b"TAGS".to_vec()].into_iter(), b"__RMQ.");
    let mut writer = Writer::new(
        &reserved,
        Delivery {
            topic: b"\x0a\x00",
            broker: b"b",
            queue_id: chance.next() as i32,
            attempt: wild(chance, 3),
            handle_front: b"T@b:0/1/",
            handle_back: b"/0",
        },
    );
    let mut start = 0;
    for size in sizes {
        let mut out = Vec::new();
        let end = start + usize::try_from(*size).unwrap_or(0);
        let record = frames.get(start..end).unwrap_or(frames);
        if writer.add(record, wild(chance, 9), &mut out).is_some() {
            let told = u32::from_be_bytes(chunk(&out, 1).unwrap_or_default());
            assert_eq!(out.len(), FRAME_HEAD_BYTES + told as usize);
        }
        start = end;
    }
}

/// Columns of records that were found are there, whatever the records hold.
fn columns(chance: &mut Chance, frames: &[u8], found: &Window) {
    assert!(found.stop <= frames.len());
    for field in Field::ALL {
        let mut out = vec![0; found.count() * field.bytes()];
        assert!(found.field(frames, field, &mut out).is_some());
    }
    let damaged = found.damaged(frames);
    assert!(damaged.is_some_and(|it| it.is_empty() || it.len() == found.count()));
    let parts: Vec<(Span, Span, usize)> = found.parts().collect();
    let bodies: Vec<Span> = parts.iter().map(|it| it.0).collect();
    let sections: Vec<Span> = parts.iter().map(|it| it.1).collect();
    pieces(chance, frames, &bodies);
    pieces(chance, frames, &sections);
    let names = [b"KEYS".to_vec(), b"TAGS".to_vec()];
    let made = found.columns(
        frames,
        &Wanted {
            fields: &Field::ALL,
            topics: true,
            bodies: true,
            names: &names,
            maps: true,
        },
    );
    let Some(made) = made else {
        panic!("no columns of records that are whole");
    };
    for (field, column) in Field::ALL.into_iter().zip(&made.fields) {
        let mut out = vec![0; found.count() * field.bytes()];
        assert!(found.field(frames, field, &mut out).is_some());
        assert_eq!(out, column.filled());
    }
    let laid: Vec<&[u8]> = made.bodies.iter().flat_map(Pieces::each).collect();
    let own: Option<Vec<&[u8]>> = bodies.iter().map(|it| it.of(frames)).collect();
    assert_eq!(Some(laid), own);
    let counts = made.asked.iter().chain(&made.topics).map(Pieces::count);
    assert!(counts.into_iter().all(|it| it == found.count()));
}

/// Pieces of bytes are laid as they are, and looked into; none may lie outside.
fn pieces(chance: &mut Chance, frames: &[u8], spans: &[Span]) {
    let count = spans.len();
    let at = |done: usize| Progress { done, count };
    let total = spans.iter().map(|it| it.len()).sum::<usize>();
    let guess = chance.below(2 * frames.len() + 1);
    if let Some(mut laid) = (total <= 2 * frames.len())
        .then(|| Pieces::new(count, guess))
        .flatten()
    {
        let mut each = spans.iter().enumerate();
        let is_laid = each.all(|(done, it)| laid.push(frames, *it, at(done)).is_some());
        let pieces: Option<Vec<&[u8]>> = spans.iter().map(|it| it.of(frames)).collect();
        assert_eq!(is_laid, pieces.is_some());
        if let Some(pieces) = pieces {
            assert_eq!(laid.each().collect::<Vec<_>>(), pieces);
            let utf8 = pieces.iter().all(|it| std::str::from_utf8(it).is_ok());
            assert_eq!(laid.is_utf8(), utf8);
            let valid = laid.validity().unwrap_or(vec![u8::MAX; count.div_ceil(8)]);
            for (number, piece) in pieces.iter().enumerate() {
                let bit = valid.get(number / 8).map(|it| it >> (number % 8) & 1);
                assert_eq!(bit, Some(u8::from(!piece.is_empty())));
            }
        }
    }
    let asked = [b"KEYS".to_vec(), b"TAGS".to_vec()];
    let Some(mut found) = Properties::new(count, &asked, true) else {
        panic!("no columns without records");
    };
    let topic = chance.below(2);
    for (done, section) in spans.iter().enumerate() {
        // Most are of one topic: with names and lengths that are known, and others among them.
        let is_there = section.of(frames).is_some();
        let topic = if chance.below(4) == 0 { done } else { topic };
        let added = found.add(frames, *section, topic, at(done));
        if !is_there {
            return;
        }
        assert!(added.is_some());
        let mut alone = Properties::new(1, &asked, true);
        let one = alone
            .as_mut()
            .and_then(|it| it.add(frames, *section, 0, at(0)));
        assert!(one.is_some());
        if let (Some(alone), Some(maps)) = (alone, &found.maps) {
            let last = |it: &Pieces, count: usize| -> Vec<Vec<u8>> {
                it.each()
                    .skip(it.count() - count)
                    .map(<[u8]>::to_vec)
                    .collect()
            };
            for (column, own) in found.asked.iter().zip(&alone.asked) {
                assert_eq!(last(column, 1), last(own, 1));
            }
            if let Some(own) = alone.maps {
                let count = own.names.count();
                assert_eq!(last(&maps.names, count), last(&own.names, count));
                assert_eq!(last(&maps.values, count), last(&own.values, count));
                assert!(own
                    .names
                    .each()
                    .chain(own.values.each())
                    .all(|it| !it.is_empty()));
            }
            assert_eq!(maps.names.count(), maps.values.count());
            assert_eq!(maps.rows.filled().len(), 4 * (done + 2));
        }
    }
}

/// What goes over a log once takes records that fill the bytes, or nothing.
fn pass(chance: &mut Chance, frames: &[u8]) {
    if let Some(found) = keys(frames, 7) {
        let offsets = found.offsets.filled();
        assert_eq!(found.hashes.filled().len(), offsets.len());
        assert_eq!(found.timestamps_ms.filled().len(), offsets.len());
        let offsets = offsets.chunks_exact(8).filter_map(|it| it.first_chunk());
        assert!(offsets
            .map(|it| i64::from_ne_bytes(*it) as usize)
            .all(|it| (7..7 + frames.len()).contains(&it)));
    }
    let mut cutter = LogCutter::new(Entries {
        marks: [(b"T".to_vec(), wild(chance, 9))].into(),
        others: [].into(),
        unlisted: if chance.below(2) == 0 { 0 } else { 0xC },
        file_entries: wild(chance, 3),
    });
    let added: Vec<bool> = (0..3)
        .map(|_| cutter.add(frames, wild(chance, 9)))
        .collect();
    let made = cutter.taken();
    assert!(made.is_some());
    if let Some((topics, (heads, bounds, entries))) = made {
        assert_eq!(bounds.last().map(|it| *it as usize), Some(entries.len()));
        assert!(heads.iter().all(|it| (at(it, 0) as usize) < topics.len()));
        assert!(added.contains(&true) || entries.is_empty() && topics.is_empty());
    }
    let (count, mut units) = (chance.below(300), Vec::new());
    let mut slots = Slots::new(chance.below(3000));
    slots.load(wild(chance, 99) as usize, frames);
    let said = Seconds {
        first: wild(chance, 9),
        begin_ms: wild(chance, 9),
    };
    let keys = (0..count).map(|_| (wild(chance, 5000), 7, wild(chance, 9)));
    let keys: Vec<(i64, i64, i64)> = keys.collect();
    slots.link(wild(chance, 99) as i32, &said, keys.into_iter(), &mut units);
    assert!(units.len() <= count * UNIT_BYTES);
    slots.compare(wild(chance, 99) as usize, frames);
    slots.mark_used();
    let mut out = vec![0; 4 * chance.below(50)];
    slots.stored(wild(chance, 99) as usize, &mut out);
    assert!(slots
        .newest(wild(chance, 99) as usize)
        .is_none_or(|_| slots.count() > 0));
}

/// Together with others a batch is taken where it is by itself, and leaves nothing otherwise.
fn append_all(chance: &mut Chance, frames: &[u8], sizes: &[i64], accepted: bool) {
    let mut packed: Vec<u8> = sizes
        .iter()
        .flat_map(|size| (*size as u32).to_le_bytes())
        .collect();
    let is_odd = chance.below(8) == 0;
    if is_odd {
        packed.push(0);
    }
    let piece = |frames, sizes| Piece {
        frames,
        sizes,
        rules: Rules {
            topic: b"T",
            queue_id: 0,
            body_bytes_max: 1000,
            properties_bytes_max: 1000,
            record_bytes_max: 2000,
            sys_flags_allowed: 0x713,
            sources_allowed: false,
        },
        first_queue_offset: 5,
    };
    let pieces = [
        piece(frames, &packed[..]),
        piece(b"", b""),
        piece(frames, &packed[..]),
    ];
    let place = (chance.next() as i64, 7, &[1u8, 2, 3, 4, 5, 6, 7, 8]);
    let mut out = Vec::new();
    let made = append(&pieces, false, true, place, &mut out);
    let count = if accepted && !is_odd { sizes.len() } else { 0 };
    assert_eq!(made.counts, [count, 0, count]);
    assert_eq!(made.entries.len(), 2 * count * ENTRY_BYTES);
    assert_eq!(out.len(), if count > 0 { 2 * frames.len() } else { 0 });
    let found = keys(&out, place.0);
    let (hashes, offsets) = made.keys.unwrap_or_default();
    assert_eq!(hashes.len(), offsets.len());
    if let Some(found) = found.filter(|_| count > 0) {
        assert_eq!(found.hashes.filled(), hashes);
        assert_eq!(found.offsets.filled(), offsets);
    }
    let with_room = append(&pieces, true, false, place, &mut out);
    assert!(with_room.counts.iter().all(|it| *it == 0 || *it == count));
    assert!(with_room.keys.is_none());
}

/// Entries of any records are cut into runs that hold all of them.
fn cut_runs(chance: &mut Chance) {
    let listed: Vec<[i64; 6]> = (0..chance.below(40))
        .map(|_| std::array::from_fn(|_| wild(chance, 3)))
        .collect();
    let records = listed.iter().map(|it| Listed {
        topic: it[0],
        queue: it[1],
        queue_offset: it[2],
        physical_offset: it[3],
        size: it[4],
        tag_code: it[5],
    });
    // No file takes nothing, and that says so.
    let file_entries = wild(chance, 3);
    let made = cut(records, file_entries);
    assert!(made.is_some() || file_entries <= 0);
    if let Some((heads, bounds, entries)) = made {
        assert_eq!(entries.len(), listed.len() * ENTRY_BYTES);
        assert_eq!(bounds.len(), heads.len() + 1);
        assert_eq!(bounds.last().map(|it| *it as usize), Some(entries.len()));
        assert!(bounds.windows(2).all(|it| at(it, 0) < at(it, 1)));
    }
}

/// Answers of append streams are read as they were written; of harmed ones, and of requests, what is
/// read lies within them.
fn messages(chance: &mut Chance) {
    let host = chance.bytes(20);
    let number = |chance: &mut Chance| (chance.next() >> (1 + chance.below(63))) as i64;
    let mut batches = Vec::new();
    for _ in 0..1 + chance.below(4) {
        batches.push(Stored {
            request_id: number(chance),
            first_queue_offset: number(chance),
            first_physical_offset: number(chance),
            messages: number(chance) as i32 & i32::MAX,
            store_timestamp_ms: number(chance),
            store_host: &host,
        });
    }
    let mut message = reply(&batches).unwrap_or_default();
    assert_eq!(stored(&message), Some(batches));
    let more = chance.bytes(30);
    let at = chance.below(message.len());
    message.splice(at..at, more);
    harm(chance, &mut message);
    message.truncate(chance.below(message.len() + 1));
    stored(&message);
    for batch in requests(&message).unwrap_or_default() {
        assert!(message.get(batch.frames).is_some());
    }
    let sizes = chance.bytes(20);
    let frames = chance.bytes(300);
    let made = Found {
        status: number(chance) as i32 & i32::MAX,
        next_offset: number(chance),
        min_offset: number(chance),
        max_offset: number(chance),
        frames: 0..frames.len(),
        sizes: &sizes,
        subscription_id: number(chance),
        ended: chance.below(2) == 0,
    };
    let mut message = [front(&made, true), frames.clone()].concat();
    for mut read in found(&message).unwrap_or_default() {
        assert_eq!(message.get(read.frames.clone()), Some(&frames[..]));
        read.frames = made.frames.clone();
        assert_eq!(read, made);
    }
    harm(chance, &mut message);
    for read in found(&message).unwrap_or_default() {
        assert!(message.get(read.frames).is_some());
    }
}

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse::<u64>().ok());
    let (seconds, seed) = (words.next().unwrap_or(60), words.next().unwrap_or(1));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0u64;
    while Instant::now() < until {
        for _ in 0..1000 {
            rounds += 1;
            // The first step must not be zero; each round can be had again by its number.
            let mut chance = Chance(seed.wrapping_mul(1 << 40).wrapping_add(rounds).max(1));
            chance.next();
            let (mut frames, mut sizes) = batch(&mut chance);
            harm(&mut chance, &mut frames);
            if chance.below(4) == 0 {
                frames.truncate(chance.below(frames.len() + 1));
            }
            if chance.below(8) == 0 {
                if let Some(last) = sizes.last_mut() {
                    *last = wild(&mut chance, 400);
                }
            }
            read_all(&mut chance, &frames, &sizes);
            cut_runs(&mut chance);
            messages(&mut chance);
        }
    }
    println!("{rounds} batches in {seconds} s from seed {seed}: nothing found");
}
