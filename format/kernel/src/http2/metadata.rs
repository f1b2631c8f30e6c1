//! Headers of gRPC over HTTP/2: custom metadata, timeouts, statuses, the head of a request.

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::Engine;
use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri, Version};

use super::incoming::Refusal;

pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS_MAX: u32 = 16;
const TIMEOUT_DIGITS_MAX: usize = 8;
/// Padding may be missing, and bits that no byte needs may be set.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

pub enum Value {
    Text(HeaderValue),
    Binary(Vec<u8>),
}

/// Custom metadata, in the order of the headers.
pub type Metadata = Vec<(HeaderName, Value)>;

/// Bytes that RFC 9113, section 10.5.1 adds for each header.
const HEADER_BYTES: usize = 32;

/// The length of metadata, counted like a list of headers.
pub fn list_bytes(metadata: &Metadata) -> usize {
    let length = |value: &Value| match value {
        Value::Text(text) => text.len(),
        Value::Binary(bytes) => bytes.len(),
    };
    metadata
        .iter()
        .map(|(name, value)| name.as_str().len() + length(value) + HEADER_BYTES)
        .sum()
}

/// Names that are HTTP/2's or gRPC's own.
fn is_own(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("grpc-")
        || matches!(
            name,
            "te" | "content-type" | "accept-encoding" | "content-length"
        )
}

/// The custom metadata of headers.
pub fn metadata(
    headers: &HeaderMap,
    mut is_kept: impl FnMut(&HeaderName) -> bool,
) -> Result<Metadata, Refusal> {
    let mut found = Metadata::new();
    for (name, value) in headers {
        if is_own(name) || !is_kept(name) {
            continue;
        }
        if !name.as_str().ends_with("-bin") {
            // A copy: a value is a part of the frame that brought it, and would keep all of it.
            let copy = HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone());
            found.push((name.clone(), Value::Text(copy)));
            continue;
        }
        // Values of one name may be joined by commas.
        for part in value.as_bytes().split(|byte| *byte == b',') {
            let decoded = BASE64.decode(part.trim_ascii());
            let bytes = decoded
                .map_err(|_| Refusal::new(super::INTERNAL, format!("{name} is not base64")))?;
            found.push((name.clone(), Value::Binary(bytes)));
        }
    }
    Ok(found)
}

/// A header of custom metadata.
pub fn header(name: &str, value: &[u8]) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not the name of a header"))?;
    let value = if header.as_str().ends_with("-bin") {
        HeaderValue::try_from(BASE64.encode(value))
    } else {
        HeaderValue::from_bytes(value)
    };
    let value = value.map_err(|_| format!("the value of {name} has characters of control"))?;
    Ok((header, value))
}

pub type Headers = Vec<(HeaderName, HeaderValue)>;

fn add(headers: &mut HeaderMap, more: Headers) {
    for (name, value) in more {
        headers.append(name, value);
    }
}

/// Headers of an answer.
pub fn answer_headers(more: Headers) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(CONTENT_TYPE, CONTENT);
    add(&mut headers, more);
    headers
}

/// Add a call's status.
pub fn add_status(headers: &mut HeaderMap, status: u32, details: &str, more: Headers) {
    let code = if status == 0 {
        HeaderValue::from_static("0")
    } else {
        HeaderValue::from(status)
    };
    headers.insert(GRPC_STATUS, code);
    if !details.is_empty() {
        if let Ok(text) = HeaderValue::try_from(percent_encoded(details)) {
            headers.insert(GRPC_MESSAGE, text);
        }
    }
    add(headers, more);
}

/// A call's status in headers: its code and text; None if there is none.
pub fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get(GRPC_STATUS)?;
    let code = code.to_str().ok().and_then(|text| text.parse().ok());
    let details = headers.get(GRPC_MESSAGE).map(HeaderValue::as_bytes);
    Some((
        code.filter(|code| *code <= STATUS_MAX)
            .unwrap_or(super::UNKNOWN),
        percent_decoded(details.unwrap_or_default()),
    ))
}

