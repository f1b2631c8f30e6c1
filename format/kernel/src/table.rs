//! Columns of records as Arrow has them, found in one pass.

#![forbid(unsafe_code)]

use crate::checksum::{tail, Tail, PROPERTY_BYTES};
use crate::columns::Topics;
use crate::reading::{be_i32, be_i64};
use crate::record::{
    length, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP,
};
use crate::scan::{records, ScanEnd};

const AT_FLAG: usize = 16;
const AT_BORN_TIMESTAMP: usize = 40;
const AT_RECONSUME_TIMES: usize = AT_PREPARED_OFFSET - 4;

/// Size, physical offset, queue offset, born and store time in microseconds, prepared offset, start
/// and length of body and of properties without a checksum; `rockoon_spark.records.table` has them.
pub const WORDS: usize = 10;
/// Queue, size, flag, system flag, reconsume times, topic's number.
pub const NUMBERS: usize = 6;

pub struct Table<'a> {
    pub words: Vec<[i64; WORDS]>,
    pub numbers: Vec<[i32; NUMBERS]>,
    pub topics: Topics<'a>,
    pub why: ScanEnd,
    pub stop: usize,
}

/// The columns of whole records in their places, as `scan::records` follows them to the last one that
/// `bytes` hold.
pub fn table(bytes: &[u8], base: i64, end: usize) -> Option<Table<'_>> {
    let (mut words, mut numbers) = (Vec::new(), Vec::new());
    let mut topics = Topics::default();
    let (why, stop) = records(bytes, Some(base), end, bytes.len(), |at, record, parts| {
        let topic = record
            .get(parts.topic_start..)?
            .get(..length(parts.topic_length))?;
        let checked = match tail(record, parts.properties_length) {
            Tail::Property(_) => PROPERTY_BYTES,
            _ => 0,
        };
        let microseconds = |at: usize| Some(be_i64(record, at)?.wrapping_mul(1000));
        words.push([
            record.len() as i64,
            be_i64(record, AT_PHYSICAL_OFFSET)?,
            be_i64(record, AT_QUEUE_OFFSET)?,
            microseconds(AT_BORN_TIMESTAMP)?,
            microseconds(AT_STORE_TIMESTAMP + parts.born_extra)?,
            be_i64(record, AT_PREPARED_OFFSET + parts.hosts_extra)?,
            (at + parts.body_start) as i64,
            length(parts.body_length) as i64,
            (at + parts.properties_start) as i64,
            length(parts.properties_length).checked_sub(checked)? as i64,
        ]);
        numbers.push([
            be_i32(record, AT_QUEUE_ID)?,
            record.len() as i32,
            be_i32(record, AT_FLAG)?,
            parts.sys_flag,
            be_i32(record, AT_RECONSUME_TIMES + parts.hosts_extra)?,
            topics.number(topic) as i32,
        ]);
        Some(())
    })?;
    Some(Table {
        words,
        numbers,
        topics,
        why,
        stop,
    })
}
