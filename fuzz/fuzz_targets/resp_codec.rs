//! Any bytes, in any pieces: the RESP decoder never panics, never looks beyond its input, decodes
//! pieces as it does the whole, and refuses in one line.
#![no_main]

use earrrl_server::protocol::resp::codec::{Decoder, MAX_REQUEST_LEN, MAX_WORDS};
use libfuzzer_sys::fuzz_target;

type Requests = Vec<Vec<Vec<u8>>>;

fn decode(input: &[u8], piece: usize) -> (Requests, Option<String>) {
    let mut decoder = Decoder::default();
    let mut requests = Requests::new();
    let mut start = 0;
    let mut end = 0;
    while end < input.len() {
        end = input.len().min(end + piece);
        loop {
            match decoder.decode(&input[start..end]) {
                Ok(Some(request)) => {
                    assert!(request.len() <= MAX_WORDS);
                    assert!((1..=MAX_REQUEST_LEN).contains(&request.consumed()));
                    requests.push(request.words().map(<[u8]>::to_vec).collect());
                    start += request.consumed();
                }
                Ok(None) => break,
                Err(malformed) => return (requests, Some(malformed.to_string())),
            }
        }
    }
    (requests, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else {
        return;
    };
    let whole = decode(input, usize::MAX / 2);
    assert_eq!(decode(input, usize::from(piece) + 1), whole);
    assert!(whole.1.is_none_or(|error| !error.contains(['\r', '\n'])));
});
