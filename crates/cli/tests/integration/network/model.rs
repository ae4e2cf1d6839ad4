//! A scripted model on loopback (`model.py`), and agents from their own registry.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::support::PATH;

/// What is installed, by name and version: what these do is what a later version may not.
const PACKAGES: [&str; 3] = [
    "@anthropic-ai/claude-code@2.1.197",
    "@openai/codex@0.166.0",
    "opencode-ai@1.18.33",
];
/// BOUND: far more than an installation takes.
const INSTALL_SECONDS: &str = "300";

/// It answers until it is dropped.
pub struct Model {
    child: Child,
    pub port: u16,
    log: PathBuf,
    _place: tempfile::TempDir,
}

impl Model {
    pub fn start(how: &str) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let log = place.path().join("log");
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/network/model.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg(how)
            .arg(&log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run python3")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        Ok(Self {
            port: line.trim().parse().context("the model says no port")?,
            child,
            log,
            _place: place,
        })
    }

    /// Where the hosts of models are, as a policy has it.
    pub fn policy(&self) -> String {
        let hosts = ["api.anthropic.com", "api.openai.com", "gateway.example"];
        let line = |host: &&str| format!("'{host}' = 'http://127.0.0.1:{}'\n", self.port);
        let lines: String = hosts.iter().map(line).collect();
        format!("[network.mock]\n{lines}")
    }

    /// All that it was sent since this many requests.
    pub fn seen(&self, since: usize) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines = text.lines().skip(since).map(serde_json::from_str);
        Ok(lines.collect::<Result<_, _>>()?)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where real agents are: a directory for `PATH`. They are installed once, and kept.
pub fn real() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let place = PLACE.get_or_init(|| match install() {
        Ok(place) => Some(place),
        Err(error) => {
            println!("SKIPPED real agents: they cannot be installed: {error:#}");
            None
        }
    });
    place.as_deref()
}

fn install() -> Result<PathBuf> {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(top)?;
    let name = PACKAGES.join("-").replace(['/', '@'], "-");
    let place = top.join(format!("agents{name}"));
    let bin = place.join("node_modules/.bin");
    // One test installs them, and the others wait: each is a process of its own.
    let lock = fs::File::create(top.join("agents.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if bin.is_dir() {
        return Ok(bin);
    }
    // Whole or not at all: it may be killed.
    let making = tempfile::Builder::new().prefix("agents-").tempdir_in(top)?;
    fs::write(making.path().join("package.json"), "{}")?;
    let output = Command::new("timeout")
        .args([INSTALL_SECONDS, "npm", "install", "--no-audit", "--no-fund"])
        .args(PACKAGES)
        .current_dir(making.path())
        .stdin(Stdio::null())
        .output()
        .context("cannot run npm")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}", said.trim());
    fs::rename(making.keep(), &place)?;
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&place, everybody)?;
    ensure!(bin.is_dir(), "npm left no programs");
    Ok(bin)
}

/// A `PATH` that leads to them.
pub fn path(bin: &Path) -> String {
    format!("{}:{PATH}", bin.display())
}
