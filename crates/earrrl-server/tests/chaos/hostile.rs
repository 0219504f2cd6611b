//! Hostile and idle clients. None of them requests a decision that is counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use earrrl_testing::Random;

use super::Chaos;
use crate::support::certificates;

/// The number of connections of a crowd, more than the server has descriptors for.
const CROWD: usize = 300;

pub(super) fn attack(chaos: &Chaos, seed: u64) {
    let mut random = Random::new(100 + seed);
    let mut held: Vec<TcpStream> = Vec::new();
    while !chaos.is_over() {
        match random.below(11) {
            0 => crowd(chaos, &mut random),
            1 => held.extend(send(chaos.resp, b"*2\r\n$4\r\nECHO\r\n$16000\r\nxx")),
            2 => held.extend(send_tls(chaos, &half_a_body())),
            3 => held.extend(send(chaos.resp, &b"COMMAND\r\n".repeat(10_000))),
            4 => held.extend(send(chaos.resp, &b"AUTH wrong\r\n".repeat(100))),
            5 => drop(send_tls(chaos, b"GET / HTTP/1.1\nHost:\r\n\r\n\0\xff")),
            6 => drop(send_tls(chaos, WRONG_TOKEN)),
            7 => held.extend(send_tls(chaos, &METRICS.repeat(100))),
            8 => held.extend(send(chaos.http, HALF_A_RECORD)),
            9 => drop(send(chaos.http, WRONG_TOKEN)),
            _ => garbage(chaos, &mut random),
        }
        if held.len() > 40 {
            held.drain(..20);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

const WRONG_TOKEN: &[u8] =
    b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\
                             Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// A request whose long answers are never read.
const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The first bytes of a TLS handshake that does not continue.
const HALF_A_RECORD: &[u8] = b"\x16\x03\x01\x02\x00\x01";

fn half_a_body() -> Vec<u8> {
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n";
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(100_000, b'x');
    bytes
}

/// Sends as much as is possible without waiting, and returns the open connection.
fn send(address: SocketAddr, bytes: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_nonblocking(true).ok()?;
    let _ = stream.write(bytes);
    Some(stream)
}

/// Sends the bytes over TLS.
fn send_tls(chaos: &Chaos, bytes: &[u8]) -> Option<TcpStream> {
    let mut tls = certificates::connect(&chaos.tls, chaos.http);
    tls.sock
        .set_read_timeout(Some(Duration::from_secs(5)))
        .ok()?;
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).ok()?;
    }
    tls.sock.set_nonblocking(true).ok()?;
    let _ = tls.write(bytes);
    Some(tls.sock)
}

/// Briefly takes all descriptors of the server.
fn crowd(chaos: &Chaos, random: &mut Random) {
    let address = if random.below(2) == 0 {
        chaos.http
    } else {
        chaos.resp
    };
    let crowd: Vec<_> = (0..CROWD).map_while(|_| send(address, b"")).collect();
    thread::sleep(Duration::from_millis(100));
    drop(crowd);
}

fn garbage(chaos: &Chaos, random: &mut Random) {
    let bytes: Vec<u8> = (0..random.below(2000))
        .map(|_| random.below(256) as u8)
        .collect();
    for address in [chaos.http, chaos.resp] {
        if let Some(mut stream) = send(address, &bytes) {
            let _ = stream.read(&mut [0; 512]);
        }
    }
}
