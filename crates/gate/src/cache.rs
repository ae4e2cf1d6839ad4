//! Artefacts of public indexes, kept for other sandboxes.
//!
//! ```text
//! DIR/urls/SHA256-OF-URL     which content a URL has
//! DIR/contents/SHA256        the content
//! DIR/partial/…              what is still coming
//! ```
//!
//! INVARIANT: a record says what came for exactly that URL from a host that proved who it is, or
//! from an index that the policy itself names in the clear, asked with fields that no sandbox chose.
//! INVARIANT: content whose digest is not its name is never given out.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ringfence_model::gate::IndexKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// BOUND: one artefact, and all of them.
const MAX_ARTEFACT: u64 = 2 << 30;
const MAX_TOTAL: u64 = 16 << 30;
/// BOUND: what is read or hashed before others have their turn.
const PIECE: usize = 256 << 10;
/// BOUND: a record.
const MAX_RECORD: u64 = 16 << 10;
/// How old something unfinished is when nobody can be writing it any more.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A directory of artefacts.
pub(crate) struct Cache {
    root: PathBuf,
    /// Bytes of contents, where that is known.
    total: Cell<Option<u64>>,
    next: Cell<u64>,
}

/// What is known of a URL.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    url: String,
    sha256: String,
    length: u64,
    content_type: Option<String>,
}

/// Something that was kept, and is whole.
pub(crate) struct Hit {
    file: File,
    pub(crate) length: u64,
    pub(crate) content_type: Option<String>,
}

impl Hit {
    pub(crate) fn piece(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = vec![0; PIECE];
        let length = self.file.read(&mut piece)?;
        piece.truncate(length);
        Ok((length > 0).then(|| piece.into()))
    }
}

/// The directories in it.
pub(crate) const DIRECTORIES: [&str; 3] = ["urls", "contents", "partial"];

/// Makes what is missing of its directories.
pub(crate) fn make_directories(root: &Path) -> io::Result<()> {
    for name in DIRECTORIES {
        let path = root.join(name);
        fs::create_dir_all(&path).map_err(|error| named(&path, &error))?;
    }
    Ok(())
}

impl Cache {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        make_directories(root)?;
        Ok(Self {
            root: root.to_owned(),
            total: Cell::new(None),
            next: Cell::new(0),
        })
    }

    fn record(&self, url: &str) -> PathBuf {
        self.root.join("urls").join(hex(&Sha256::digest(url)))
    }

    /// What was kept of a URL. What is not whole any more is removed.
    pub(crate) async fn find(&self, url: &str) -> Option<Hit> {
        let path = self.record(url);
        let file = File::open(&path).ok()?;
        let mut text = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        let plain =
            record.sha256.len() == 64 && record.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if record.url != url || !plain {
            return None;
        }
        let content = self.root.join("contents").join(&record.sha256);
        let mut file = File::open(&content).ok()?;
        if digest(&mut file).await.ok()? != (record.sha256, record.length) {
            // Whoever comes next fetches it again.
            fs::remove_file(&content).ok();
            fs::remove_file(&path).ok();
            return None;
        }
        file.rewind().ok()?;
        Some(Hit {
            file,
            length: record.length,
            content_type: record.content_type,
        })
    }

    /// Begins to keep what comes for a URL. `None`: it is too long, or cannot be kept; that is no
    /// reason not to pass it on.
    pub(crate) fn keep(
        &self,
        url: String,
        length: u64,
        content_type: Option<String>,
    ) -> Option<Keeping> {
        if length > MAX_ARTEFACT {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let name = format!("{}-{number}", std::process::id());
        let path = self.root.join("partial").join(name);
        // An earlier process may have had the same number.
        fs::remove_file(&path).ok();
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .ok()?;
        Some(Keeping {
            partial: Partial(path),
            file,
            hash: Sha256::new(),
            come: 0,
            record: Record {
                url,
                sha256: String::new(),
                length,
                content_type,
            },
        })
    }

    /// Makes room for some bytes: the oldest go.
    fn make_room(&self, length: u64) -> io::Result<()> {
        let total = match self.total.get() {
            Some(total) if total + length <= MAX_TOTAL => total,
            _ => self.sweep(MAX_TOTAL.saturating_sub(length))?,
        };
        self.total.set(Some(total + length));
        Ok(())
    }

    /// Removes the oldest contents until so many bytes are left, and what nobody finished.
    fn sweep(&self, most: u64) -> io::Result<u64> {
        let old = SystemTime::now() - ABANDONED;
        for (_, path, changed) in list(&self.root.join("partial"))? {
            if changed < old {
                fs::remove_file(path).ok();
            }
        }
        let mut all = list(&self.root.join("contents"))?;
        all.sort_by_key(|(_, _, changed)| *changed);
        let mut total: u64 = all.iter().map(|(length, _, _)| length).sum();
        for (length, path, _) in all {
            if total <= most {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= length;
            }
        }
        Ok(total)
    }
}

fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf, SystemTime)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| named(folder, &error))? {
        let entry = entry?;
        // Another gate may have removed it.
        if let Ok(data) = entry.metadata()
            && let Ok(changed) = data.modified()
        {
            all.push((data.len(), entry.path(), changed));
        }
    }
    Ok(all)
}

/// A file that is removed unless it is whole.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Something that is being kept.
pub(crate) struct Keeping {
    partial: Partial,
    file: File,
    hash: Sha256,
    come: u64,
    record: Record,
}

impl Keeping {
    /// Takes what came. `None`: it cannot be kept after all.
    pub(crate) fn piece(mut self, piece: &[u8]) -> Option<Self> {
        self.come += piece.len() as u64;
        if self.come > self.record.length {
            return None;
        }
        self.hash.update(piece);
        self.file.write_all(piece).ok()?;
        Some(self)
    }

    /// All of it came: puts it in place, synced, the content before the record.
    pub(crate) async fn end(mut self, cache: &Cache) -> io::Result<()> {
        if self.come != self.record.length {
            return Ok(());
        }
        cache.make_room(self.come)?;
        self.record.sha256 = hex(&self.hash.finalize());
        let content = cache.root.join("contents").join(&self.record.sha256);
        let place = cache.record(&self.record.url);
        let text = serde_json::to_vec(&self.record)?;
        let (partial, file) = (self.partial, self.file);
        let work = move || -> io::Result<()> {
            file.sync_all()?;
            fs::rename(&partial.0, &content)?;
            sync_folder(&content)?;
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .open(&partial.0)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&partial.0, &place)?;
            sync_folder(&place)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(io::Error::other)?
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |own| File::open(own)?.sync_all())
}

async fn digest(file: &mut File) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut length = 0;
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok((hex(&hash.finalize()), length));
        }
        length += read as u64;
        hash.update(&piece[..read]);
        tokio::task::yield_now().await;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whether what is at a path never changes, by how indexes of this kind name their files.
