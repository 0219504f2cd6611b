//! Any bytes, in any pieces: the lines of HTTP/1.1 heads are followed in pieces as in the whole, and only
//! control characters are replaced.
#![no_main]

use earrrl_server::protocol::http::lines::{BadHead, HeadLines};
use libfuzzer_sys::fuzz_target;

fn follow(input: &[u8], piece: usize) -> (Vec<u8>, Result<(), BadHead>) {
    let mut lines = HeadLines::default();
    let mut bytes = input.to_vec();
    let result = bytes
        .chunks_mut(piece)
        .try_for_each(|piece| lines.follow(piece));
    (bytes, result)
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else {
        return;
    };
    let whole = follow(input, usize::MAX);
    let pieces = follow(input, usize::from(piece) + 1);
    assert_eq!(pieces.1, whole.1);
    if whole.1.is_ok() {
        assert_eq!(pieces.0, whole.0);
    }
    for (before, after) in input.iter().zip(&whole.0) {
        let control = before.is_ascii_control() && !b"\t\r\n".contains(before);
        assert!(before == after || (control && *after == before | 0x80));
    }
});
