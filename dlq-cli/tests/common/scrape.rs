//! `dlq serve` as Prometheus meets it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::Process;

/// Time in which a condition must come true.
const DEADLINE: Duration = Duration::from_secs(60);

/// Starts it, and says where it is.
pub(crate) fn served(command: Command) -> (Process, String) {
    let mut process = Process::start(command);
    let line = process.line().unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    (process, address)
}

/// The answer at a path, as soon as it is so.
#[track_caller]
pub(crate) fn until(address: &str, path: &str, is_so: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if is_so(&answer) {
            return answer;
        }
        assert!(began.elapsed() < DEADLINE, "{answer}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a page has all of these lines.
pub(crate) fn has<'a>(lines: &'a [&'a str]) -> impl Fn(&str) -> bool + 'a {
    |page| lines.iter().all(|line| page.lines().any(|found| found == *line))
}

/// Holds what a page has against the table in `docs/metrics.md`.
#[track_caller]
pub(crate) fn agree(page: &str, wanted: &[&str]) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut names = Vec::new();
    for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
        let row = docs.lines().find(|line| line.starts_with(&format!("| `{name}` | {kind} |")));
        let row = row.unwrap_or_else(|| panic!("docs/metrics.md has no {kind} {name}"));
        let series = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let labels = series.into_iter().flat_map(|line| line.split(['{', ',']).skip(1));
        for label in labels.filter_map(|label| label.split('=').next()) {
            assert!(row.contains(&format!("`{label}`")), "{label} of {name}: {row}");
        }
        names.push(name);
    }
    for name in wanted {
        assert!(names.contains(name), "{name} is not in {page}");
    }
}
