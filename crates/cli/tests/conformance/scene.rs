//! One row at one backend: a folder of its own, and `ringfence` with that backend's options.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::columns::Column;
use crate::engine::Engine;
use crate::isolation::Verdicts;
use crate::support::{Call, Fixture, Sandboxed};

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It holds.
    Held,
    /// It holds, and how.
    As(String),
    /// It holds as far as this says, and no further.
    Partly(String),
    /// It does not, and why.
    Not(String),
    /// It means nothing there.
    Nothing(&'static str),
}

impl Seen {
    /// As it stands in the table: the same on every machine.
    pub fn cell(&self) -> String {
        match self {
            Self::Held => "yes".to_owned(),
            Self::As(how) => how.clone(),
            Self::Partly(how) => format!("**{how}**"),
            Self::Not(_) => "**no**".to_owned(),
            Self::Nothing(_) => "–".to_owned(),
        }
    }

    /// For whoever reads what went on.
    pub fn line(&self) -> String {
        // BOUND: a whole result says no more to a reader than its beginning.
        let all = format!("{self:?}");
        match all.char_indices().nth(400) {
            Some((end, _)) => format!("{}…", &all[..end]),
            None => all,
        }
    }
}

/// How the attacks ended at a column: they run once.
pub type Attacks = Mutex<Option<std::result::Result<Verdicts, String>>>;

/// What was seen of each cell, beside what the test itself prints: whoever reads a failure wants that
/// and no thousand lines around it.
#[derive(Debug)]
pub struct Log(Mutex<fs::File>);

impl Log {
    pub fn start() -> Result<Self> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance.log");
        println!("conformance: each cell is told in {}", path.display());
        Ok(Self(Mutex::new(fs::File::create(path)?)))
    }

    pub fn tell(&self, line: &str) {
        let mut file = self.0.lock().expect("no worker panics");
        writeln!(file, "{line}").expect("a line is written");
    }
}

/// Where a row is tried.
#[derive(Debug)]
pub struct Scene<'a> {
    pub env: &'a Sandboxed,
    pub column: &'a Column,
    pub engine: Option<&'a Engine>,
    pub fixture: Fixture,
    pub shared: &'a Shared,
    pub attacks: &'a Attacks,
    pub log: &'a Log,
}

/// What must be the same everywhere: who saw it first, and what it was.
pub type Shared = Mutex<BTreeMap<String, (&'static str, Value)>>;

impl Scene<'_> {
    /// Then what runs inside is not known to the host; `tests/integration/gvisor.rs` kills the runtime.
    pub fn has_own_kernel(&self) -> bool {
        self.column.name.contains("gvisor")
    }

    pub fn call(&self) -> Call<'_> {
        let found = self.column.found_by(self.engine);
        let found = found.expect("it was found before");
        let call = self.env.call(&self.fixture);
        found
            .iter()
            .fold(call, |call, (name, value)| call.variable(name, value))
    }

    /// The backend's options before others.
    pub fn options<'b>(&self, more: &[&'b str]) -> Vec<&'b str> {
        self.column.options.iter().chain(more).copied().collect()
    }

    /// `ringfence run --json` of a shell command. It must give a result.
    pub fn run(&self, options: &[&str], shell: &str) -> Result<Value> {
        self.call().run(&self.options(options), shell)
    }

    /// What stands in the environment of everything that is started here, as `leftovers` looks for it.
    pub fn mark(&self) -> String {
        format!("RF_MARK={}", self.env.mark(&self.fixture))
    }

    /// INVARIANT: every row ends with this. Nothing runs, nothing is mounted, no container is there.
    pub fn nothing_left(&self) -> Result<()> {
        let left = self.env.leftovers(&self.fixture);
        ensure!(left.is_empty(), "left running: {left:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let state = self.fixture.state.to_string_lossy().into_owned();
        let below = mounts.lines().find(|line| line.contains(&state));
        ensure!(below.is_none(), "left mounted: {below:?}");
        let (_, others) = self.attached()?;
        ensure!(others.is_empty(), "left in `attached`: {others:?}");
        Ok(())
    }

    /// What is left in `attached`: what only an engine can remove, which is done now and then, and what
    /// should not be there.
    pub fn attached(&self) -> Result<(Vec<String>, Vec<String>)> {
        let top = self.fixture.state.join("attached");
        let is_engines = |name: &String| {
            let inner = entries(&top.join(name)).unwrap_or_default();
            let is_soiled = |name: &String| name.starts_with("soiled");
            let is_known = |name: &String| is_soiled(name) || name == "backend";
            inner.iter().any(is_soiled) && inner.iter().all(is_known)
        };
        Ok(entries(&top)?.into_iter().partition(is_engines))
    }
}

/// Names in a directory, but those of files that are kept for all: they begin with a dot.
fn entries(directory: &Path) -> Result<Vec<String>> {
    let Ok(read) = fs::read_dir(directory) else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for entry in read {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    Ok(names)
}
