//! Python functions: bytes in, bytes of columns out; long work releases the interpreter.

#![deny(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString};

use crate::batch::{self, Rules, Stamp, ENTRY_BYTES};
use crate::columns::{self, Topics};
use crate::encode::{self, Common};
use crate::fresh::filled;
use crate::pieces;
use crate::python_logs::{packed_runs, PackedRuns};
use crate::python_producer::{take_bodies, unique_keys};
use crate::reading::put;
use crate::runs::{self, Listed};
use crate::scan::{
    chain as follow, extent as follow_all, scan as scan_records, Checks, Limits, ScanEnd, FIELDS,
};
use crate::text::tags_code;

pub const WORD: usize = 8;
/// Less work is done before another thread could start.
const ASIDE_BYTES_MIN: usize = 16 << 10;

/// Run `work`, which reads this many bytes; if it takes long, release the interpreter meanwhile.
///
/// Releasing and reacquiring the interpreter costs more than one record does, and another thread
/// may keep it for milliseconds.
pub fn aside<T: Ungil>(py: Python, bytes: usize, work: impl Ungil + FnOnce() -> T) -> T {
    if bytes < ASIDE_BYTES_MIN {
        work()
    } else {
        py.detach(work)
    }
}

/// Native int64 items, from NumPy's `tobytes()`.
pub fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = i64> + Clone + '_ {
    bytes
        .chunks_exact(WORD)
        .map(|word| word.first_chunk().map_or(0, |it| i64::from_ne_bytes(*it)))
}

/// Check a batch: its layout as five columns int64 and one bool, or None in a doubtful case.
///
/// Columns: starts, sizes, tag codes, store positions, properties' lengths; whether a record has
/// space for a checksum.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn check_batch<'py>(
    py: Python<'py>,
    frames: &[u8],
    sizes: &[u8],
    topic: &[u8],
    queue_id: i64,
    body_bytes_max: i64,
    properties_bytes_max: i64,
    record_bytes_max: i64,
    sys_flags_allowed: i32,
    sources_allowed: bool,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let rules = Rules {
        topic,
        queue_id,
        body_bytes_max,
        properties_bytes_max,
        record_bytes_max,
        sys_flags_allowed,
        sources_allowed,
    };
    let count = sizes.len() / WORD;
    let mut is_right = false;
    let columns = PyByteArray::new_with(py, count * (5 * WORD + 1), |out| {
        is_right = py.detach(|| {
            let mut row = 0;
            batch::check(frames, words(sizes), &rules, |found| {
                let tag_code = tags_code(frames.get(found.properties())?)?;
                let fields = [
                    found.start as i64,
                    found.size as i64,
                    tag_code,
                    found.store_position as i64,
                    i64::from(found.properties_length),
                ];
                for (column, field) in fields.into_iter().enumerate() {
                    put(out, (column * count + row) * WORD, &field.to_ne_bytes())?;
                }
                put(out, 5 * count * WORD + row, &[u8::from(found.has_room)])?;
                row += 1;
                Some(())
            })
        });
        Ok(())
    })?;
    Ok(is_right.then_some(columns))
}

/// Stamp a checked batch: returns its bytes for the log, and its queue entries.
#[pyfunction]
fn stamp_batch<'py>(
    py: Python<'py>,
    frames: &[u8],
    codes: &[u8],
    first_queue_offset: i64,
    first_physical_offset: i64,
    store_timestamp_ms: i64,
    store_host: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let refuse = || PyValueError::new_err("these frames are not the batch that was checked");
    let stamp = Stamp {
        first_queue_offset,
        first_physical_offset,
        store_timestamp_ms,
        store_host: store_host.try_into().map_err(|_| refuse())?,
    };
    let mut stored = None;
    let entries = PyBytes::new_with(py, codes.len() / WORD * ENTRY_BYTES, |entries| {
        let made = PyBytes::new_with(py, frames.len(), |copy| {
            py.detach(|| batch::stamp(frames, words(codes), &stamp, copy, entries))
                .ok_or_else(refuse)
        })?;
        stored = Some(made);
        Ok(())
    })?;
    Ok((stored.ok_or_else(refuse)?, entries))
}

/// One of several batches: bytes with its records; their sizes, packed little-endian u32; its topic
/// and queue id; the next offset of its queue before the first of the batches; and the range of the
/// records, if not all bytes.
type Given<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyString>,
    i64,
    i64,
    Option<(usize, usize)>,
);

