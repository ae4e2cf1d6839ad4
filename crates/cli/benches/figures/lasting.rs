//! What the figures of lasting sandboxes share: repositories, sandboxes on them, and states.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::attend::{Console, Inputs};
use ringfence_engine::client::Stream;
use ringfence_engine::ids::SandboxId;
use ringfence_engine::mirror::Silent;
use ringfence_engine::policy::Asked;
use ringfence_engine::sandboxes::Host;
use ringfence_engine::sandboxes::create::{CreateRequest, From, Stage, create};
use ringfence_engine::sandboxes::exec::{Beside, ExecRequest, Lost, exec, turn};
use ringfence_engine::store::{AutoCheckpoint, Store};
use ringfence_engine::workspace::Ignored;
use ringfence_model::ByteText;
use ringfence_model::limits::Limits;

use crate::place::{Place, outside};

/// A workspace as an issue knows it: 50,000 files and 1 GB.
pub const LARGE: Tree = Tree {
    files: 50_000,
    bytes: 20 << 10,
};
pub const SMALL: Tree = Tree {
    files: 50,
    bytes: 20 << 10,
};

/// How much is in a repository.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    pub files: usize,
    /// Of each file.
    pub bytes: usize,
}

impl Tree {
    /// A repository with all of it in one commit on `main`; made once.
    pub fn repository(self, place: &Place) -> Result<PathBuf> {
        let name = format!("repository-{}-{}", self.files, self.bytes);
        let folder = place.root().join(name);
        if folder.exists() {
            return Ok(folder);
        }
        fs::create_dir(&folder)?;
        for number in 0..self.files {
            let path = folder.join(format!("d{}/f{number}", number / 100));
            if number % 100 == 0 {
                fs::create_dir_all(path.parent().expect("each file is in a directory"))?;
            }
            let line = format!("line of file {number}\n");
            fs::write(path, line.repeat(self.bytes / line.len()))?;
        }
        for words in [
            &["init", "--quiet", "--initial-branch=main"][..],
            &["config", "user.name", "bench"],
            &["config", "user.email", "bench@example.org"],
            &["config", "core.looseCompression", "1"],
            // It would tidy up in the background while others are timed.
            &["config", "gc.auto", "0"],
            &["config", "maintenance.auto", "false"],
            &["add", "--all"],
            &["commit", "--quiet", "-m", "all"],
        ] {
            outside(Command::new("git").args(words).current_dir(&folder))?;
        }
        Ok(folder)
    }
}

/// The commit that a repository is at.
pub fn head(repository: &Path) -> Result<String> {
    let output = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(repository)
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The sandboxes of the place's home.
pub fn host(place: &Place) -> Result<Host> {
    Ok(Host {
        home: place.home().clone(),
        store: Store::open(place.home())?,
        program: place.binary().to_owned(),
    })
}

/// A new sandbox.
pub fn sandbox(host: &Host, from: &From) -> Result<SandboxId> {
    let request = CreateRequest {
        backend: Default::default(),
        from: from.clone(),
        stage: Stage::Whole,
        name: None,
        tag: None,
        policy: Asked::nothing(Limits::for_host(2 << 30)),
        env: Vec::new(),
        ignored: Ignored::default(),
        idle_seconds: Some(600),
        ttl_seconds: None,
        auto_checkpoint: AutoCheckpoint::Never,
    };
    Ok(create(host, &request, &mut Silent)?.sandbox)
}

/// The tree of a repository's `HEAD`, by its id.
pub fn from_commit(repository: &Path) -> Result<From> {
    Ok(From::Repository {
        typed: repository.to_string_lossy().into_owned(),
        revision: Some(head(repository)?),
    })
}

/// Writes a file into the top of a sandbox in which nothing runs, as overlayfs leaves it.
pub fn soil(host: &Host, id: SandboxId) -> Result<()> {
    let folder = host.places(id).upper().join("workspace");
    fs::create_dir_all(&folder)?;
    fs::File::create(folder.join("new"))?.write_all(b"new\n")?;
    Ok(())
}

/// Runs a line of shell in a sandbox, to its end.
pub fn shell(host: &Host, id: SandboxId, line: &str) -> Result<()> {
    command(host, id, &["/bin/sh", "-c", line])
}

/// Runs a command in a sandbox, to its end.
pub fn command(host: &Host, id: SandboxId, words: &[&str]) -> Result<()> {
    let request = ExecRequest {
        argv: words.iter().map(|&word| ByteText::from(word)).collect(),
        env: Vec::new(),
        cwd: None,
        session: None,
        terminal: None,
        time_seconds: None,
        lost: Lost::Replace,
        incarnation: None,
    };
    let mut heard = Heard::default();
    let turn = turn(host, id, Beside::Wait, &mut |_| {})?;
    let done = exec(
        host,
        id,
        &turn,
        &request,
        &Inputs::default(),
        &mut heard,
        &mut |_| {},
    )
    .context("cannot run a command in a sandbox")?;
    ensure!(
        done.attended.code == Some(0),
        "{words:?}: {:?} {}",
        done.attended,
        String::from_utf8_lossy(&heard.0)
    );
    Ok(())
}

/// Keeps what was said, for the message when it fails.
#[derive(Debug, Default)]
struct Heard(Vec<u8>);

impl Console for Heard {
    fn output(&mut self, _stream: Stream, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Bytes of disk under a directory. What overlayfs closed to everybody counts without its content.
pub fn disk(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::symlink_metadata(path)?;
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() && metadata.mode() & 0o500 == 0o500 {
        for entry in fs::read_dir(path)? {
            bytes += disk(&entry?.path())?;
        }
    }
    Ok(bytes)
}
