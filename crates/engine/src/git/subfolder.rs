//! A private repository for a folder that lies within a work tree.
//!
//! Only the folder is the workspace, so its repository has one commit whose tree is the folder's
//! part of `HEAD`, and the folder's part of the user's index. Making that commit is the one thing
//! that the git program is run for: on the private directory, with an empty environment, our own
//! configuration and a bound on time. The user's git directory is never named to it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::files;
use super::index::{Index, IndexFiles};
use super::private::{self, Builder, Built, RULES_BYTES};
use super::refs::{Head, Refs};
use super::sanitise::{self, Names};
use super::{GitError, Repository, patterns, split};

/// BOUND: reading one tree and writing one commit takes milliseconds.
const GIT_SECONDS: u64 = 10;
/// BOUND: packing a sub-folder copies what is there once.
const PACK_SECONDS: u64 = 60;
/// BOUND: an object id, or one line of a listing.
const OUTPUT_BYTES: u64 = 64 << 10;

/// Builds `mask/.git` for the folder at the repository's prefix.
pub(super) fn build(
    builder: &mut Builder,
    repo: &Repository,
    index: Option<&(Index, IndexFiles)>,
) -> Result<Built, GitError> {
    if let Some(reason) = &repo.unsupported {
        return Ok(Built::No(reason.clone()));
    }
    if repo.reftable {
        return Ok(Built::No(
            "it is a sub-folder of a repository of reftable format".to_owned(),
        ));
    }
    let mounted = builder.objects.mounts.len();
    let places = match builder.objects.add(repo, &mut builder.notes) {
        Ok(places) => places,
        Err(refusal) => return Ok(Built::No(refusal.to_string())),
    };
    let Some(refs) = Refs::read(repo)? else {
        return Ok(Built::No("its `HEAD` could not be read".to_owned()));
    };
    let private = builder.start(Path::new(".git"))?;
    files::create_dirs(&private.join("refs/heads"))?;
    files::write(
        &private.join("config"),
        &sanitise::config_text(repo, None, Names::Drop),
    )?;
    // Until the commit is made, objects are borrowed from where they are on the host.
    let alternates = private.join("objects/info/alternates");
    files::write(&alternates, &builder.objects.host_text(&places))?;
    files::write(&private.join("HEAD"), b"ref: refs/heads/main\n")?;
    private::copy_ids(&repo.common, "shallow", &private, repo.hash)?;
    let commit = match refs.head_id() {
        None => None,
        Some(head) => match first_commit(&private, head, &repo.prefix) {
            First::Commit(commit) if repo.hash.is_oid(&commit) => Some(commit),
            First::Empty => None,
            First::Commit(_) | First::Failed => {
                return Ok(Built::No(
                    "the git program, which a sub-folder needs, is missing or failed".to_owned(),
                ));
            }
        },
    };
    write_head(&private, &refs.head, commit.as_deref())?;
    if !write_index(&private, repo, refs.head_id(), index)? {
        return Ok(Built::No(
            "its index could not be cut to the sub-folder".to_owned(),
        ));
    }
    // Its own objects only: the store of the whole repository holds what lies beside the folder.
    if !take_objects(&private, commit.as_deref())? {
        return Ok(Built::No(
            "the objects of the sub-folder could not be copied".to_owned(),
        ));
    }
    files::remove_file(&alternates)?;
    builder.objects.truncate(mounted);
    files::write(
        &private.join("info/exclude"),
        &rules_above(
            repo,
            ".gitignore",
            patterns::rebase_ignore,
            &private::excludes(repo),
        ),
    )?;
    let own = repo
        .common
        .read_if_usable(Path::new("info/attributes"), RULES_BYTES);
    let own = own.unwrap_or_default();
    files::write(
        &private.join("info/attributes"),
        &rules_above(repo, ".gitattributes", patterns::rebase_attributes, &own),
    )?;
    builder
        .notes
        .push("inside, history is one commit of this sub-folder".to_owned());
    Ok(Built::Yes)
}

/// What the first commit of the folder's repository is.
enum First {
    Commit(Vec<u8>),
    /// `HEAD` does not have the folder.
    Empty,
    Failed,
}

fn first_commit(private: &Path, head: &[u8], prefix: &[u8]) -> First {
    let tree = [head, b":", prefix].concat();
    let message = OsStr::new("Base of the workspace");
    let args = [
        OsStr::new("commit-tree"),
        OsStr::from_bytes(&tree),
        OsStr::new("-m"),
        message,
    ];
    if let Some(output) = git(private, &args) {
        return First::Commit(output.trim_ascii_end().to_vec());
    }
    let args = ["--literal-pathspecs", "ls-tree", "--full-tree"].map(OsStr::new);
    let rest = [
        OsStr::from_bytes(head),
        OsStr::new("--"),
        OsStr::from_bytes(prefix),
    ];
    match git(private, &[&args[..], &rest[..]].concat()) {
        Some(output) if output.is_empty() => First::Empty,
        _ => First::Failed,
    }
}