/// Common rules of all batches of a store: limits of body, properties and record, system flags,
/// whether each record must have space for a checksum, and the store's host.
type GroupRules<'py> = (i64, i64, i64, i32, bool, Bound<'py, PyBytes>);

/// The bytes for the log and their used length; the queue entries of each batch; and, if known, the
/// hashes of all keys and the offsets of their records, int64.
type Appended<'py> = (
    Bound<'py, PyBytes>,
    usize,
    Vec<Option<Bound<'py, PyBytes>>>,
    Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>,
);

/// Check, copy and stamp batches one after the other.
///
/// Batches of one queue have consecutive offsets in it. A doubtful batch has no entries and no
/// bytes, and leaves no gap; bytes after the used length are zeros.
#[pyfunction]
fn append_batches<'py>(
    py: Python<'py>,
    batches: Vec<Given<'py>>,
    rules: GroupRules<'py>,
    with_keys: bool,
    first_physical_offset: i64,
    store_timestamp_ms: i64,
) -> PyResult<Appended<'py>> {
    let (
        body_bytes_max,
        properties_bytes_max,
        record_bytes_max,
        sys_flags_allowed,
        with_room,
        store_host,
    ) = rules;
    let topics = batches
        .iter()
        .map(|(_, _, topic, ..)| topic.to_str())
        .collect::<PyResult<Vec<&str>>>()?;
    let store_host: &[u8; 8] = store_host
        .as_bytes()
        .try_into()
        .map_err(|_| PyValueError::new_err("a store host that is not 8 bytes"))?;
    let pieces: Vec<batch::Piece> = batches
        .iter()
        .zip(&topics)
        .map(
            |((source, sizes, _, queue_id, first, bounds), topic)| batch::Piece {
                // Bounds outside the bytes give an empty range, which is not a valid batch.
                frames: bounds
                    .map_or(Some(source.as_bytes()), |(start, end)| {
                        source.as_bytes().get(start..end)
                    })
                    .unwrap_or_default(),
                sizes: sizes.as_bytes(),
                rules: Rules {
                    topic: topic.as_bytes(),
                    queue_id: *queue_id,
                    body_bytes_max,
                    properties_bytes_max,
                    record_bytes_max,
                    sys_flags_allowed,
                    sources_allowed: false,
                },
                first_queue_offset: *first,
            },
        )
        .collect();
    let total = pieces.iter().map(|piece| piece.frames.len()).sum();
    let place = (first_physical_offset, store_timestamp_ms, store_host);
    let (stored, made) = filled(py, total, |out| {
        aside(py, total, || {
            batch::append(&pieces, with_room, with_keys, place, out)
        })
    })?;
    let bytes = |of: &[u8]| PyBytes::new(py, of);
    let keys = made.keys.as_ref();
    let (mut used, mut rest) = (0, made.entries.as_slice());
    let mut entries = Vec::with_capacity(pieces.len());
    for (piece, count) in pieces.iter().zip(&made.counts) {
        let (own, behind) = rest.split_at(count * ENTRY_BYTES);
        rest = behind;
        used += if *count > 0 { piece.frames.len() } else { 0 };
        entries.push((*count > 0).then(|| bytes(own)));
    }
    Ok((
        stored,
        used,
        entries,
        keys.map(|(hashes, offsets)| (bytes(hashes), bytes(offsets))),
    ))
}

/// Items of 4 or 8 bytes, native.
fn items<T, const N: usize>(bytes: Option<&[u8]>, of: fn([u8; N]) -> T) -> Option<Vec<T>> {
    let chunks = bytes?.chunks_exact(N);
    Some(
        chunks
            .filter_map(|chunk| chunk.first_chunk::<N>())
            .map(|chunk| of(*chunk))
            .collect(),
    )
}

