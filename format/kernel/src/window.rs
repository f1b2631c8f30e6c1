//! Records of one chunk of a log: located once, then read as columns in Arrow's layout.

#![forbid(unsafe_code)]

use crate::checksum::{tail, Tail, PROPERTY_BYTES};
use crate::columns::{is_wrong, piece, Topics};
use crate::laid::{Growing, Pieces, Progress};
use crate::pieces::{Maps, Properties, Span};
use crate::reading::{chunk, put};
use crate::record::{
    length, Parts, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP, AT_SYS_FLAG,
};
use crate::scan::{records, whole, ScanEnd};

const AT_FLAG: usize = 16;
const AT_BORN_TIMESTAMP: usize = 40;
const AT_RECONSUME_TIMES: usize = AT_PREPARED_OFFSET - 4;
const RECORD_BYTES_GUESS: usize = 256;
/// Number of records that fit in the first-level cache together.
const TOGETHER: usize = 64;

/// Positions of a record and its parts; a window has less than 4 GiB.
struct Place {
    all: Span,
    body: Span,
    name: Span,
    /// Without a checksum.
    properties: Span,
    topic: u32,
    born_extra: u8,
    hosts_extra: u8,
    tail: Tail,
}

impl Place {
    fn of(at: usize, size: usize, parts: &Parts, tail: Tail, topic: i64) -> Option<Place> {
        let checked = match tail {
            Tail::Property(_) => PROPERTY_BYTES,
            _ => 0,
        };
        let properties = length(parts.properties_length).checked_sub(checked)?;
        Some(Place {
            all: Span::new(at, size)?,
            body: Span::new(at + parts.body_start, length(parts.body_length))?,
            name: Span::new(at + parts.topic_start, length(parts.topic_length))?,
            properties: Span::new(at + parts.properties_start, properties)?,
            topic: u32::try_from(topic).ok()?,
            born_extra: parts.born_extra as u8,
            hosts_extra: parts.hosts_extra as u8,
            tail,
        })
    }

    fn at(&self, at_v4: usize, extra: u8) -> usize {
        self.all.start() + at_v4 + usize::from(extra)
    }
}

/// A field of fixed length, numbered as in `rockoon_spark.records.window`.
#[derive(Clone, Copy)]
pub enum Field {
    // Fields of eight bytes.
    Start,
    Size,
    PhysicalOffset,
    QueueOffset,
    /// Times are in microseconds.
    BornTime,
    StoreTime,
    PreparedOffset,
    // Fields of four bytes.
    Queue,
    Flag,
    SysFlag,
    ReconsumeTimes,
    ShortSize,
    Topic,
}

impl Field {
    pub const ALL: [Field; 13] = [
        Field::Start,
        Field::Size,
        Field::PhysicalOffset,
        Field::QueueOffset,
        Field::BornTime,
        Field::StoreTime,
        Field::PreparedOffset,
        Field::Queue,
        Field::Flag,
        Field::SysFlag,
        Field::ReconsumeTimes,
        Field::ShortSize,
        Field::Topic,
    ];

    pub fn bytes(self) -> usize {
        if (self as usize) < Field::Queue as usize {
            8
        } else {
            4
        }
    }

    /// Write the field of each record.
    fn of(self, bytes: &[u8], places: &[Place], out: &mut [u8]) -> Option<()> {
        let word = |at: usize| chunk(bytes, at).map(i64::from_be_bytes);
        let time = |at: usize| word(at).map(|ms| ms.wrapping_mul(1000));
        let number = |at: usize| chunk(bytes, at).map(i32::from_be_bytes);
        match self {
            Field::Start => each(places, out, |it| {
                Some((it.all.start() as i64).to_ne_bytes())
            }),
            Field::Size => each(places, out, |it| Some((it.all.len() as i64).to_ne_bytes())),
            Field::PhysicalOffset => words(places, out, |it| word(it.at(AT_PHYSICAL_OFFSET, 0))),
            Field::QueueOffset => words(places, out, |it| word(it.at(AT_QUEUE_OFFSET, 0))),
            Field::BornTime => words(places, out, |it| time(it.at(AT_BORN_TIMESTAMP, 0))),
            Field::StoreTime => words(places, out, |it| {
                time(it.at(AT_STORE_TIMESTAMP, it.born_extra))
            }),
            Field::PreparedOffset => words(places, out, |it| {
                word(it.at(AT_PREPARED_OFFSET, it.hosts_extra))
            }),
            Field::Queue => numbers(places, out, |it| number(it.at(AT_QUEUE_ID, 0))),
            Field::Flag => numbers(places, out, |it| number(it.at(AT_FLAG, 0))),
            Field::SysFlag => numbers(places, out, |it| number(it.at(AT_SYS_FLAG, 0))),
            Field::ReconsumeTimes => numbers(places, out, |it| {
                number(it.at(AT_RECONSUME_TIMES, it.hosts_extra))
            }),
            Field::ShortSize => numbers(places, out, |it| Some(it.all.len() as i32)),
            Field::Topic => numbers(places, out, |it| Some(it.topic as i32)),
        }
    }
}

fn words(places: &[Place], out: &mut [u8], of: impl Fn(&Place) -> Option<i64>) -> Option<()> {
    each(places, out, |it| of(it).map(i64::to_ne_bytes))
}

fn numbers(places: &[Place], out: &mut [u8], of: impl Fn(&Place) -> Option<i32>) -> Option<()> {
    each(places, out, |it| of(it).map(i32::to_ne_bytes))
}

