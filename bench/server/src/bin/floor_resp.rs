//! The least a RESP server can do: read, find each command's words, write a fixed answer to each.
//! One current-thread runtime for each core, as the server has.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() {
    let address: SocketAddr = std::env::args()
        .nth(1)
        .expect("an address")
        .parse()
        .expect("an address");
    let listener = std::net::TcpListener::bind(address).expect("the address is free");
    listener.set_nonblocking(true).expect("non-blocking");
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let listener = listener.try_clone().expect("a descriptor");
            std::thread::spawn(move || serve(listener))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
}

fn serve(listener: std::net::TcpListener) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listener");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(connection(stream));
        }
    });
}

async fn connection(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut input = Vec::with_capacity(64 * 1024);
    let mut output = Vec::with_capacity(64 * 1024);
    while let Ok(1..) = stream.read_buf(&mut input).await {
        let mut seen = 0;
        while let Some(length) = command(&input[seen..]) {
            seen += length;
            output.extend_from_slice(b"+PONG\r\n");
        }
        input.drain(..seen);
        if stream.write_all(&output).await.is_err() {
            return;
        }
        output.clear();
    }
}

/// The length of the first command, once it is whole.
fn command(input: &[u8]) -> Option<usize> {
    let (words, mut at) = header(input, 0)?;
    for _ in 0..words {
        let (length, start) = header(input, at)?;
        at = start + length + 2;
    }
    (at <= input.len()).then_some(at)
}

/// The number of a line `*5\r\n` or `$5\r\n`, and where the next one begins.
fn header(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut value = 0;
    for (offset, byte) in input.get(at + 1..)?.iter().enumerate() {
        match byte {
            b'\r' => return Some((value, at + offset + 3)),
            digit => value = value * 10 + usize::from(digit - b'0'),
        }
    }
    None
}