/// Encode a batch: its bytes and each record's size, uint32; None in a doubtful case.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (head, topic, ending, bodies, properties, flags, sys_flags, born_ms))]
fn encode_batch<'py>(
    py: Python<'py>,
    head: &[u8],
    topic: &[u8],
    ending: &[u8],
    bodies: &Bound<'py, PyList>,
    properties: &Bound<'py, PyList>,
    flags: Option<&[u8]>,
    sys_flags: Option<&[u8]>,
    born_ms: Option<&[u8]>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyByteArray>)>> {
    let common = Common {
        head,
        topic,
        ending,
    };
    let (flags, sys_flags) = (
        items(flags, i32::from_ne_bytes),
        items(sys_flags, i32::from_ne_bytes),
    );
    let born_ms = items(born_ms, i64::from_ne_bytes);
    let columns = encode::Columns {
        flags: flags.as_deref(),
        sys_flags: sys_flags.as_deref(),
        born_ms: born_ms.as_deref(),
    };
    // References to the items: a thread that changes the lists meanwhile does not free their bytes.
    let held = |list: &Bound<'py, PyList>| -> Option<Vec<Bound<'py, PyBytes>>> {
        list.iter()
            .map(|each| each.cast_into::<PyBytes>().ok())
            .collect()
    };
    let (Some(bodies), Some(properties)) = (held(bodies), held(properties)) else {
        return Ok(None);
    };
    if bodies.len() != properties.len() {
        return Ok(None);
    }
    let pieces: Vec<(&[u8], &[u8])> = bodies
        .iter()
        .zip(&properties)
        .map(|(body, own)| (body.as_bytes(), own.as_bytes()))
        .collect();
    let Some(sizes) = pieces
        .iter()
        .map(|(body, own)| encode::size(&common, body.len(), own.len()))
        .collect::<Option<Vec<usize>>>()
    else {
        return Ok(None);
    };
    let mut is_right = None;
    let frames = PyBytes::new_with(py, sizes.iter().sum(), |out| {
        is_right = py.detach(|| {
            let mut rest: &mut [u8] = out;
            for (number, ((body, own), size)) in pieces.iter().zip(&sizes).enumerate() {
                let (out, behind) = rest.split_at_mut_checked(*size)?;
                encode::record(&common, &columns, number, body, own, out)?;
                rest = behind;
            }
            Some(())
        });
        Ok(())
    })?;
    let packed: Vec<u8> = sizes
        .iter()
        .flat_map(|size| (*size as u32).to_ne_bytes())
        .collect();
    Ok(is_right.map(|()| (frames, PyByteArray::new(py, &packed))))
}

