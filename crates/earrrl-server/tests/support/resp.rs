//! A minimal RESP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A reply in the types of the protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Double(String),
    Boolean(bool),
    Nil,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    pub fn bulk(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    pub fn integers(values: &[i64]) -> Self {
        Self::Array(values.iter().map(|value| Self::Integer(*value)).collect())
    }

    /// Returns the pairs of a map, or of RESP2's flat array.
    pub fn pairs(self) -> Vec<(String, Reply)> {
        let text = |reply| match reply {
            Self::Bulk(bytes) => String::from_utf8(bytes).unwrap(),
            other => panic!("not a name: {other:?}"),
        };
        match self {
            Self::Map(pairs) => pairs
                .into_iter()
                .map(|(name, value)| (text(name), value))
                .collect(),
            Self::Array(flat) => flat
                .chunks(2)
                .map(|pair| (text(pair[0].clone()), pair[1].clone()))
                .collect(),
            other => panic!("not pairs: {other:?}"),
        }
    }
}

pub struct Client<S = TcpStream> {
    reader: BufReader<S>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(super::connect(address))
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self {
            reader: BufReader::new(stream),
        }
    }

    /// Sends a command and reads its reply.
    pub fn call(&mut self, words: &[&[u8]]) -> Reply {
        self.send(&encode(words));
        self.reply()
    }

    /// Sends a command, given as a line of words, and reads its reply.
    pub fn line(&mut self, line: &str) -> Reply {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&words)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// Returns all bytes until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).unwrap();
        rest
    }

    pub fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let line = line
            .strip_suffix("\r\n")
            .unwrap_or_else(|| panic!("no line: {line:?}"));
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().unwrap()),
            "," => Reply::Double(rest.to_owned()),
            "#" => Reply::Boolean(rest == "t"),
            "_" => Reply::Nil,
            "$" if rest == "-1" => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            "*" => Reply::Array((0..rest.parse().unwrap()).map(|_| self.reply()).collect()),
            "%" => {
                let pairs = (0..rest.parse().unwrap()).map(|_| (self.reply(), self.reply()));
                Reply::Map(pairs.collect())
            }
            other => panic!("not RESP: {other}{rest}"),
        }
    }
}

pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
