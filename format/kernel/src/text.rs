//! Properties, and Java's hashes of their values.

#![forbid(unsafe_code)]

const NAME_END: u8 = 1;
const PROPERTY_END: u8 = 2;

/// Java's `String.hashCode` of a text; none if it is not UTF-8, which Java would mend.
pub fn hash(text: &[u8]) -> Option<i32> {
    hash_behind(0, text)
}

/// The same of a text behind another one, of which the hash is known.
pub fn hash_behind(front: i32, text: &[u8]) -> Option<i32> {
    let step = |code: i32, unit: i32| code.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        return Some(
            text.iter()
                .fold(front, |code, byte| step(code, i32::from(*byte))),
        );
    }
    let units = std::str::from_utf8(text).ok()?.encode_utf16();
    Some(units.fold(front, |code, unit| step(code, i32::from(unit))))
}

/// The last value of a property that is not empty; empty if there is none.
pub fn last_value<'a>(properties: &'a [u8], name: &[u8]) -> &'a [u8] {
    let mut found: &[u8] = &[];
    for segment in properties.split(|byte| *byte == PROPERTY_END) {
        let value = segment
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(&[NAME_END]));
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            found = value;
        }
    }
    found
}

/// The code that a queue entry holds of a record's tags; none where `hash` has none.
pub fn tags_code(properties: &[u8]) -> Option<i64> {
    hash(last_value(properties, b"TAGS")).map(i64::from)
}
