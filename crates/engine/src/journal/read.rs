//! Reading a journal, with a bound and with distrust: it may come from another machine.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ringfence_model::journal::{Line, Lines};
use rustix::fs::{Mode, OFlags};

use super::{JournalError, MAX_JOURNAL_BYTES};

/// A whole journal whose chain holds.
#[derive(Debug)]
pub struct Journal {
    pub lines: Vec<Line>,
    /// The hash of the last line, to be compared with one that was written down elsewhere.
    pub head: String,
}

/// Reads a journal and checks its chain.
pub fn read(path: &Path) -> Result<Journal, JournalError> {
    let bytes = load(path)?;
    let mut follow = Lines::new(&bytes);
    let lines = follow
        .by_ref()
        .collect::<Result<_, _>>()
        .map_err(|source| JournalError::Verify {
            path: path.to_owned(),
            source,
        })?;
    Ok(Journal {
        lines,
        head: follow.head().to_owned(),
    })
}

/// The bytes of a journal, unchecked.
pub(crate) fn load(path: &Path) -> Result<Vec<u8>, JournalError> {
    let path = path.to_owned();
    load_file(&path, MAX_JOURNAL_BYTES).map_err(|error| match error {
        LoadError::Read(source) => JournalError::Read { path, source },
        LoadError::NotAFile => JournalError::NotAFile { path },
        LoadError::TooLarge { bytes } => JournalError::TooLarge { path, bytes },
    })
}

/// Why there is no content.
#[derive(Debug)]
pub(crate) enum LoadError {
    Read(io::Error),
    NotAFile,
    TooLarge { bytes: u64 },
}

/// The content of a regular file that is not larger than this. A link is not followed, and a FIFO
/// is not waited for.
pub(crate) fn load_file(path: &Path, most_bytes: u64) -> Result<Vec<u8>, LoadError> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map(File::from)
        .map_err(|errno| LoadError::Read(errno.into()))?;
    let metadata = file.metadata().map_err(LoadError::Read)?;
    if !metadata.is_file() {
        return Err(LoadError::NotAFile);
    }
    let too_large = |bytes| LoadError::TooLarge { bytes };
    if metadata.len() > most_bytes {
        return Err(too_large(metadata.len()));
    }
    let mut content = Vec::with_capacity(metadata.len() as usize);
    // It may grow meanwhile.
    file.take(most_bytes + 1)
        .read_to_end(&mut content)
        .map_err(LoadError::Read)?;
    if content.len() as u64 > most_bytes {
        return Err(too_large(content.len() as u64));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use ringfence_model::journal::Event;
    use ringfence_model::outcome::RunStatus;

    use super::*;
    use crate::journal::JournalFile;

    /// A journal of three lines, and the head that its writer knew.
    fn journal(path: &Path) -> String {
        let mut journal = JournalFile::create(path).unwrap();
        for word in ["one", "two\n{"] {
            let argv = vec![word.into()];
            journal.append(Event::Command { argv }).unwrap();
        }
        let status = RunStatus::Done;
        journal.append(Event::End { status }).unwrap();
        journal.sync().unwrap();
        journal.head().to_owned()
    }

    #[test]
    fn tampering_is_found() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        let head = journal(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (what, changed) in [
            ("an edited line", text.replace("one", "0ne")),
            ("a dropped line", format!("{}\n{}\n", lines[0], lines[2])),
            (
                "swapped lines",
                format!("{}\n{}\n{}\n", lines[1], lines[0], lines[2]),
            ),
            ("a cut line", text[..text.len() - 5].to_owned()),
            ("no newline at the end", text.trim_end().to_owned()),
            ("something added", format!("{text}{{}}\n")),
            ("a carriage return", text.replace('\n', "\r\n")),
        ] {
            std::fs::write(&path, changed).unwrap();
            assert!(
                matches!(read(&path), Err(JournalError::Verify { .. })),
                "{what}"
            );
        }
        // The last line and the length are bound by the head only.
        for changed in [
            text.replace("\"done\"", "\"lost\""),
            format!("{}\n", lines[0]),
        ] {
            std::fs::write(&path, changed).unwrap();
            assert_ne!(read(&path).unwrap().head, head);
        }
        std::fs::write(&path, [0xff, b'\n']).unwrap();
        assert!(matches!(read(&path), Err(JournalError::Verify { .. })));
    }

    #[test]
    fn too_large_a_journal_is_refused_unread() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        File::create(&path)
            .unwrap()
            .set_len(MAX_JOURNAL_BYTES + 1)
            .unwrap();
        assert!(matches!(read(&path), Err(JournalError::TooLarge { .. })));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for_and_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.jsonl");
        journal(&path);
        let link = home.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(read(&link), Err(JournalError::Read { .. })));
        let fifo = home.path().join("fifo");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, Mode::RUSR, 0).unwrap();
        for path in [&fifo, home.path(), Path::new("/dev/zero")] {
            assert!(matches!(read(path), Err(JournalError::NotAFile { .. })));
        }
    }
}