pub(crate) fn is_immutable(kind: IndexKind, path: &str) -> bool {
    let ends = |all: &[&str]| all.iter().any(|end| path.ends_with(end));
    match kind {
        IndexKind::Simple => ends(&[".whl", ".whl.metadata", ".tar.gz", ".tar.bz2", ".zip"]),
        IndexKind::Npm => ends(&[".tgz"]),
        IndexKind::Cargo => ends(&[".crate", "/download"]),
        IndexKind::Apt => ends(&[".deb", ".udeb"]) || path.contains("/by-hash/SHA256/"),
        IndexKind::Go => path.contains("/@v/") && ends(&[".zip", ".mod"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn store(cache: &Cache, url: &str, length: u64, content: &[u8]) {
        let keeping = cache.keep(url.to_owned(), length, Some("x/y".to_owned()));
        let keeping = keeping.expect("room").piece(content);
        if let Some(keeping) = keeping {
            wait(keeping.end(cache)).expect("room");
        }
    }

    fn found(cache: &Cache, url: &str) -> Option<Vec<u8>> {
        let mut hit = wait(cache.find(url))?;
        let mut all = Vec::new();
        while let Some(piece) = hit.piece().expect("it is there") {
            all.extend_from_slice(&piece);
        }
        Some(all)
    }

    #[test]
    fn what_came_whole_is_found_by_its_url_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path()).expect("room");
        store(&cache, "https://a.example/a.whl", 5, b"hello");
        assert_eq!(
            found(&cache, "https://a.example/a.whl"),
            Some(b"hello".to_vec())
        );
        assert_eq!(found(&cache, "http://a.example/a.whl"), None);
        // What is cut, or too long, is not.
        store(&cache, "https://a.example/b.whl", 6, b"hello");
        store(&cache, "https://a.example/c.whl", 4, b"hello");
        assert_eq!(found(&cache, "https://a.example/b.whl"), None);
        assert_eq!(found(&cache, "https://a.example/c.whl"), None);
        let partial = fs::read_dir(folder.path().join("partial")).expect("a folder");
        assert_eq!(partial.count(), 0);
        // Another gate finds it too.
        let other = Cache::open(folder.path()).expect("room");
        assert_eq!(
            found(&other, "https://a.example/a.whl"),
            Some(b"hello".to_vec())
        );
    }

    #[test]
    fn what_was_changed_is_not_given_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path()).expect("room");
        let url = "https://a.example/a.whl";
        for change in [&b"hellO"[..], b"hell", b"hello!", b""] {
            store(&cache, url, 5, b"hello");
            let mut contents = fs::read_dir(folder.path().join("contents")).expect("a folder");
            let content = contents.next().expect("one").expect("a file").path();
            fs::write(&content, change).expect("room");
            assert_eq!(found(&cache, url), None);
            assert!(!content.exists());
        }
        // A record that leads elsewhere leads nowhere.
        store(&cache, url, 5, b"hello");
        let text = fs::read_to_string(cache.record(url)).expect("a record");
        let away = "../../../../etc/passwd";
        let record: Record = serde_json::from_str(&text).expect("a record");
        fs::write(cache.record(url), text.replace(&record.sha256, away)).expect("room");
        assert_eq!(found(&cache, url), None);
    }

    #[test]
    fn the_oldest_go_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path()).expect("room");
        for (number, content) in [b"aaaaa", b"bbbbb", b"ccccc"].iter().enumerate() {
            store(
                &cache,
                &format!("https://a.example/{number}.whl"),
                5,
                *content,
            );
            let name = hex(&Sha256::digest(content));
            let file = File::open(folder.path().join("contents").join(name)).expect("kept");
            let age = Duration::from_secs(3600 * (9 - number as u64));
            file.set_modified(SystemTime::now() - age).expect("a file");
        }
        assert_eq!(cache.sweep(10).expect("a folder"), 10);
        assert_eq!(found(&cache, "https://a.example/0.whl"), None);
        assert!(found(&cache, "https://a.example/2.whl").is_some());
    }

    #[test]
    fn only_files_with_a_version_never_change() {
        for (kind, path, immutable) in [
            (IndexKind::Simple, "/p/a-1.0-py3-none-any.whl", true),
            (IndexKind::Simple, "/p/a-1.0.tar.gz", true),
            (IndexKind::Simple, "/simple/a/", false),
            (IndexKind::Npm, "/a/-/a-1.0.0.tgz", true),
            (IndexKind::Npm, "/a", false),
            (IndexKind::Cargo, "/crates/a/a-1.0.0.crate", true),
            (IndexKind::Cargo, "/api/v1/crates/a/1.0.0/download", true),
            (IndexKind::Cargo, "/se/rd/serde", false),
            (IndexKind::Apt, "/pool/main/a/a_1_amd64.deb", true),
            (IndexKind::Apt, "/dists/x/InRelease", false),
            (IndexKind::Go, "/a/@v/v1.0.0.zip", true),
            (IndexKind::Go, "/a/@v/list", false),
            (IndexKind::Go, "/a/@latest", false),
        ] {
            assert_eq!(is_immutable(kind, path), immutable, "{path}");
        }
    }
}
