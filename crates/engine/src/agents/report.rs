//! Reads what an agent says of its own use, from the output that was kept.
//!
//! HOSTILE: the agent wrote it. It is bounded, and what comes of it is a claim.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use ringfence_model::agent::{Report, Usage};

use super::Inside;

/// BOUND: bytes of an output that are looked at, from its end: reports stand there.
const MOST_BYTES: u64 = 16 << 20;
/// BOUND: bytes of one line; what is longer is no report.
const MOST_LINE: u64 = 1 << 20;

/// What the output in this file says; nothing where it says nothing, or cannot be read.
pub(crate) fn usage(agent: Option<&Inside>, output: &Path) -> Option<Usage> {
    let agent = agent?;
    read(agent.report.as_ref()?, &agent.name, output)
}

fn read(report: &Report, agent: &str, output: &Path) -> Option<Usage> {
    let usage = report.read(agent, Lines::open(output).ok()?);
    (!usage.is_nothing()).then_some(usage)
}

/// Lines that may be objects, one at a time: there may be millions.
struct Lines {
    reader: BufReader<File>,
    /// A line that began before is not whole.
    is_whole: bool,
}

impl Lines {
    fn open(output: &Path) -> io::Result<Self> {
        let mut file = File::open(output)?;
        let from = file.metadata()?.len().saturating_sub(MOST_BYTES);
        file.seek(SeekFrom::Start(from))?;
        Ok(Self {
            reader: BufReader::new(file),
            is_whole: from == 0,
        })
    }
}

impl Iterator for Lines {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut line = Vec::new();
            let mut part = self.reader.by_ref().take(MOST_LINE);
            // What cannot be read says nothing.
            let read = part.read_until(b'\n', &mut line).ok()?;
            if read == 0 {
                return None;
            }
            let ended = line.last() == Some(&b'\n');
            let was_whole = std::mem::replace(&mut self.is_whole, ended);
            // Also the last line, which may have no end.
            if was_whole && (ended || (read as u64) < MOST_LINE) && line.starts_with(b"{") {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn long_lines_are_passed_over_and_the_last_one_counts() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"{\"n\":1}\nword {\"n\":2}\n{\"n\":4,\"x\":\"")
            .unwrap();
        file.write_all(&vec![b'a'; 3 << 20]).unwrap();
        file.write_all(b"{\"n\":8}\"}\n{\"n\":16}").unwrap();
        let lines: Vec<Vec<u8>> = Lines::open(file.path()).unwrap().collect();
        let texts: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        assert_eq!(texts, [b"{\"n\":1}\n".as_slice(), b"{\"n\":16}".as_slice()]);
        assert!(read(&Report::default(), "a", file.path()).is_none());
        assert!(read(&Report::default(), "a", Path::new("/nowhere")).is_none());
    }
}
