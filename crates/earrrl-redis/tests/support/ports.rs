//! Ports for the servers that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// The port of a Cluster's bus is that of its server plus this number.
const BUS: u16 = 10_000;
/// The first port. All ports and those of buses are below the ones that the kernel gives to
/// connections, by default from 32,768 on, so that no connection takes one before its server does.
const FIRST: u16 = 11_000;
const COUNT: u16 = 11_700;

/// Returns a port that nothing uses, nor the port of its bus. A process gets every port only once:
/// clients of a server that a test has killed, and its Cluster, still connect to its port.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() * 331;
    loop {
        let nth = start + u32::from(GIVEN.fetch_add(1, Relaxed));
        let port = FIRST + (nth % u32::from(COUNT)) as u16;
        let is_free = |port| TcpListener::bind(("0.0.0.0", port)).is_ok();
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}

/// Returns a [free port](free_port) of the loopback network.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}
