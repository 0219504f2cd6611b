use proptest::prelude::*;

use super::*;

type Words = Vec<Vec<u8>>;

/// Decodes input that arrives in the given pieces. Returns the requests, and the error that ended
/// decoding, if any.
fn decode_pieces<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Words>, Result<bool, Malformed>) {
    let mut buffer = Vec::new();
    let mut requests = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let consumed = match decode(&buffer) {
                Ok(Some(request)) => {
                    requests.push(request.words.iter().map(|word| word.to_vec()).collect());
                    request.bytes.len()
                }
                Ok(None) => break,
                Err(malformed) => return (requests, Err(malformed)),
            };
            buffer.drain(..consumed);
        }
    }
    (requests, Ok(!buffer.is_empty()))
}

fn decoded(input: &[u8]) -> (Vec<Words>, Result<bool, Malformed>) {
    decode_pieces([input])
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn words(list: &[&str]) -> Words {
    list.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn arrays_and_inline_commands_mix() {
    let input = b"*2\r\n$4\r\nECHO\r\n$2\r\na\r\r\nPING  x\t\r\n\r\n*0\r\nPING\n";
    let expected = vec![
        words(&["ECHO", "a\r"]),
        words(&["PING", "x"]),
        vec![],
        vec![],
        words(&["PING"]),
    ];
    assert_eq!(decoded(input), (expected, Ok(false)));
}

#[test]
fn malformed_input_is_refused_where_it_shows() {
    let cases: [(&[u8], Malformed); 23] = [
        (b"+OK\r\n", Malformed::Start),
        (b"%1\r\n", Malformed::Start),
        (b"\x16\x03\x01", Malformed::Start),
        (b"*-1\r\n", Malformed::WordCount),
        (b"*513\r\n", Malformed::WordCount),
        (b"*\r\n", Malformed::WordCount),
        (b"*4294967297\r\n", Malformed::WordCount),
        (b"*9999999999", Malformed::WordCount),
        (b"*1\n", Malformed::WordCount),
        (b"*1\r\r", Malformed::LineEnd),
        (b"*1\r5", Malformed::LineEnd),
        (b"*1\r\n*", Malformed::NotABulkString),
        (b"*1\r\n:", Malformed::NotABulkString),
        (b"*1\r\n\r", Malformed::NotABulkString),
        (b"*1\r\n$-1\r\n", Malformed::WordLength),
        (b"*1\r\n$2147483648", Malformed::WordLength),
        (b"*1\r\n$16385\r\n", Malformed::WordLength),
        (b"*1\r\n$+1\r\n", Malformed::WordLength),
        (b"*1\r\n$1\r\nabc", Malformed::LineEnd),
        (b"PING \"a b\"\r\n", Malformed::Inline),
        (b"PING \x00\r\n", Malformed::Inline),
        (b"PING\rPING\r\n", Malformed::Inline),
        (b"OK\x7f\r\n", Malformed::Inline),
    ];
    for (input, malformed) in cases {
        let shown = input.escape_ascii();
        assert_eq!(decoded(input), (vec![], Err(malformed)), "{shown}");
    }
}

#[test]
fn endless_input_is_cut_off() {
    let endless_line = vec![b'a'; MAX_REQUEST_LEN + 1];
    assert_eq!(decoded(&endless_line).1, Err(Malformed::TooLong));
    assert_eq!(decoded(&endless_line[..MAX_REQUEST_LEN]).1, Ok(true));

    let word = vec![b'a'; MAX_WORD_LEN];
    assert_eq!(decoded(&encode(&vec![word.clone(); 3])).1, Ok(false));
    let announced = &encode(&vec![word; 4])[..3 * (MAX_WORD_LEN + 10) + 12];
    assert_eq!(
        decoded(announced).1,
        Err(Malformed::TooLong),
        "before the last word came"
    );

    let many = "a ".repeat(MAX_WORDS + 1) + "\r\n";
    assert_eq!(decoded(many.as_bytes()).1, Err(Malformed::WordCount));
}

#[test]
fn messages_never_hold_a_line_break() {
    for malformed in [
        Malformed::Start,
        Malformed::WordCount,
        Malformed::WordLength,
        Malformed::NotABulkString,
        Malformed::LineEnd,
        Malformed::TooLong,
        Malformed::Inline,
    ] {
        assert!(!malformed.to_string().contains(['\r', '\n']));
    }
}

fn any_requests() -> impl Strategy<Value = Vec<Words>> {
    let word = prop::collection::vec(any::<u8>(), 0..40);
    prop::collection::vec(prop::collection::vec(word, 0..8), 0..8)
}

fn nearly_resp() -> impl Strategy<Value = Vec<u8>> {
    let token = prop::sample::select(vec![
        "*",
        "$",
        "\r\n",
        "\r",
        "\n",
        "0",
        "1",
        "2",
        "3",
        "9",
        "-",
        "a",
        " ",
        "\"",
        "$1\r\na\r\n",
    ]);
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat().into_bytes())
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(requests in any_requests()) {
        let bytes: Vec<u8> = requests.iter().flat_map(|words| encode(words)).collect();
        prop_assert_eq!(decoded(&bytes), (requests, Ok(false)));
    }

    #[test]
    fn pieces_decode_as_the_whole(input in nearly_resp(), cuts in prop::collection::vec(0..80usize, 0..6)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(input.len())).collect();
        cuts.extend([0, input.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &input[cut[0]..cut[1]]);
        let whole = decoded(&input);
        prop_assert_eq!(decode_pieces(pieces), whole.clone());
        prop_assert_eq!(decode_pieces(input.chunks(1)), whole);
    }
}