/// The status of gRPC that an HTTP status stands for.
pub fn status_of_http(status: StatusCode) -> u32 {
    match status.as_u16() {
        400 => super::INTERNAL,
        401 => super::UNAUTHENTICATED,
        403 => super::PERMISSION_DENIED,
        404 => super::UNIMPLEMENTED,
        429 | 502 | 503 | 504 => super::UNAVAILABLE,
        _ => super::UNKNOWN,
    }
}

/// Printable ASCII; anything else and % as %XX of its UTF-8.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn percent_decoded(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let digits = behind.split_first_chunk::<2>();
        match digits.and_then(|(digits, behind)| Some((hex(digits)?, behind))) {
            Some((byte, behind)) if *first == b'%' => {
                out.push(byte);
                rest = behind;
            }
            _ => out.push(*first),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex([high, low]: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(*high)? * 16 + digit(*low)?) as u8)
}

/// Whether headers are those of gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The seconds of grpc-timeout.
pub fn timeout(headers: &HeaderMap) -> Result<Option<f64>, Refusal> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let parsed = || {
        let (unit, digits) = value.as_bytes().split_last()?;
        if digits.is_empty() || digits.len() > TIMEOUT_DIGITS_MAX {
            return None;
        }
        let mut number = 0u32;
        for digit in digits {
            number = number * 10 + char::from(*digit).to_digit(10)?;
        }
        let number = f64::from(number);
        Some(match unit {
            b'H' => number * 3600.0,
            b'M' => number * 60.0,
            b'S' => number,
            b'm' => number / 1e3,
            b'u' => number / 1e6,
            b'n' => number / 1e9,
            _ => return None,
        })
    };
    match parsed() {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Refusal::new(
            super::INTERNAL,
            format!("grpc-timeout is malformed: {value:?}"),
        )),
    }
}

/// Seconds as a grpc-timeout, in the finest unit that has room.
fn timeout_value(seconds: f64) -> Option<HeaderValue> {
    let seconds = seconds.max(0.0);
    for (unit, in_second) in [('u', 1e6), ('m', 1e3), ('S', 1.0), ('M', 1.0 / 60.0)] {
        let number = (seconds * in_second).ceil();
        if number < 1e8 {
            return HeaderValue::try_from(format!("{number}{unit}")).ok();
        }
    }
    None
}

/// The headers that all calls of a method have in common.
#[derive(Clone)]
pub struct RequestHead {
    uri: Uri,
    headers: HeaderMap,
}

impl RequestHead {
    pub fn new(scheme: &str, authority: &str, path: &str, more: Headers) -> Result<Self, String> {
        let mut parts = http::uri::Parts::default();
        parts.scheme =
            Some(Scheme::try_from(scheme).map_err(|_| format!("{scheme:?} is not a scheme"))?);
        parts.authority = Some(
            Authority::try_from(authority)
                .map_err(|_| format!("{authority:?} is not an authority"))?,
        );
        parts.path_and_query =
            Some(PathAndQuery::try_from(path).map_err(|_| format!("{path:?} is not a path"))?);
        let uri = Uri::from_parts(parts).map_err(|fault| fault.to_string())?;
        let mut headers = HeaderMap::with_capacity(2 + more.len());
        headers.insert(CONTENT_TYPE, CONTENT);
        headers.insert(TE, HeaderValue::from_static("trailers"));
        add(&mut headers, more);
        Ok(RequestHead { uri, headers })
    }

    pub fn request(&self, timeout: Option<f64>, more: Headers) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        let mut headers = self.headers.clone();
        if let Some(value) = timeout.and_then(timeout_value) {
            headers.insert(GRPC_TIMEOUT, value);
        }
        add(&mut headers, more);
        *request.headers_mut() = headers;
        request
    }
}
