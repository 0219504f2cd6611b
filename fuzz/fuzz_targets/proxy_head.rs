//! The head of the PROXY protocol: any bytes are read or refused, at most 4096 of them, and no part of a valid head is
//! one.
#![no_main]

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use earrrl_server::proxy_protocol::read_head;
use libfuzzer_sys::fuzz_target;

/// Returns the result and the number of bytes that were read.
fn read(mut bytes: &[u8]) -> (io::Result<Option<IpAddr>>, usize) {
    let whole = bytes.len();
    let polled = pin!(read_head(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(result) = polled else {
        panic!("bytes in memory never wait")
    };
    (result, whole - bytes.len())
}

fuzz_target!(|bytes: &[u8]| {
    let (result, length) = read(bytes);
    assert!(length <= 4096);
    if result.is_ok() {
        assert!(
            read(&bytes[..length - 1])
                .0
                .is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof)
        );
    }
});
