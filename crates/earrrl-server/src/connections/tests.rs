use std::net::Ipv4Addr;

use super::table::{MOST_RESERVED, RESERVED};
use super::*;

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

fn standing(connection: &Connection) -> ConnectionState {
    connection.standing(&Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn limits_in_all_and_by_address() {
    let limits = Limits {
        connections: 3,
        connections_by_address: 2,
        ..Limits::default()
    };
    let all = Connections::new(limits);
    let first = all.admit(address(1)).unwrap();
    let _second = all.admit(address(1)).unwrap();
    assert_eq!(all.admit(address(1)).unwrap_err(), Refused::AddressFull);
    let _third = all.admit(address(2)).unwrap();
    assert_eq!(all.admit(address(3)).unwrap_err(), Refused::Full);
    drop(first);
    assert!(all.admit(address(1)).is_ok());
}

#[test]
fn a_load_balancers_connection_counts_for_the_client_that_it_names() {
    let all = Connections::new(Limits {
        connections_by_address: 1,
        ..Limits::default()
    });
    let mut first = all.admit(address(1)).unwrap();
    first.belongs_to(address(2)).unwrap();
    let mut second = all.admit(address(1)).unwrap();
    assert_eq!(second.belongs_to(address(2)), Err(Refused::AddressFull));
    drop(second);
    let mut third = all.admit(address(1)).unwrap();
    drop(first);
    third.belongs_to(address(2)).unwrap();
    third.belongs_to(address(2)).unwrap();
    assert!(all.admit(address(1)).is_ok() && all.admit(address(2)).is_err());
}

/// Idle connections cannot use up the places reserved for health checks.
#[test]
fn silent_connections_make_room_for_questions_about_health() {
    let all = Connections::new(Limits::default());
    let admit = || all.admit_reserved(address(1));
    let silent: Vec<_> = (0..RESERVED).map(|_| admit().unwrap()).collect();
    silent[0].busy();
    let asking = admit().unwrap();
    let overdue = |connection: &Connection| standing(connection) == ConnectionState::Overdue;
    assert!(!overdue(&silent[0]) && overdue(&silent[1]) && !overdue(&silent[2]));
    asking.busy();
    silent.iter().for_each(Connection::busy);
    let probe = admit().unwrap();
    assert!(
        overdue(&silent[0]) && !overdue(&probe),
        "the oldest of those that have begun"
    );
    let crowd: Vec<_> = (0..10 * RESERVED).map_while(|_| admit()).collect();
    assert!(
        all.len() <= MOST_RESERVED && !crowd.is_empty(),
        "{}",
        all.len()
    );
}

#[test]
fn an_ipv6_subscriber_is_a_network() {
    let all = Connections::new(Limits {
        connections_by_address: 1,
        ..Limits::default()
    });
    let admits = |text: &str| all.admit(text.parse().unwrap());
    let _first = admits("2001:db8:1:2:3:4:5:6").unwrap();
    assert_eq!(admits("2001:db8:1:2::1").unwrap_err(), Refused::AddressFull);
    let _mapped = admits("::ffff:192.0.2.7").unwrap();
    assert_eq!(admits("192.0.2.7").unwrap_err(), Refused::AddressFull);
}

#[test]
fn a_deadline_passes_not_early() {
    let all = Connections::new(Limits {
        idle: 5,
        request: 2,
        ..Limits::default()
    });
    let connection = all.admit(address(1)).unwrap();
    connection.busy();
    for _ in 0..2 {
        all.tick();
        assert_eq!(standing(&connection), ConnectionState::Good);
    }
    all.tick();
    assert_eq!(standing(&connection), ConnectionState::Overdue);
    connection.idle();
    assert_eq!(standing(&connection), ConnectionState::Good);
}

#[test]
fn held_bytes_are_bounded_together() {
    let all = Connections::new(Limits {
        held_bytes: 100,
        ..Limits::default()
    });
    let first = all.admit(address(1)).unwrap();
    let second = all.admit(address(1)).unwrap();
    assert!(first.hold(60) && second.hold(40) && !second.hold(41));
    assert!(second.hold(0) && first.hold(100));
    drop(first);
    assert!(second.hold(100));
}

#[test]
fn stopping_admits_nobody() {
    let all = Connections::new(Limits::default());
    let connection = all.admit(address(1)).unwrap();
    all.stop();
    assert_eq!(standing(&connection), ConnectionState::Stopping);
    assert_eq!(all.admit(address(1)).unwrap_err(), Refused::Stopping);
}

/// All streams that connections may have at once fit into the memory for them, besides the few of each connection.
#[test]
fn many_connections_get_fewer_streams_each() {
    const MIB: usize = 1024 * 1024;
    let all = Connections::new(Limits {
        connections_by_address: 6000,
        held_bytes: 16 * MIB,
        ..Limits::default()
    });
    let mut open = Vec::new();
    for (count, fewest, counted) in [(1, 128, 1), (48, 128, 12), (150, 8, 16), (6000, 8, 16)] {
        let mut last = 0;
        while open.len() < count {
            let connection = all.admit(address(1)).unwrap();
            let streams = connection.reserve_streams();
            assert!(streams <= last.max(128));
            last = streams;
            open.push(connection);
        }
        assert!(last >= fewest, "{count}: {last}");
        let places = all.places.load(Relaxed);
        assert!(places <= counted * MIB, "{count}: {places}");
    }
    drop(open);
    assert_eq!(all.places.load(Relaxed), 0);
    assert_eq!(all.admit(address(1)).unwrap().reserve_streams(), 128);
}
