//! A minimal HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// The headers in the order in which they were received.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub struct Client<S = TcpStream> {
    reader: BufReader<S>,
    /// The token that is sent with every request.
    pub token: Option<String>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(super::connect(address))
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self {
            reader: BufReader::new(stream),
            token: None,
        }
    }

    pub fn post(&mut self, path: &str, body: &str) -> Response {
        let kind = "Content-Type: application/json\r\n";
        self.request("POST", path, kind, body.as_bytes())
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, "", b"")
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let token = self
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{}Content-Length: {}\r\n\r\n",
            token.unwrap_or_default(),
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat());
        self.response()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    pub fn response(&mut self) -> Response {
        let status = self.line().split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: String::new(),
        };
        let length = response
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        response.body = String::from_utf8(body).unwrap();
        response
    }

    /// Returns all bytes until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).unwrap();
        rest
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "no line: {line:?}");
        line.trim_end().to_owned()
    }
}
