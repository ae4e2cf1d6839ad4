//! A home of its own, repositories made by the real git, and a real git server on loopback.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ringfence_engine::base::Base;
use ringfence_engine::home::Home;
use ringfence_engine::mirror::{Progress, Resolved, Silent};
use ringfence_engine::source;
use ringfence_engine::store::Store;
use ringfence_engine::{base, mirror};

pub struct Bench {
    pub directory: tempfile::TempDir,
    pub home: Home,
    pub store: Store,
}

#[derive(Default)]
pub struct Lines(pub Vec<String>);

impl Progress for Lines {
    fn say(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }
}

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let store = Store::open(&home).unwrap();
        Self {
            directory,
            home,
            store,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a script in the bench's directory; what it wrote, trimmed.
    pub fn sh(&self, script: &str) -> String {
        let output = command("sh")
            .current_dir(self.directory.path())
            .args(["-euc", script])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}\n{errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn ensure(&self, text: &str, rev: Option<&str>) -> Result<Resolved, mirror::MirrorError> {
        let typed = source::parse(text)?;
        mirror::ensure(&self.home, &self.store, &typed, rev, &mut Silent)
    }

    /// A source in the bench's directory.
    pub fn local(&self, name: &str, rev: Option<&str>) -> Resolved {
        self.ensure(self.path(name).to_str().unwrap(), rev).unwrap()
    }

    pub fn commit(&self, name: &str) -> Base {
        let resolved = self.local(name, None);
        base::commit(&self.home, &self.store, &resolved, &mut Silent).unwrap()
    }

    pub fn snapshot(&self, name: &str) -> Base {
        base::snapshot(&self.home, &self.store, &self.path(name), &mut Silent).unwrap()
    }
}

/// A program with nothing of the caller's git settings.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        // It would run in the background, and outlive the test.
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "maintenance.auto")
        .env("GIT_CONFIG_VALUE_0", "false")
        .env("GIT_ALLOW_PROTOCOL", "file")
        .env("GIT_OPTIONAL_LOCKS", "0");
    command
}

/// Runs git on a base's workspace as it would run inside, with the objects where they are here.
pub fn inside(base: &Base, arguments: &[&str]) -> String {
    inside_at(base, "", arguments)
}

pub fn inside_at(base: &Base, below: &str, arguments: &[&str]) -> String {
    let output = tracing(base, below, &["git"], arguments);
    assert!(
        output.status.success(),
        "{arguments:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

pub fn tracing(
    base: &Base,
    below: &str,
    program: &[&str],
    arguments: &[&str],
) -> std::process::Output {
    let objects: Vec<&str> = base.objects.iter().map(|p| p.to_str().unwrap()).collect();
    command(program[0])
        .args(&program[1..])
        .arg("-C")
        .arg(base.workspace().join(below))
        .args(arguments)
        .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", objects.join(":"))
        .output()
        .unwrap()
}

/// A git server over HTTP.
pub struct Server {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Serves the repositories below a directory; with `user:password` if that is given.
    pub fn start(root: &Path, password: &str) -> Self {
        Self::start_with(root, password, None)
    }

    /// As long as there is a file `gate`, packs are sent by half; `half` says that one was.
    pub fn start_slow(root: &Path, gate: &Path) -> Self {
        Self::start_with(root, "", Some(gate))
    }

    fn start_with(root: &Path, password: &str, gate: Option<&Path>) -> Self {
        let log = root.join("requests.log");
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/integration/shared/server.py"
        );
        let mut child = Command::new("python3")
            .arg(script)
            .args([root, &log])
            .arg(password)
            .args(gate)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line.trim().parse().unwrap();
        Self { child, port, log }
    }

    pub fn url(&self, userinfo: &str, name: &str) -> String {
        format!("http://{userinfo}127.0.0.1:{}/{name}", self.port)
    }

    /// How many conversations were begun, those without the right password apart.
    pub fn conversations(&self) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains("200 GET") && line.contains("info/refs"))
            .count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