/// Encode a producer's messages: their bytes, and each record's size, little-endian u32; None in a
/// doubtful case.
///
/// `extras` are by index, for messages that have their own properties. With an envelope (two tags
/// and a suffix), the result is a protobuf message with records and sizes as fields.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (head, topic, ending, own_head, ids, sequence, bodies, extras, sys_flags, envelope))]
fn encode_messages<'py>(
    py: Python<'py>,
    head: &[u8],
    topic: &[u8],
    ending: &[u8],
    own_head: &[u8],
    ids: &[u8],
    sequence: &[u8],
    bodies: &Bound<'py, PyList>,
    extras: &Bound<'py, PyDict>,
    sys_flags: Option<&[u8]>,
    envelope: Option<(u8, u8, Bound<'py, PyBytes>)>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let common = Common {
        head,
        topic,
        ending,
    };
    let own = encode::Own {
        head: own_head,
        ids,
        sequence,
    };
    let sys_flags = items(sys_flags, i32::from_ne_bytes);
    let columns = encode::Columns {
        sys_flags: sys_flags.as_deref(),
        ..Default::default()
    };
    let count = bodies.len();
    let id_bytes = ids.len() / count.max(1);
    // References to the items: a thread that changes the list meanwhile does not free their bytes.
    let Some(bodies) = bodies
        .iter()
        .map(|each| each.cast_into::<PyBytes>().ok())
        .collect::<Option<Vec<Bound<'py, PyBytes>>>>()
    else {
        return Ok(None);
    };
    let mut held: Vec<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> = Vec::new();
    if !extras.is_empty() {
        for number in 0..count {
            held.push(match extras.get_item(number)? {
                Some(pair) => Some(pair.extract()?),
                None => None,
            });
        }
    }
    let extras_of = |number: usize| match held.get(number) {
        Some(Some((front, back))) => (front.as_bytes(), back.as_bytes()),
        _ => (&[][..], &[][..]),
    };
    let pieces: Vec<(&[u8], encode::Extras)> = bodies
        .iter()
        .enumerate()
        .map(|(number, body)| (body.as_bytes(), extras_of(number)))
        .collect();
    let Some(sizes) = pieces
        .iter()
        .map(|(body, more)| {
            encode::size(&common, body.len(), own.properties_bytes(id_bytes, *more))
        })
        .collect::<Option<Vec<usize>>>()
    else {
        return Ok(None);
    };
    let packed: Vec<u8> = sizes
        .iter()
        .flat_map(|size| (*size as u32).to_le_bytes())
        .collect();
    let frames_bytes: usize = sizes.iter().sum();
    let (front, back) = match &envelope {
        Some((frames_tag, sizes_tag, rest)) => (
            encode::field_head(*frames_tag, frames_bytes),
            [
                &encode::field_head(*sizes_tag, packed.len()),
                &packed,
                rest.as_bytes(),
            ]
            .concat(),
        ),
        None => Default::default(),
    };
    let mut is_right = None;
    let message = PyBytes::new_with(py, front.len() + frames_bytes + back.len(), |out| {
        is_right = aside(py, frames_bytes, || {
            put(out, 0, &front)?;
            put(out, front.len() + frames_bytes, &back)?;
            let mut rest: &mut [u8] = out.get_mut(front.len()..)?.get_mut(..frames_bytes)?;
            let mut properties = Vec::new();
            let ids = own.ids.chunks_exact(id_bytes.max(1));
            for (number, (((body, more), size), id)) in
                pieces.iter().zip(&sizes).zip(ids).enumerate()
            {
                let (out, behind) = rest.split_at_mut_checked(*size)?;
                own.write(number, id, *more, &mut properties);
                encode::record(&common, &columns, number, body, &properties, out)?;
                rest = behind;
            }
            rest.is_empty().then_some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| (message, PyBytes::new(py, &packed))))
}

/// An int64 column of a value of each range, or None if a range has none.
fn column<'py>(
    py: Python<'py>,
    starts: &[u8],
    lengths: &[u8],
    of: impl Fn(i64, i64) -> Option<i64> + Sync + Send,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let mut is_right = None;
    let made = PyByteArray::new_with(py, starts.len(), |out| {
        is_right = py.detach(|| {
            for (out, (start, length)) in out
                .chunks_exact_mut(WORD)
                .zip(words(starts).zip(words(lengths)))
            {
                put(out, 0, &of(start, length)?.to_ne_bytes())?;
            }
            Some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| made))
}

/// CRC-32 of bytes.
#[pyfunction]
fn crc32(py: Python<'_>, data: &[u8]) -> u32 {
    py.detach(|| crc32fast::hash(data))
}

/// CRC-32 of each range, or None if one is not within the bytes.
#[pyfunction]
fn crcs<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    column(py, starts, lengths, |start, length| {
        columns::piece_crc(data, start, length)
    })
}

/// The tags code of properties at each position, or None if undecided.
#[pyfunction]
fn tags_codes<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    column(py, starts, lengths, |start, length| {
        columns::code(data, start, length)
    })
}

/// Numbers of records and the hashes of their keys, two columns int64; None if undecided.
///
/// `fronts` are the hashes of the text before the keys of each record.
#[pyfunction]
fn key_hashes<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
    fronts: &[u8],
) -> Option<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
    let (numbers, hashes) = py.detach(|| {
        let (mut numbers, mut hashes) = (Vec::new(), Vec::new());
        let pieces = words(starts).zip(words(lengths)).zip(words(fronts));
        for (number, ((start, length), front)) in (0i64..).zip(pieces) {
            columns::key_hashes(data, start, length, front as i32, |hash| {
                numbers.extend_from_slice(&number.to_ne_bytes());
                hashes.extend_from_slice(&hash.to_ne_bytes());
            })?;
        }
        Some((numbers, hashes))
    })?;
    Some((
        PyByteArray::new(py, &numbers),
        PyByteArray::new(py, &hashes),
    ))
}

pub type Names<'py> = Vec<Bound<'py, PyBytes>>;
type Scanned<'py> = (Bound<'py, PyByteArray>, Names<'py>, u8, usize);

