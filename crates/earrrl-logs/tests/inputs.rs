//! The forms in which logs are stored: directories, zip archives, UTF-16, JSON arrays.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::reading::read_paths;

const LINE: &str = "CLIENT - - [01/Jan/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";

fn line(client: &str) -> String {
    LINE.replace("CLIENT", client)
}

fn clients(path: &Path) -> Vec<String> {
    let read = read_paths(&[path.to_owned()]);
    assert_eq!((read.error, read.doubts), (None, vec![]));
    read.requests
        .into_iter()
        .map(|(client, _)| client)
        .collect()
}

/// Makes an archive, as any Python does.
fn zip(archive: &Path, files: &[&Path]) {
    let mut command = Command::new("python3");
    let status = command
        .args(["-m", "zipfile", "-c"])
        .arg(archive)
        .args(files)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn the_files_of_a_directory_are_read_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, client: &str, age: u64| {
        let path = folder.path().join(name);
        fs::write(&path, line(client)).unwrap();
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(age))
            .unwrap();
    };
    write("access.log", "192.0.2.3", 1_704_200_003);
    write("access.log.1", "192.0.2.2", 1_704_200_002);
    write("access.log.2", "192.0.2.1", 1_704_200_001);
    write(".access.log.swp", "192.0.2.9", 1_704_200_000);
    fs::create_dir(folder.path().join("old")).unwrap();
    assert_eq!(
        clients(folder.path()),
        ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    );
    let empty = read_paths(&[folder.path().join("old")]);
    assert!(empty.error.unwrap().ends_with("old: has no files"));
    write("data", "\0", 1_704_200_004);
    fs::write(
        folder.path().join("other.json"),
        r#"{"ts":1704110400,"client_ip":"192.0.2.4"}"#,
    )
    .unwrap();
    let read = read_paths(&[folder.path().to_owned()]);
    assert_eq!(read.requests.len(), 4);
    assert!(
        read.error
            .unwrap()
            .ends_with("data: is a binary file, not a log")
    );
    assert!(read.doubts[0].contains("its files are in several formats (common, json)"));
}

#[test]
fn the_files_of_an_archive_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.log"), line("192.0.2.1").repeat(5_000)).unwrap();
    fs::create_dir(path("b")).unwrap();
    fs::write(path("b/b.log"), line("192.0.2.2")).unwrap();
    zip(&path("logs.zip"), &[&path("a.log"), &path("b")]);
    let read = clients(&path("logs.zip"));
    assert_eq!(
        (read.len(), &read[0][..], &read[5_000][..]),
        (5_001, "192.0.2.1", "192.0.2.2")
    );
    let twice = read_paths(&[path("logs.zip"), path("logs.zip")]);
    assert!(twice.doubts[0].ends_with("logs.zip/a.log is given twice: its requests count twice"));
    let archive = fs::read(path("logs.zip")).unwrap();
    fs::write(path("cut.zip"), &archive[..archive.len() / 2]).unwrap();
    let cut = read_paths(&[path("cut.zip")]);
    assert!(
        cut.error
            .unwrap()
            .ends_with("cut.zip: the zip archive is damaged or incomplete")
    );
    let name = archive
        .windows(5)
        .position(|name| name == b"a.log")
        .unwrap();
    let damaged = [&archive[..name + 20], &[0xff; 4], &archive[name + 24..]].concat();
    fs::write(path("damaged.zip"), damaged).unwrap();
    let damaged = read_paths(&[path("damaged.zip")]);
    assert_eq!(damaged.requests.last().unwrap().0, "192.0.2.2");
    assert!(damaged.error.unwrap().contains("damaged.zip/a.log: "));
}

#[test]
fn utf16_and_arrays_are_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let little = |text: &str| {
        let text = text.trim_start_matches('\u{feff}');
        let units = ["\u{feff}", text]
            .concat()
            .encode_utf16()
            .collect::<Vec<_>>();
        units
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .collect::<Vec<_>>()
    };
    let iis = "#Fields: date time c-ip cs-uri-stem\r\n2024-01-01 12:00:00 192.0.2.7 /a\r\n";
    fs::write(&path, little(iis)).unwrap();
    assert_eq!(clients(&path), ["192.0.2.7"]);
    let array = r#"[
  {"ts": 1704110400, "client_ip": "192.0.2.7", "uri": "/a]},{\"client_ip\":\"9.9.9.9\"}"},
  {
    "ts": 1704110401,
    "client_ip": "192.0.2.8"
  }
]"#;
    for text in [
        array.to_owned(),
        array.replace("\n  {", "{"),
        format!("\u{feff}{array}"),
    ] {
        for bytes in [text.as_bytes().to_vec(), little(&text)] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(clients(&path), ["192.0.2.7", "192.0.2.8"], "{text}");
        }
    }
}
