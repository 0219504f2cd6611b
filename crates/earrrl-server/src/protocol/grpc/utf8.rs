//! Messages whose texts are no UTF-8.
//!
//! Envoy copies a client's header into a field of type `string` as it is. A decoder refuses the whole
//! message then, and Envoy lets the client pass. Such a message is written anew, with the bytes
//! outside UTF-8 as [`raw_text`] has them.

use hyper::body::Bytes;
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

use crate::service::raw_text;

/// A field that is a text or has texts in it.
#[derive(Debug)]
pub(super) enum TextField {
    Text,
    Message(Fields),
}

/// The fields of a message that hold texts, by their numbers.
pub(super) type Fields = &'static [(u64, TextField)];

/// The texts of `RateLimitRequest`: the domain, and the entries of descriptors.
pub(super) const RATE_LIMIT_REQUEST: Fields =
    &[(1, TextField::Text), (2, TextField::Message(&[(1, TextField::Message(PAIR))]))];

/// The texts of `CheckRequest`: those of the HTTP request, its headers as a map and as a list.
pub(super) const CHECK_REQUEST: Fields =
    &[(1, TextField::Message(&[(4, TextField::Message(&[(2, TextField::Message(HTTP))]))]))];
const HTTP: Fields = &[
    (1, TextField::Text),
    (2, TextField::Text),
    (3, TextField::Message(PAIR)),
    (4, TextField::Text),
    (5, TextField::Text),
    (6, TextField::Text),
    (7, TextField::Text),
    (8, TextField::Text),
    (10, TextField::Text),
    (11, TextField::Text),
    (13, TextField::Message(&[(1, TextField::Message(PAIR))])),
];
const PAIR: Fields = &[(1, TextField::Text), (2, TextField::Text)];

/// Decodes a message, whatever bytes its texts are.
///
/// # Errors
/// What is wrong with it beside that.
pub(super) fn decode<M: Message + Default>(
    message: Bytes,
    fields: Fields,
) -> Result<M, prost::DecodeError> {
    M::decode(message.clone()).or_else(|error| match repaired(&message, fields) {
        Some(repaired) => M::decode(&*repaired),
        None => Err(error),
    })
}

/// Returns the message with its texts in UTF-8; `None` where it is no message.
fn repaired(mut message: &[u8], fields: Fields) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(message.len());
    while !message.is_empty() {
        let tag = decode_varint(&mut message).ok()?;
        encode_varint(tag, &mut out);
        match tag & 7 {
            0 => encode_varint(decode_varint(&mut message).ok()?, &mut out),
            1 => out.extend_from_slice(take(&mut message, 8)?),
            5 => out.extend_from_slice(take(&mut message, 4)?),
            2 => {
                let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                let value = take(&mut message, length)?;
                let known = fields.iter().find(|(number, _)| *number == tag >> 3);
                let mut text = String::new();
                let inner;
                let value = match known {
                    Some((_, TextField::Text)) => {
                        raw_text::push(value, &mut text);
                        text.as_bytes()
                    }
                    Some((_, TextField::Message(fields))) => {
                        inner = repaired(value, fields)?;
                        &inner
                    }
                    None => value,
                };
                encode_varint(value.len() as u64, &mut out);
                out.extend_from_slice(value);
            }
            _ => return None,
        }
    }
    Some(out)
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use prost::Message as _;

    use super::*;

    #[test]
    fn texts_of_any_bytes_are_read_and_all_else_stays() {
        let entry = |value: &str| Entry { key: "k".into(), value: value.into() };
        let descriptor =
            RateLimitDescriptor { entries: vec![entry("AB"), entry("é")], ..Default::default() };
        let request = RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![descriptor.clone(), descriptor],
            hits_addend: 300,
        };
        let mut bytes = request.encode_to_vec();
        for byte in &mut bytes {
            match byte {
                b'A' => *byte = 0xFF,
                b'B' => *byte = 0x01,
                _ => {}
            }
        }
        assert!(RateLimitRequest::decode(&*bytes).is_err());
        let read: RateLimitRequest = decode(bytes.into(), RATE_LIMIT_REQUEST).unwrap();
        assert_eq!((&*read.domain, read.hits_addend, read.descriptors.len()), ("d", 300, 2));
        let entries = &read.descriptors[1].entries;
        assert_eq!(&*raw_text::bytes(&entries[0].value), b"\xff\x01");
        assert_eq!(entries[1].value, "é");
    }

    #[test]
    fn garbage_is_an_error() {
        for garbage in
            [&b"\xff"[..], b"\x0a\x05ab", b"\x0b", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"]
        {
            let bytes = Bytes::copy_from_slice(garbage);
            assert!(decode::<RateLimitRequest>(bytes, RATE_LIMIT_REQUEST).is_err(), "{garbage:?}");
        }
    }
}
