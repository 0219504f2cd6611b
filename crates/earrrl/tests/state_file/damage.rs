//! Damaged files: each gives an error that names a field, or a table that works.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::mpsc;
use std::time::Duration;

use super::{BUCKET, Scratch, field, open, pruned};

const PAGE: u64 = 4096;

/// Returns a file with states of a hundred clients, 5 requests each.
fn used() -> Scratch {
    let scratch = Scratch::alone();
    let limiter = open(BUCKET, &scratch.path(), 1000).unwrap();
    for client in 0..500 {
        assert!(limiter.check(&(client % 100)).is_allowed());
    }
    scratch
}

fn write(scratch: &Scratch, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(scratch.file()).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Opens the file, and returns true if clients from `first` on, which are new, are admitted five
/// times.
fn works(scratch: &Scratch, first: u64) -> bool {
    let limiter = open(BUCKET, &scratch.path(), 1000).unwrap();
    (first..first + 20).all(|client| {
        (0..9)
            .filter(|_| limiter.check(&client).is_allowed())
            .count()
            == 5
    })
}

#[test]
fn a_truncated_or_extended_file_is_refused() {
    let scratch = used();
    let whole = fs::metadata(scratch.file()).unwrap().len();
    let file = OpenOptions::new().write(true).open(scratch.file()).unwrap();
    let content = fs::read(scratch.file()).unwrap();
    let lengths = (0..whole)
        .step_by(PAGE as usize)
        .chain([1, whole - 1, whole + 1, 1 << 40]);
    for length in lengths {
        file.write_all_at(&content, 0).unwrap();
        file.set_len(length).unwrap();
        assert_eq!(
            field(open(BUCKET, &scratch.path(), 1000)).0,
            "length",
            "{length}"
        );
    }
}

#[test]
fn every_flipped_byte_of_the_header_is_refused() {
    let scratch = used();
    let page = fs::read(scratch.file()).unwrap();
    for at in 0..PAGE {
        write(&scratch, at, &[!page[at as usize]]);
        let (field, text) = field(open(BUCKET, &scratch.path(), 1000));
        assert!(
            !field.is_empty() && field != "accepted",
            "byte {at}: {text}"
        );
        write(&scratch, at, &page[at as usize..][..1]);
    }
    assert!(works(&scratch, 1000));
}

#[test]
fn a_file_with_a_damaged_second_page_works_or_is_refused() {
    let scratch = used();
    let page = fs::read(scratch.file()).unwrap();
    for at in PAGE..2 * PAGE {
        write(&scratch, at, &[!page[at as usize]]);
        match &*field(open(BUCKET, &scratch.path(), 1000)).0 {
            "accepted" => assert!(works(&scratch, at * 100), "byte {at}"),
            // The high bytes of the latest instant.
            other => assert_eq!((other, at / 8), ("time", (PAGE + 64) / 8), "byte {at}"),
        }
        write(&scratch, PAGE, &page[PAGE as usize..2 * PAGE as usize]);
    }
}

/// Random bits are mostly states of the far future, which the sweep removes.
#[test]
fn random_slots_lock_nobody_out_for_ever() {
    let scratch = used();
    let whole = fs::metadata(scratch.file()).unwrap().len();
    let mut random = 1_u64;
    let mut next = || {
        random = random
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        (random >> 24) as u8
    };
    for nth in 1..=20 {
        let bytes: Vec<u8> = (0..whole - 2 * PAGE).map(|_| next()).collect();
        write(&scratch, 2 * PAGE, &bytes);
        let limiter = open(BUCKET, &scratch.path(), 1000).unwrap();
        let swept = limiter.swept().unwrap();
        assert!(swept.ahead > 100 && swept.claims > 0, "{swept:?}");
        drop(limiter);
        assert!(works(&scratch, nth * 1000));
    }
}

/// The clock of a file is renewed after a new boot of the machine, as after damage, and when the file is copied.
#[test]
fn a_capacity_changes_after_a_new_boot() {
    let scratch = used();
    write(&scratch, PAGE + 16, &[0x5A]);
    let limiter = open(BUCKET, &scratch.path(), 20_000).unwrap();
    assert!((0..100).all(|client| !limiter.check(&client).is_allowed()));
    assert!((100..200).all(|client| limiter.check(&client).is_allowed()));
}

/// Whatever bytes a file gets while it is used, a decision ends, and new clients are counted.
#[test]
fn damage_while_a_file_is_used_stops_no_process() {
    let scratch = used();
    let path = scratch.path();
    let (done, waiting) = mpsc::channel();
    let whole = fs::read(scratch.file()).unwrap();
    let counters = PAGE as usize + 512;
    let sets = 2 * PAGE as usize;
    let flipped: Vec<u8> = whole[counters..sets].iter().map(|byte| !byte).collect();
    // Slots with the fingerprint of an empty one, and yet not empty.
    let odd: Vec<u8> = [[7; 8], [0; 8]].concat().repeat((whole.len() - sets) / 16);
    let file = OpenOptions::new().write(true).open(scratch.file()).unwrap();
    std::thread::spawn(move || {
        let limiter = open(BUCKET, &path, 1000).unwrap();
        for (nth, (bytes, at)) in [(flipped, counters), (odd, sets)].into_iter().enumerate() {
            file.write_all_at(&bytes, at as u64).unwrap();
            for client in (0..20).map(|client| client + 1000 * (nth as u64 + 1)) {
                let admitted = (0..9)
                    .filter(|_| limiter.check(&client).is_allowed())
                    .count();
                assert_eq!(admitted, 5, "{nth}");
            }
        }
        done.send(()).unwrap();
    });
    waiting.recv_timeout(Duration::from_secs(30)).unwrap();
}

/// A process that creates a file can die before each step: before its first byte, its length, its
/// header, its name, and before it removes the file of another meaning.
#[test]
fn what_a_dead_process_left_is_no_obstacle() {
    let whole = fs::read(used().file()).unwrap();
    let mut blank = whole.clone();
    blank[..PAGE as usize].fill(0);
    let header = PAGE as usize;
    for left in [&whole[..0], &whole[..100], &whole[..header], &blank, &whole] {
        let scratch = Scratch::alone();
        drop(open(BUCKET, &scratch.0.join("other"), 10).unwrap());
        let temporary = scratch.0.join(".login.tmp");
        fs::write(&temporary, left).unwrap();
        assert!(works(&scratch, 0), "{} bytes", left.len());
        assert!(!temporary.exists());
        fs::write(&temporary, left).unwrap();
        assert!(works(&scratch, 1000), "{} bytes beside a file", left.len());
        assert_eq!(pruned(&scratch, &[]), [temporary]);
    }
    let scratch = used();
    let former = scratch.file();
    let content = fs::read(&former).unwrap();
    let changed = "fixed-window 5/3650d";
    drop(open(changed, &scratch.path(), 1000).unwrap());
    assert!(!former.exists());
    fs::write(&former, content).unwrap();
    fs::set_permissions(&former, fs::Permissions::from_mode(0o600)).unwrap();
    let limiter = open(changed, &scratch.path(), 1000).unwrap();
    assert!(limiter.check(&7).is_allowed() && !former.exists());
}

#[test]
fn a_file_that_does_not_fit_its_disk_is_an_error() {
    let scratch = Scratch::alone();
    let (_, text) = field(open(BUCKET, &scratch.path(), 1 << 44));
    assert!(text.contains("allocate"), "{text}");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}
