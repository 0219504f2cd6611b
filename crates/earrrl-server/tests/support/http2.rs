//! Builds HTTP/2 frames, for clients that violate the protocol or test its limits.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
/// The flag of a `HEADERS` frame that ends the headers; the next constant ends the request.
pub const END_HEADERS: u8 = 4;
pub const END_STREAM: u8 = 1;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns the connection preface, and settings with this window for each answer.
pub fn greeting(window: u32) -> Vec<u8> {
    let mut payload = vec![0, 4];
    payload.extend(window.to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()
}

/// Returns the frame of a complete `GET path` request on a stream.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &block(&[0x82, 0x86], path, b""),
    )
}

/// Returns the headers of a gRPC call, which its message has to follow.
pub fn call(stream: u32, path: &str) -> Vec<u8> {
    let kind = b"\x0f\x10\x10application/grpc";
    frame(
        HEADERS,
        END_HEADERS,
        stream,
        &block(&[0x83, 0x86], path, kind),
    )
}

/// Returns the headers of a `POST path` request, which its body has to follow.
pub fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS,
        stream,
        &block(&[0x83, 0x86], path, b""),
    )
}

/// Returns the frame of a `GET path` request with an additional header.
pub fn get_with(stream: u32, path: &str, name: &str, value: &str) -> Vec<u8> {
    let header = [
        &[0, name.len() as u8],
        name.as_bytes(),
        &[value.len() as u8],
        value.as_bytes(),
    ];
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &block(&[0x82, 0x86], path, &header.concat()),
    )
}

/// Returns the frames of a gRPC call with its complete message.
pub fn unary(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    [call(stream, path), frame(DATA, END_STREAM, stream, &framed)].concat()
}

/// Encodes headers: method and scheme by their numbers in the static table, then path, authority
/// and others as literals.
fn block(indexed: &[u8], path: &str, more: &[u8]) -> Vec<u8> {
    let mut block = indexed.to_vec();
    block.extend([0x04, path.len() as u8]);
    block.extend(path.as_bytes());
    block.extend(b"\x01\x09localhost");
    block.extend(more);
    block
}

/// Returns the types and stream numbers of the complete frames in `bytes`.
pub fn kinds(mut bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut kinds = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(after) = rest.get(length..) else {
            break;
        };
        kinds.push((
            head[3],
            u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        ));
        bytes = after;
    }
    kinds
}