/// Consecutive records: columns int64 of `scan::Row`, topics, why the scan stopped, and where; None
/// if undecided.
///
/// `end` is the end of the file; `data` may be only its start.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn scan<'py>(
    py: Python<'py>,
    data: &[u8],
    end: usize,
    bytes_max: usize,
    records_max: usize,
    check: bool,
    checksums: bool,
    checksums_from: Option<i64>,
    with_tag_codes: bool,
) -> PyResult<Option<Scanned<'py>>> {
    let limits = Limits {
        end,
        bytes: bytes_max,
        records: records_max,
    };
    let checks = check.then_some(Checks {
        checksums,
        checksums_from,
    });
    let found = py.detach(|| scan_records(data, &limits, checks.as_ref(), with_tag_codes));
    let Some(found) = found else {
        return Ok(None);
    };
    let count = found.rows.len();
    let columns = PyByteArray::new_with(py, count * FIELDS * WORD, |out| {
        py.detach(|| {
            for (row, fields) in found.rows.iter().enumerate() {
                for (column, field) in fields.iter().enumerate() {
                    put(out, (column * count + row) * WORD, &field.to_ne_bytes());
                }
            }
        });
        Ok(())
    })?;
    let topics = found.topics.names.iter().map(|name| PyBytes::new(py, name));
    Ok(Some((
        columns,
        topics.collect(),
        found.why as u8,
        found.stop,
    )))
}

/// Sizes of consecutive records in their positions, int64, why they end, and where.
#[pyfunction]
fn chain<'py>(
    py: Python<'py>,
    data: &[u8],
    base: i64,
    end: usize,
    stop: usize,
) -> PyResult<(Bound<'py, PyByteArray>, u8, usize)> {
    let (sizes, why, at) = py.detach(|| {
        let mut sizes = Vec::new();
        let (why, at) = follow(data, base, end, stop, &mut sizes);
        (sizes, why, at)
    });
    let packed = PyByteArray::new_with(py, sizes.len() * WORD, |out| {
        for (out, size) in out.chunks_exact_mut(WORD).zip(&sizes) {
            put(out, 0, &size.to_ne_bytes());
        }
        Ok(())
    })?;
    Ok((packed, why as u8, at))
}

/// End of the records of `chain` that are whole in the data, and whether more bytes are needed to
/// decode the next one.
#[pyfunction]
fn extent(py: Python<'_>, data: &[u8], base: i64, end: usize) -> (usize, bool) {
    let (why, at) = py.detach(|| follow_all(data, base, end));
    (at, matches!(why, ScanEnd::MoreBytes))
}

/// Native int32 items.
pub fn int32s<'py>(py: Python<'py>, items: &[i32]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, items.len() * 4, |out| {
        for (out, item) in out.chunks_exact_mut(4).zip(items) {
            out.copy_from_slice(&item.to_ne_bytes());
        }
        Ok(())
    })
}

/// Ranges from NumPy: starts and lengths, int64.
pub fn places<'a>(starts: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = (i64, i64)> + 'a {
    words(starts).zip(words(lengths))
}

/// Distinct ranges, and the number of each, int64; None if undecided.
#[pyfunction]
fn distinct<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    lengths: &[u8],
) -> PyResult<Option<(Names<'py>, Bound<'py, PyByteArray>)>> {
    let mut known = Topics::default();
    let mut is_right = None;
    let numbers = PyByteArray::new_with(py, starts.len(), |out| {
        is_right = py.detach(|| {
            for (out, (start, length)) in out.chunks_exact_mut(WORD).zip(places(starts, lengths)) {
                let number = known.number(columns::piece(data, start, length)?);
                put(out, 0, &number.to_ne_bytes())?;
            }
            Some(())
        });
        Ok(())
    })?;
    let names = known.names.iter().map(|name| PyBytes::new(py, name));
    Ok(is_right.map(|()| (names.collect(), numbers)))
}

/// See `pieces::room`: a byte for each record that ends at `ends`; None if undecided.
#[pyfunction]
fn rooms<'py>(
    py: Python<'py>,
    data: &[u8],
    ends: &[u8],
    properties_lengths: &[u8],
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let mut is_right = None;
    let made = PyByteArray::new_with(py, ends.len() / WORD, |out| {
        is_right = py.detach(|| {
            for (out, (end, length)) in out.iter_mut().zip(places(ends, properties_lengths)) {
                *out = pieces::room(data, end, length)?;
            }
            Some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| made))
}

/// Offset ids of records with IPv4 store hosts, 32 letters each; None if undecided.
#[pyfunction]
fn offset_ids<'py>(
    py: Python<'py>,
    data: &[u8],
    host_starts: &[u8],
    physical_offsets: &[u8],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut is_right = None;
    let made = PyBytes::new_with(py, host_starts.len() / WORD * 32, |out| {
        is_right = py.detach(|| {
            let given = places(host_starts, physical_offsets);
            for (out, (start, offset)) in out.chunks_exact_mut(32).zip(given) {
                put(out, 0, &pieces::offset_id(data, start, offset)?)?;
            }
            Some(())
        });
        Ok(())
    })?;
    Ok(is_right.map(|()| made))
}

