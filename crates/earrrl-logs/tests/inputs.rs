//! The forms in which logs are stored: files and directories.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

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
fn a_form_that_is_not_read_is_an_error_with_the_command_that_makes_lines_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let utf16 = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        ("\u{feff}".to_owned() + LINE)
            .encode_utf16()
            .flat_map(order)
            .collect()
    };
    for (content, command) in [
        (b"PK\x03\x04rest".to_vec(), "unzip -p FILE"),
        (utf16(u16::to_le_bytes), "iconv -f UTF-16 -t UTF-8 FILE"),
        (utf16(u16::to_be_bytes), "iconv -f UTF-16 -t UTF-8 FILE"),
        (
            br#"[{"ts":1704110400,"client_ip":"192.0.2.7"}]"#.to_vec(),
            "jq -c '.[]' FILE",
        ),
        (
            b"[\n  {\n    \"ts\": 1704110400\n  }\n]\n".to_vec(),
            "jq -c '.[]' FILE",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let read = read_paths(std::slice::from_ref(&path));
        assert!(read.error.unwrap().contains(command), "{command}");
        assert!(read.requests.is_empty());
    }
}
