//! The PROXY protocol, versions 1 and 2: the head by which a load balancer that passes TCP on names
//! its client, before the client's first byte.

use std::io;
use std::net::IpAddr;

use earrrl_tower::address::canonical;
use proxy_header::{ParseConfig, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The first bytes of a head of version 1, which is a line of text.
const TEXT: &[u8; 6] = b"PROXY ";
/// The length of the longest head of version 1, in bytes, with the end of its line.
const MAX_TEXT_LEN: usize = 107;

/// The first bytes of a head of version 2, which is binary.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the fixed part of a head of version 2, which ends with the length of the rest.
const FIXED_LEN: usize = 16;
/// The length of the longest accepted head of version 2, in bytes. Addresses need at most 232; the
/// rest has fields that are ignored, such as the client's TLS version and the names in its
/// certificate.
const MAX_BINARY_LEN: usize = 4096;
/// The version and command of a connection that the load balancer opened for itself.
const LOCAL: u8 = 0x20;

/// Reads the head of a connection, and no byte after it, since TLS may follow. Returns the client's
/// address; `None` if the load balancer names no client, as in its health checks.
///
/// # Errors
/// Returns `InvalidData` if the connection does not begin with a valid head, `UnexpectedEof` if it
/// ends before, or the socket's error.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut head = vec![0; SIGNATURE.len()];
    read_start(stream, &mut head).await?;
    if head == SIGNATURE {
        read_binary(stream, &mut head).await?;
        // The addresses of such a head are to be ignored, whatever they are.
        if head[SIGNATURE.len()] == LOCAL {
            return Ok(None);
        }
    } else {
        read_text(stream, &mut head).await?;
    }
    let config = ParseConfig {
        include_tlvs: false,
        ..ParseConfig::default()
    };
    match ProxyHeader::parse(&head, config) {
        Ok((parsed, length)) if length == head.len() => Ok(parsed
            .proxied_address()
            .map(|client| canonical(client.source.ip()))),
        _ => Err(invalid(
            "the PROXY head has an invalid address, port or family",
        )),
    }
}

/// Fills `start`, unless bytes arrive that begin no head. A client that sends no head may send
/// fewer bytes than this and then wait, so each read is checked.
async fn read_start(stream: &mut (impl AsyncRead + Unpin), start: &mut [u8]) -> io::Result<()> {
    let mut length = 0;
    while length < start.len() {
        let read = stream.read(&mut start[length..]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += read;
        let arrived = &start[..length];
        let is_text = arrived.starts_with(TEXT) || TEXT.starts_with(arrived);
        if !is_text && !SIGNATURE.starts_with(arrived) {
            return Err(invalid("the connection does not begin with a PROXY head"));
        }
    }
    Ok(())
}

/// Reads the rest of a head of version 2.
async fn read_binary(stream: &mut (impl AsyncRead + Unpin), head: &mut Vec<u8>) -> io::Result<()> {
    head.resize(FIXED_LEN, 0);
    stream.read_exact(&mut head[SIGNATURE.len()..]).await?;
    let rest = u16::from_be_bytes([head[FIXED_LEN - 2], head[FIXED_LEN - 1]]);
    let length = FIXED_LEN + usize::from(rest);
    if length > MAX_BINARY_LEN {
        return Err(invalid("the PROXY head is longer than 4096 bytes"));
    }
    head.resize(length, 0);
    stream.read_exact(&mut head[FIXED_LEN..]).await?;
    Ok(())
}

/// Reads the rest of a head of version 1. Its length is unknown, so single bytes are read.
async fn read_text(stream: &mut (impl AsyncRead + Unpin), head: &mut Vec<u8>) -> io::Result<()> {
    while head.last() != Some(&b'\n') {
        if head.len() == MAX_TEXT_LEN {
            return Err(invalid("the PROXY head is longer than 107 bytes"));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(())
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the client and the unread bytes, or the kind of the error.
    fn read(mut bytes: &[u8]) -> Result<(Option<String>, &[u8]), io::ErrorKind> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let head = runtime.block_on(read_head(&mut bytes));
        head.map(|client| (client.map(|client| client.to_string()), bytes))
            .map_err(|error| error.kind())
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn a_head_names_the_client_and_no_byte_after_it_is_read() {
        let ipv4 = [192, 0, 2, 7, 10, 0, 0, 1, 0, 80, 1, 187];
        let ipv6: Vec<u8> = [&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[7], &[0; 20]].concat();
        let fields = [&ipv4[..], b"\x04\x00\x03abc", &[0xea; 300]].concat();
        let unix = [b'/'; 216];
        for (head, client) in [
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 80 443\r\n".to_vec(),
                Some("192.0.2.7"),
            ),
            (
                b"PROXY TCP6 2001:db8::7 ::1 65535 1\r\n".to_vec(),
                Some("2001:db8::7"),
            ),
            (
                b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 1\r\n".to_vec(),
                Some("192.0.2.7"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (
                b"PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n".to_vec(),
                None,
            ),
            (binary(0x21, 0x11, &ipv4), Some("192.0.2.7")),
            (binary(0x21, 0x21, &ipv6), Some("2001:db8::7")),
            (binary(0x21, 0x11, &fields), Some("192.0.2.7")),
            (binary(0x21, 0x31, &unix), None),
            (binary(0x21, 0x00, &[]), None),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x20, 0x11, &ipv4), None),
            (binary(0x20, 0x11, &[]), None),
        ] {
            let bytes = [&head, &b"GET / HTTP/1.1\r\n"[..]].concat();
            let expected = (client.map(str::to_owned), &b"GET / HTTP/1.1\r\n"[..]);
            assert_eq!(read(&bytes), Ok(expected), "{}", head.escape_ascii());
            for length in 0..head.len() {
                let cut = Err(io::ErrorKind::UnexpectedEof);
                assert_eq!(
                    read(&head[..length]),
                    cut,
                    "{}",
                    head[..length].escape_ascii()
                );
            }
        }
    }

    #[test]
    fn anything_else_is_invalid_and_bounded() {
        let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
        let short = [0; 11];
        let whole = [0; MAX_BINARY_LEN - FIXED_LEN + 1];
        for bytes in [
            b"GET".to_vec(),
            b"PING\r\n".to_vec(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            b"\x16\x03\x01".to_vec(),
            b"PROXY\r\n".to_vec(),
            b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 1\r\n".to_vec(),
            b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n".to_vec(),
            b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\rPROXY \r\n".to_vec(),
            b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n".to_vec(),
            long,
            binary(0x21, 0x11, &short),
            binary(0x21, 0x21, &short),
            binary(0x21, 0x31, &short),
            binary(0x21, 0x41, &whole[..16]),
            binary(0x31, 0x11, &whole[..12]),
            binary(0x22, 0x11, &whole[..12]),
            binary(0x21, 0x11, &whole),
            binary(0x20, 0x00, &whole),
        ] {
            let shown = bytes.escape_ascii().to_string();
            assert_eq!(read(&bytes), Err(io::ErrorKind::InvalidData), "{shown}");
        }
    }
}