fn write_head(private: &Path, head: &Head, commit: Option<&[u8]>) -> Result<(), GitError> {
    let head = match (head, commit) {
        (Head::Detached(_), Some(commit)) => Head::Detached(commit.to_vec()),
        (Head::Detached(_), None) => Head::Branch(b"refs/heads/main".to_vec()),
        (Head::Branch(name), _) => Head::Branch(name.clone()),
    };
    files::write(&private.join("HEAD"), &head.text())?;
    if let (Head::Branch(name), Some(commit)) = (&head, commit) {
        let path = private.join(OsStr::from_bytes(name));
        if let Some(parent) = path.parent() {
            files::create_dirs(parent)?;
        }
        files::write(&path, &[commit, b"\n"].concat())?;
    }
    Ok(())
}

/// The folder's part of the index, with the user's times; where sparse directories forbid that,
/// the folder's part of `HEAD`. False if neither can be had.
fn write_index(
    private: &Path,
    repo: &Repository,
    head: Option<&[u8]>,
    index: Option<&(Index, IndexFiles)>,
) -> Result<bool, GitError> {
    let Some((index, parts)) = index else {
        return Ok(true);
    };
    if let Some(bytes) = split::of_folder(index, &repo.prefix, repo.hash) {
        files::write_dated(&private.join("index"), &bytes, parts.mtime)?;
        return Ok(true);
    }
    let Some(head) = head else { return Ok(false) };
    let tree = [head, b":", &repo.prefix[..]].concat();
    Ok(git(
        private,
        &[OsStr::new("read-tree"), OsStr::from_bytes(&tree)],
    )
    .is_some())
}

/// Packs what the commit and the index reach into the private directory; false if git failed.
fn take_objects(private: &Path, commit: Option<&[u8]>) -> Result<bool, GitError> {
    let revisions = private.join("revisions");
    let wanted = [commit.unwrap_or_default(), b"\n"].concat();
    files::write(&revisions, if commit.is_some() { &wanted } else { b"" })?;
    files::create_dirs(&private.join("objects/pack"))?;
    let args = [
        "pack-objects",
        "-q",
        "--revs",
        "--indexed-objects",
        "--delta-base-offset",
        "objects/pack/pack",
    ];
    let packed = git_reading(
        private,
        &args.map(OsStr::new),
        Some(&revisions),
        PACK_SECONDS,
    )
    .is_some();
    files::remove_file(&revisions)?;
    Ok(packed)
}

/// The rules that hold for the folder from the directories above it, then `own`, rewritten to be
/// relative to the folder as far as that can be said in a pattern.
fn rules_above(
    repo: &Repository,
    name: &str,
    rebase: fn(&[u8], &[u8]) -> Option<Vec<u8>>,
    own: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |text: &[u8], rest: &[u8]| {
        for line in patterns::lines(text) {
            if let Some(line) = rebase(line, rest) {
                out.extend_from_slice(&line);
                out.push(b'\n');
            }
        }
    };
    // Weakest first: the rules of the repository, then those of each directory downwards.
    add(own, &repo.prefix);
    let mut rest = &repo.prefix[..];
    let mut dir = PathBuf::new();
    loop {
        let text = repo.tree.read_if_usable(&dir.join(name), RULES_BYTES);
        add(&text.unwrap_or_default(), rest);
        let Some(slash) = rest.iter().position(|&b| b == b'/') else {
            return out;
        };
        dir.push(OsStr::from_bytes(&rest[..slash]));
        rest = &rest[slash + 1..];
    }
}

/// Runs git on the private directory; its output, or `None` if it failed in whatever way.
fn git(private: &Path, args: &[&OsStr]) -> Option<Vec<u8>> {
    git_reading(private, args, None, GIT_SECONDS)
}

/// The same with a file as its input, and a time.
fn git_reading(
    private: &Path,
    args: &[&OsStr],
    input: Option<&Path>,
    seconds: u64,
) -> Option<Vec<u8>> {
    let stdin = match input {
        Some(path) => Stdio::from(std::fs::File::open(path).ok()?),
        None => Stdio::null(),
    };
    let mut git_dir = OsString::from("--git-dir=");
    git_dir.push(OsString::from_vec(private.as_os_str().as_bytes().to_vec()));
    let mut child = Command::new("git")
        .arg(git_dir)
        .args(args)
        .env_clear()
        .env(
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
        )
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .current_dir(private)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = read_until(&mut child, Instant::now() + Duration::from_secs(seconds));
    if output.is_none() {
        // It may have ended by itself meanwhile; either way `wait` does not block.
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    output.filter(|_| status.success())
}

/// Everything that the child writes until it closes its output; `None` past the bound or time.
fn read_until(child: &mut std::process::Child, deadline: Instant) -> Option<Vec<u8>> {
    let mut stdout = child.stdout.take()?;
    let mut output = Vec::new();
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let left = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let mut chunk = [0; 4096];
        match stdout.read(&mut chunk).ok()? {
            0 => return Some(output),
            len => output.extend_from_slice(&chunk[..len]),
        }
        if output.len() as u64 > OUTPUT_BYTES {
            return None;
        }
    }
}