type Ends<'py> = (
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
    Bound<'py, PyByteArray>,
);

/// Records that may have a sequence number: their numbers and their ends without checksums, int64,
/// and a byte for each, 1 if it has a checksum; None if undecided.
#[pyfunction]
fn sequence_ends<'py>(py: Python<'py>, data: &[u8], ends: &[u8]) -> Option<Ends<'py>> {
    let (numbers, fronts, checked) = py.detach(|| {
        let (mut numbers, mut fronts, mut checked) = (Vec::new(), Vec::new(), Vec::new());
        for (number, end) in (0i64..).zip(words(ends)) {
            if let Some((front, is_checked)) = columns::sequence_end(data, end)? {
                numbers.extend_from_slice(&number.to_ne_bytes());
                fronts.extend_from_slice(&front.to_ne_bytes());
                checked.push(u8::from(is_checked));
            }
        }
        Some((numbers, fronts, checked))
    })?;
    let made = |bytes: &[u8]| PyByteArray::new(py, bytes);
    Some((made(&numbers), made(&fronts), made(&checked)))
}

/// Queue entries cut into runs: four columns int64 of `runs::Head`, bounds, int32, and entries.
///
/// The arguments are the columns of `runs::Listed`, int64; `listed` has a byte for each record.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn queue_runs<'py>(
    py: Python<'py>,
    topics: &[u8],
    queues: &[u8],
    queue_offsets: &[u8],
    physical_offsets: &[u8],
    sizes: &[u8],
    tag_codes: &[u8],
    listed: &[u8],
    file_entries: i64,
) -> PyResult<Option<PackedRuns<'py>>> {
    let found = py.detach(|| {
        let rows = places(topics, queues).zip(words(queue_offsets));
        let rows = rows
            .zip(places(physical_offsets, sizes))
            .zip(words(tag_codes));
        let rows = rows.zip(listed).filter(|(_, is_listed)| **is_listed != 0);
        let records = rows.map(
            |(((((topic, queue), queue_offset), (physical_offset, size)), tag_code), _)| Listed {
                topic,
                queue,
                queue_offset,
                physical_offset,
                size,
                tag_code,
            },
        );
        runs::cut(records, file_entries)
    });
    found.map(|found| packed_runs(py, &found)).transpose()
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", crate::INTERFACE)?;
    module.add_function(wrap_pyfunction!(append_batches, module)?)?;
    module.add_function(wrap_pyfunction!(chain, module)?)?;
    module.add_function(wrap_pyfunction!(check_batch, module)?)?;
    module.add_function(wrap_pyfunction!(crc32, module)?)?;
    module.add_function(wrap_pyfunction!(crcs, module)?)?;
    module.add_function(wrap_pyfunction!(distinct, module)?)?;
    module.add_function(wrap_pyfunction!(encode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(encode_messages, module)?)?;
    module.add_function(wrap_pyfunction!(extent, module)?)?;
    module.add_function(wrap_pyfunction!(key_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(offset_ids, module)?)?;
    module.add_function(wrap_pyfunction!(queue_runs, module)?)?;
    module.add_function(wrap_pyfunction!(rooms, module)?)?;
    module.add_function(wrap_pyfunction!(scan, module)?)?;
    module.add_function(wrap_pyfunction!(sequence_ends, module)?)?;
    module.add_function(wrap_pyfunction!(stamp_batch, module)?)?;
    module.add_function(wrap_pyfunction!(tags_codes, module)?)?;
    module.add_function(wrap_pyfunction!(take_bodies, module)?)?;
    module.add_function(wrap_pyfunction!(unique_keys, module)?)?;
    module.add_class::<crate::python_delivered::DeliveredAnswers>()?;
    crate::python_reading::add_to(module)?;
    crate::python_wire::add_to(module)?;
    crate::python_http2::add_to(module)?;
    crate::python_logs::add_to(module)
}
