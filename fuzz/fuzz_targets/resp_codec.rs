//! Any bytes, in any pieces: the RESP decoder never panics, never looks beyond its input, decodes
//! pieces as it does the whole, and refuses in one line.
#![no_main]

use earrrl_server::protocol::resp::codec::{MAX_REQUEST_LEN, MAX_WORDS, decode};
use libfuzzer_sys::fuzz_target;

type Requests = Vec<Vec<Vec<u8>>>;

fn decode_pieces(input: &[u8], piece: usize) -> (Requests, Option<String>) {
    let mut requests = Requests::new();
    let mut start = 0;
    let mut end = 0;
    while end < input.len() {
        end = input.len().min(end + piece);
        loop {
            match decode(&input[start..end]) {
                Ok(Some(request)) => {
                    assert!(request.words.len() <= MAX_WORDS);
                    assert!((1..=MAX_REQUEST_LEN).contains(&request.bytes.len()));
                    requests.push(request.words.iter().map(|word| word.to_vec()).collect());
                    start += request.bytes.len();
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
    let whole = decode_pieces(input, usize::MAX / 2);
    assert_eq!(decode_pieces(input, usize::from(piece) + 1), whole);
    assert!(whole.1.is_none_or(|error| !error.contains(['\r', '\n'])));
});
