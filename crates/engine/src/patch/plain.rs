//! A patch as git writes one, without a list of changes beside it: what it makes of a base.
//!
//! HOSTILE: every byte, and nothing vouches for it. Paths are held to the same rules as those of a
//! bundle, no link is followed or made, and hunks fit exactly or not at all.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringfence_model::ByteText;
use ringfence_model::changes::{FileMode, ObjectHash};

use super::read::{Body, FilePatch, Kind, Sign, parse};
use super::{Found, Laid, LaidFile, PatchError, above, content, find, paths};
use crate::changes::BlobHasher;

/// BOUND: bytes of one file before and after.
const FILE_BYTES: u64 = 64 << 20;

/// The files that a patch changes, as they are then.
pub(crate) fn plain(text: &[u8], base: BorrowedFd<'_>) -> Result<Laid, PatchError> {
    let text = without_headings(text);
    let mut laid = Laid::default();
    for file in parse(&text)? {
        one(&file, base, &mut laid)?;
    }
    held_apart(&laid)?;
    Ok(laid)
}

/// The same of whole files.
pub(crate) fn plain_files(files: &BTreeMap<String, String>) -> Result<Laid, PatchError> {
    let mut laid = Laid::default();
    for (path, text) in files {
        allowed(path.as_bytes())?;
        let file = laid_file(FileMode::Regular, text.as_bytes().to_vec());
        laid.0.insert(path.as_bytes().to_vec(), Some(file));
    }
    held_apart(&laid)?;
    Ok(laid)
}

/// Git names the function that a hunk is in behind its `@@`; we do not write that.
fn without_headings(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 1);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let heading = line.strip_prefix(b"@@ -");
        let end = heading.and_then(|rest| memchr::memmem::find(rest, b" @@"));
        match end {
            Some(end) => {
                out.extend_from_slice(&line[..end + b"@@ - @@".len()]);
                out.push(b'\n');
            }
            None => out.extend_from_slice(line),
        }
    }
    if !out.is_empty() && !out.ends_with(b"\n") {
        out.push(b'\n');
    }
    out
}

fn one(file: &FilePatch<'_>, base: BorrowedFd<'_>, laid: &mut Laid) -> Result<(), PatchError> {
    let path = || ByteText::from(&file.path[..]);
    let refused = |why| PatchError::Path { path: path(), why };
    allowed(&file.path)?;
    allowed(&file.old_path)?;
    let modes = [file.modes.0, file.modes.1];
    let index = file.index.as_ref().and_then(|index| index.mode);
    if modes
        .into_iter()
        .chain([index])
        .any(|mode| mode == Some(FileMode::Symlink))
    {
        return Err(refused("it is a link, and this patch may have none"));
    }
    for directory in above(&file.path) {
        // A link or a file of the base: nothing is put below it.
        if !matches!(
            find(base, directory, 0),
            Ok(Found::Directory | Found::Nothing)
        ) {
            return Err(refused("something above it is no directory"));
        }
    }
    let found = find(base, &file.old_path, FILE_BYTES);
    let found = found.map_err(|source| PatchError::ReadBase {
        path: ByteText::from(&file.old_path[..]),
        source,
    })?;
    let old = match (file.kind, found) {
        (Kind::Added, Found::Nothing) => None,
        (Kind::Added, _) => return Err(PatchError::Moved { path: path() }),
        (_, Found::Content { mode, bytes, .. })
            if mode != FileMode::Symlink && bytes.len() as u64 <= FILE_BYTES =>
        {
            Some((mode, bytes))
        }
        _ => return Err(PatchError::Moved { path: path() }),
    };
    let before = old.as_ref().map_or(&b""[..], |(_, bytes)| bytes);
    let after = match &file.body {
        Body::None => before.to_vec(),
        Body::Text(hunks) => match file.kind {
            Kind::Added => content::side(hunks, Sign::In),
            _ => content::apply(hunks, before)
                .ok_or_else(|| PatchError::DoesNotFit { path: path() })?,
        },
        Body::Binary { new, .. } if new.size <= FILE_BYTES => {
            content::inflate(new).ok_or_else(|| PatchError::Binary { path: path() })?
        }
        Body::Binary { .. } => return Err(PatchError::TooLarge { path: path() }),
    };
    if file.kind == Kind::Deleted && !after.is_empty() && !matches!(file.body, Body::None) {
        return Err(PatchError::DoesNotFit { path: path() });
    }
    let mut put = |path: &[u8], file: Option<LaidFile>| match laid.0.insert(path.to_vec(), file) {
        None => Ok(()),
        Some(_) => Err(refused("it changes twice")),
    };
    if matches!(file.kind, Kind::Deleted | Kind::Renamed) {
        put(&file.old_path, None)?;
    }
    if file.kind != Kind::Deleted {
        let was = old.as_ref().map(|(mode, _)| *mode);
        let mode = file.modes.1.or(was).unwrap_or(FileMode::Regular);
        put(&file.path, Some(laid_file(mode, after)))?;
    }
    Ok(())
}

