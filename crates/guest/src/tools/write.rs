//! `write`: a whole file, or more at the end of one.

use std::fs::File;
use std::io::Write as _;

use ringfence_model::tools::{Base64, WriteAnswer, WriteMode, WriteRequest};
use rustix::fs::{Mode, OFlags};

use crate::content::{self, Executable, Existing, Staged};
use crate::failure::{Hint as _, Outcome, conflict, invalid, refused, refused_io};
use crate::place::{Last, Parents, Place, Root};

pub fn write(root: &Root, request: WriteRequest) -> Outcome<WriteAnswer> {
    let content = one_content(request.text, request.bytes)?;
    let parents = if request.parents {
        Parents::Make
    } else {
        Parents::Existing
    };
    let place = root.find(&request.path, Last::Follow, parents)?;
    let executable = Executable::from(request.executable);
    let mode = content::replaceable(&place)?;
    let size = match (request.mode, mode) {
        (WriteMode::Create, Some(_)) => {
            return Err(conflict(format!("`{}` is there already", place.shown()))
                .hint("use the mode `replace`, or `edit`"));
        }
        (WriteMode::Append, Some(mode)) => append(&place, &content, executable.apply(mode))?,
        (_, mode) => {
            let existing = match request.mode {
                WriteMode::Create => Existing::Refuse,
                WriteMode::Replace | WriteMode::Append => Existing::Replace,
            };
            Staged::new(&place, &content, mode, executable)?.publish(existing)?;
            content.len() as u64
        }
    };
    Ok(WriteAnswer {
        path: place.shown(),
        size,
        created: mode.is_none(),
    })
}

/// Either text or bytes, not both.
pub fn one_content(text: Option<String>, bytes: Option<Base64>) -> Outcome<Vec<u8>> {
    match (text, bytes) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(Base64(bytes))) => Ok(bytes),
        _ => Err(invalid("needs either `text` or `bytes`".to_owned())),
    }
}

/// Makes a file longer in place: a log may be large, and others may have it open.
fn append(place: &Place, content: &[u8], mode: u32) -> Outcome<u64> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(place.directory(), place.name(), flags, Mode::empty())
        .map_err(|errno| refused("open", &place.path, errno))?;
    let before = rustix::fs::fstat(&fd).map_err(|errno| refused("look at", &place.path, errno))?;
    let size = u64::try_from(before.st_size).unwrap_or(0);
    let mut file = File::from(fd);
    if let Err(error) = file.write_all(content) {
        // All or nothing, as far as it goes: the disk may be full.
        let _ = file.set_len(size);
        return Err(refused_io("write", &place.path, &error));
    }
    if before.st_mode & 0o7777 != mode {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
            .map_err(|errno| refused("set the mode of", &place.path, errno))?;
    }
    Ok(size + content.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use ringfence_model::tools::FailureKind;
    use serde_json::json;

    use super::*;
    use crate::testing::Bench;

    fn mode(bench: &Bench, name: &str) -> u32 {
        let metadata = fs::metadata(bench.path(name)).unwrap();
        metadata.permissions().mode() & 0o777
    }

    #[test]
    fn files_are_made_replaced_and_made_longer() {
        let bench = Bench::new();
        let made = bench
            .call(write, json!({"path": "a/b/f", "text": "one\n"}))
            .unwrap();
        assert_eq!((made.size, made.created), (4, true));
        let replaced = bench
            .call(write, json!({"path": "a/b/f", "bytes": "/wA="}))
            .unwrap();
        assert_eq!((replaced.size, replaced.created), (2, false));
        let longer = bench
            .call(
                write,
                json!({"path": "a/b/f", "text": "x", "mode": "append"}),
            )
            .unwrap();
        assert_eq!((longer.size, longer.created), (3, false));
        assert_eq!(fs::read(bench.path("a/b/f")).unwrap(), b"\xff\0x");
        assert_eq!(bench.names("a/b"), ["f"], "nothing is left behind");
        let failure = bench
            .call(
                write,
                json!({"path": "a/b/f", "text": "", "mode": "create"}),
            )
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Conflict);
        let failure = bench
            .call(write, json!({"path": "n/f", "text": "", "parents": false}))
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotFound);
    }

    #[test]
    fn the_mode_of_what_is_replaced_stays() {
        let bench = Bench::new();
        bench.file("f", "old");
        fs::set_permissions(bench.path("f"), fs::Permissions::from_mode(0o740)).unwrap();
        bench
            .call(write, json!({"path": "f", "text": "new"}))
            .unwrap();
        assert_eq!(mode(&bench, "f"), 0o740);
        let request = json!({"path": "f", "text": "new", "executable": false});
        bench.call(write, request).unwrap();
        assert_eq!(mode(&bench, "f"), 0o640);
        let request = json!({"path": "f", "text": "", "mode": "append", "executable": true});
        bench.call(write, request).unwrap();
        assert_eq!(mode(&bench, "f"), 0o750);
    }

    #[test]
    fn a_link_inside_is_written_through_and_a_link_out_is_not() {
        let bench = Bench::new();
        bench.file("real/f", "old");
        fs::write(bench.outside("f"), "theirs").unwrap();
        symlink("real/f", bench.path("link")).unwrap();
        symlink("../outside/f", bench.path("out")).unwrap();
        symlink("../outside", bench.path("dir")).unwrap();
        let answer = bench
            .call(write, json!({"path": "link", "text": "new"}))
            .unwrap();
        assert_eq!(answer.path.to_text(), "real/f");
        assert_eq!(bench.content("real/f"), "new");
        assert!(bench.path("link").is_symlink());
        for path in [
            "out",
            "dir/f",
            "dir/new",
            "../outside/f",
            "/tmp/ringfence-no",
        ] {
            let failure = bench
                .call(write, json!({"path": path, "text": "x"}))
                .unwrap_err();
            assert_eq!(failure.kind, FailureKind::Denied, "{path}");
        }
        assert_eq!(fs::read(bench.outside("f")).unwrap(), b"theirs");
    }

    #[test]
    fn only_files_are_replaced() {
        let bench = Bench::new();
        fs::create_dir(bench.path("d")).unwrap();
        for path in ["d", "."] {
            let failure = bench
                .call(write, json!({"path": path, "text": "x"}))
                .unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid);
        }
        let both = json!({"path": "f", "text": "x", "bytes": ""});
        assert_eq!(
            bench.call(write, both).unwrap_err().kind,
            FailureKind::Invalid
        );
    }
}
