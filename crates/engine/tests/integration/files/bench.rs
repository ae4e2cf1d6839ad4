//! A folder, a home, and runs of a shell line under a policy about files.

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_engine::attend::{Console, Inputs};
use ringfence_engine::client::Stream;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::run::{RunRequest, RunResult, run};
use ringfence_engine::store::Store;
use ringfence_engine::workspace::View;
use ringfence_model::limits::Limits;
use ringfence_model::policy::{Effective, Files, Line, Mount};

pub struct Bench {
    top: tempfile::TempDir,
    pub home: Home,
    store: Store,
}

/// What a run left.
pub struct Ran {
    pub result: RunResult,
    pub said: String,
    pub patch: String,
}

impl Ran {
    /// Each changed path with the letter of its change.
    pub fn changes(&self) -> Vec<String> {
        use ringfence_model::changes::ChangeKind;
        let change = |change: &ringfence_model::changes::Change| match &change.kind {
            ChangeKind::Added => format!("A {}", change.path),
            ChangeKind::Modified => format!("M {}", change.path),
            ChangeKind::Deleted => format!("D {}", change.path),
            ChangeKind::Renamed { from } => format!("R {from} {}", change.path),
        };
        self.result.changes.iter().map(change).collect()
    }

    /// Each path that stayed behind, with its reason.
    pub fn omitted(&self) -> Vec<String> {
        let line = |omitted: &ringfence_model::changes::Omitted| {
            format!(
                "{} {}",
                omitted.path,
                format!("{:?}", omitted.why).to_lowercase()
            )
        };
        self.result.omitted.iter().map(line).collect()
    }
}

#[derive(Default)]
struct Heard(Vec<u8>);

impl Console for Heard {
    fn output(&mut self, _: Stream, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Lines as a policy has them.
pub fn lines(texts: &[&str]) -> Vec<Line> {
    let line = |text: &&str| Line {
        text: (*text).to_owned(),
        from: serde_json::from_value(serde_json::json!({"file": "policy.toml", "line": 1}))
            .unwrap(),
    };
    texts.iter().map(line).collect()
}

pub fn mount(host: &Path, inside: &str, writable: bool) -> Mount {
    Mount {
        host: host.to_owned(),
        inside: inside.into(),
        writable,
        from: lines(&["x"])[0].from.clone(),
    }
}

impl Bench {
    /// With this shell script run in the folder.
    pub fn new(script: &str) -> Self {
        let top = tempfile::tempdir().unwrap();
        let home = Home::open(Some(top.path().join("state"))).unwrap();
        let store = Store::open(&home).unwrap();
        let bench = Self { top, home, store };
        fs::create_dir(bench.folder()).unwrap();
        bench.sh(script);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    pub fn folder(&self) -> PathBuf {
        self.path("folder")
    }

    /// Runs a script in the folder, on the host.
    pub fn sh(&self, script: &str) -> String {
        let out = std::process::Command::new("sh")
            .args(["-euc", script])
            .current_dir(self.folder())
            .env("HOME", self.top.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_AUTHOR_NAME", "a")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_COMMITTER_NAME", "a")
            .env("GIT_COMMITTER_EMAIL", "a@example.org")
            .output()
            .unwrap();
        assert!(out.status.success(), "{script}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    /// All that is in the folder, with modes and times.
    pub fn listing(&self) -> String {
        self.sh("find . -printf '%p %y %m %T@ %s %l\\n' | sort; find . -type f -exec sha256sum {} + | sort")
    }

    pub fn try_run(&self, files: Files, line: &str) -> Result<Ran, Error> {
        let request = RunRequest {
            backend: ringfence_engine::backend::native(),
            attempt: None,
            agent: None,
            campaign: None,
            folder: self.folder(),
            argv: ["bash", "-c", line].map(Into::into).to_vec(),
            name: None,
            limits: Limits::for_host(ringfence_jail::total_memory_bytes()),
            require_hard: false,
            policy: Effective {
                files,
                ..Effective::default()
            },
            notes: Vec::new(),
            env: Vec::new(),
            view: View::default(),
            terminal: None,
            input: None,
            brief: None,
            rounds: None,
            program: PathBuf::new(),
        };
        let inputs = Inputs {
            stdin: None,
            signals: None,
        };
        let mut heard = Heard::default();
        let result = run(&self.home, &self.store, &request, &inputs, &mut heard)?;
        Ok(Ran {
            patch: fs::read_to_string(&result.patch).unwrap(),
            said: String::from_utf8_lossy(&heard.0).into_owned(),
            result,
        })
    }

    /// A run on a folder that must be the same afterwards.
    pub fn run(&self, files: Files, line: &str) -> Ran {
        let before = self.listing();
        let ran = self.try_run(files, line).unwrap();
        assert_eq!(self.listing(), before, "the folder changed");
        ran
    }

    /// Why a run is refused: all causes, and what to do.
    pub fn refusal(&self, files: Files) -> String {
        let Err(error) = self.try_run(files, "true") else {
            panic!("it ran");
        };
        let mut text = error.to_string();
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        if let Some(hint) = error.hint() {
            text.push_str(&format!("; {hint}"));
        }
        text
    }
}