fn laid_file(mode: FileMode, content: Vec<u8>) -> LaidFile {
    let mut hasher = BlobHasher::new(ObjectHash::Sha1, content.len() as u64);
    hasher.update(&content);
    LaidFile {
        mode,
        oid: hasher.finish(),
        content: Arc::from(content),
    }
}

fn allowed(path: &[u8]) -> Result<(), PatchError> {
    match paths::why_refused(path) {
        Some(why) => Err(PatchError::Path {
            path: ByteText::from(path),
            why,
        }),
        None => Ok(()),
    }
}

/// No file where another one needs a directory.
fn held_apart(laid: &Laid) -> Result<(), PatchError> {
    let is_file = |path: &[u8]| matches!(laid.0.get(path), Some(Some(_)));
    let below = laid.0.iter().filter(|(_, file)| file.is_some());
    for (path, _) in below {
        if above(path).any(is_file) {
            return Err(PatchError::Path {
                path: ByteText::from(&path[..]),
                why: "a file cannot be below a file",
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;

    use super::*;

    fn read(patch: &str) -> Result<Laid, PatchError> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("t")).unwrap();
        fs::write(root.path().join("t/a"), "1\n2\n3\n").unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("out")).unwrap();
        let top = fs::File::open(root.path()).unwrap();
        plain(patch.as_bytes(), top.as_fd())
    }

    #[test]
    fn a_patch_of_git_is_read() {
        let laid = read(
            "diff --git a/t/a b/t/a\nindex 123..456 100644\n--- a/t/a\n+++ b/t/a\n\
             @@ -1,3 +1,3 @@ def f():\n 1\n-2\n+two\n 3\n\
             diff --git a/t/n b/t/n\nnew file mode 100755\nindex 000..456\n--- /dev/null\n+++ b/t/n\n\
             @@ -0,0 +1 @@\n+x",
        )
        .unwrap();
        let text = |path: &str| {
            let file = laid.0[path.as_bytes()].as_ref().unwrap();
            (
                file.mode,
                String::from_utf8_lossy(&file.content).into_owned(),
            )
        };
        assert_eq!(text("t/a"), (FileMode::Regular, "1\ntwo\n3\n".to_owned()));
        assert_eq!(text("t/n"), (FileMode::Executable, "x\n".to_owned()));
        let laid = read(
            "diff --git a/t/a b/t/a\ndeleted file mode 100644\n--- a/t/a\n+++ /dev/null\n\
             @@ -1,3 +0,0 @@\n-1\n-2\n-3\n",
        );
        assert_eq!(laid.unwrap().0[&b"t/a"[..]], None);
    }

    #[test]
    fn what_leads_elsewhere_or_does_not_fit_is_refused() {
        let new = |path: &str| {
            format!(
                "diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
            )
        };
        assert!(read(&new("t/b")).is_ok());
        for path in [
            "../x",
            "/etc/x",
            ".git/hooks/x",
            "t/../../x",
            "out/x",
            "t/a",
            "t/a/b",
        ] {
            assert!(read(&new(path)).is_err(), "{path}");
        }
        let link = new("t/l").replace("100644", "120000");
        assert!(read(&link).is_err());
        assert!(read(&format!("{}{}", new("t/b"), new("t/b"))).is_err());
        assert!(read(&format!("{}{}", new("t/b"), new("t/b/c"))).is_err());
        let other = "diff --git a/t/a b/t/a\n--- a/t/a\n+++ b/t/a\n@@ -1 +1 @@\n-x\n+y\n";
        assert!(read(other).is_err());
        assert!(read("From: somebody\n").is_err());
        let files = BTreeMap::from([("../x".to_owned(), String::new())]);
        assert!(plain_files(&files).is_err());
    }
}