fn each<const N: usize>(
    places: &[Place],
    out: &mut [u8],
    of: impl Fn(&Place) -> Option<[u8; N]>,
) -> Option<()> {
    for (out, place) in out.chunks_exact_mut(N).zip(places) {
        put(out, 0, &of(place)?)?;
    }
    Some(())
}

/// Positions of the records of some bytes; the caller passes the same bytes to each method.
pub struct Window {
    places: Vec<Place>,
    /// Distinct topics, in order of appearance.
    pub topics: Vec<Vec<u8>>,
    pub why: ScanEnd,
    pub stop: usize,
    /// System flags of all records, combined with OR.
    pub sys_flags: i32,
}

/// Requested columns.
pub struct Wanted<'a> {
    pub fields: &'a [Field],
    pub topics: bool,
    pub bodies: bool,
    /// Properties by name.
    pub names: &'a [Vec<u8>],
    /// All properties.
    pub maps: bool,
}

/// Columns in Arrow's layout.
pub struct Columns {
    pub fields: Vec<Growing>,
    pub topics: Option<Pieces>,
    pub bodies: Option<Pieces>,
    pub asked: Vec<Pieces>,
    pub maps: Option<Maps>,
}

impl Window {
    /// Whole records whose physical offset is right, to the last one that is whole in `bytes`.
    pub fn following(bytes: &[u8], base: i64, end: usize) -> Option<Window> {
        let mut places = Vec::with_capacity(bytes.len() / RECORD_BYTES_GUESS);
        let (mut topics, mut sys_flags) = (Topics::default(), 0);
        let (why, stop) = records(bytes, Some(base), end, bytes.len(), |at, record, parts| {
            sys_flags |= parts.sys_flag;
            places.push(place(at, record, parts, &mut topics)?);
            Some(())
        })?;
        Some(Window::of(places, topics, sys_flags, why, stop))
    }

    /// Records at positions, with sizes; none if one is not whole.
    pub fn at(bytes: &[u8], given: impl Iterator<Item = (i64, i64)>) -> Option<Window> {
        let mut places = Vec::with_capacity(given.size_hint().0);
        let (mut topics, mut sys_flags) = (Topics::default(), 0);
        for (start, size) in given {
            let record = piece(bytes, start, size)?;
            let parts = whole(record)?;
            sys_flags |= parts.sys_flag;
            places.push(place(start as usize, record, &parts, &mut topics)?);
        }
        let (why, stop) = (ScanEnd::End, bytes.len());
        Some(Window::of(places, topics, sys_flags, why, stop))
    }

    fn of(places: Vec<Place>, topics: Topics, sys_flags: i32, why: ScanEnd, stop: usize) -> Window {
        let topics = topics.names.iter().map(|name| name.to_vec()).collect();
        Window {
            places,
            topics,
            why,
            stop,
            sys_flags,
        }
    }

    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Write a field of each record.
    pub fn field(&self, bytes: &[u8], field: Field, out: &mut [u8]) -> Option<()> {
        field.of(bytes, &self.places, out)
    }

    /// Columns of all records, a few records per step, while these are in the first-level cache.
    pub fn columns(&self, bytes: &[u8], wanted: &Wanted) -> Option<Columns> {
        let count = self.count();
        let room = |field: &Field| Growing::new(count * field.bytes());
        let pieces = |span: fn(&Place) -> Span| {
            let total = self.places.iter().map(|it| span(it).len()).sum();
            Pieces::new(count, total)
        };
        let mut found = Columns {
            fields: wanted.fields.iter().map(room).collect(),
            topics: None,
            bodies: None,
            asked: Vec::new(),
            maps: None,
        };
        if wanted.topics {
            found.topics = Some(pieces(|it| it.name)?);
        }
        if wanted.bodies {
            found.bodies = Some(pieces(|it| it.body)?);
        }
        let mut properties = Properties::new(count, wanted.names, wanted.maps)?;
        let has_properties = wanted.maps || !wanted.names.is_empty();
        for (number, block) in self.places.chunks(TOGETHER).enumerate() {
            let done = number * TOGETHER;
            for (field, out) in wanted.fields.iter().zip(&mut found.fields) {
                let out = out.whole(count * field.bytes())?;
                field.of(bytes, block, out.get_mut(done * field.bytes()..)?)?;
            }
            let progress = Progress { done, count };
            if let Some(out) = &mut found.topics {
                for it in block {
                    out.push(bytes, it.name, progress)?;
                }
            }
            if let Some(out) = &mut found.bodies {
                for it in block {
                    out.push(bytes, it.body, progress)?;
                }
            }
            if has_properties {
                for it in block {
                    properties.add(bytes, it.properties, it.topic as usize, progress)?;
                }
            }
        }
        (found.asked, found.maps) = (properties.asked, properties.maps);
        Some(found)
    }

    /// Range of each record's stored body and properties, and the number of its topic.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (Span, Span, usize)> + '_ {
        let places = self.places.iter();
        places.map(|it| (it.body, it.properties, it.topic as usize))
    }

    /// A byte for each record, 1 if it is damaged; none if no record is.
    pub fn damaged(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut wrong = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            let record = place.all.of(bytes)?;
            let body = place.body.of(bytes)?;
            if is_wrong(record, body, place.tail)? {
                wrong.resize(self.places.len(), 0);
                put(&mut wrong, number, &[1])?;
            }
        }
        Some(wrong)
    }
}

fn place<'a>(at: usize, record: &'a [u8], parts: &Parts, topics: &mut Topics<'a>) -> Option<Place> {
    let topic = record
        .get(parts.topic_start..)?
        .get(..length(parts.topic_length))?;
    let tail = tail(record, parts.properties_length);
    Place::of(at, record.len(), parts, tail, topics.number(topic))
}
