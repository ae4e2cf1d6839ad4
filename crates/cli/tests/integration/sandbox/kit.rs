//! What the tests of lasting sandboxes share: the program in few words, waiting for a state, and a
//! look at what is left when all sandboxes are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Fixture, LOOK_SECONDS, Live, Output, RUN_SECONDS, Sandboxed, in_each_mode};

/// One home, and a repository with a clean commit to make sandboxes from.
#[derive(Debug)]
pub struct Kit<'a> {
    pub env: &'a Sandboxed,
    pub fixture: &'a Fixture,
}

/// Runs a check in a fresh home of each mode; afterwards every sandbox can be removed, and then
/// nothing of them is left.
pub fn lasting(name: &str, check: impl Fn(&Kit<'_>) -> Result<()> + Sync) -> Result<()> {
    in_each_mode(name, |env, fixture| {
        let kit = Kit { env, fixture };
        let checked = check(&kit);
        let cleared = kit.clear();
        checked?;
        cleared.context("after the test")
    })
}

/// What a sandbox shows of its files, and who may do what with them: one line each.
pub const TREE: &str = r"cd / && find workspace home/agent tmp -printf '%p %y %m %l\n' | sort;
    find workspace home/agent tmp -type f ! -path workspace/.git/index -exec sha256sum {} + | sort";

impl Kit<'_> {
    /// `ringfence` with these words, whatever comes of it.
    pub fn call(&self, words: &[&str]) -> Result<Output> {
        let began = Instant::now();
        let output = self.env.ringfence(self.fixture, RUN_SECONDS, words)?;
        let hung = began.elapsed() >= Duration::from_secs(RUN_SECONDS.into());
        ensure!(!hung, "{words:?} hangs: {}", output.tail());
        Ok(output)
    }

    /// The same; it must succeed. Gives what it printed.
    pub fn done(&self, words: &[&str]) -> Result<String> {
        let output = self.call(words)?;
        ensure!(output.status.success(), "{words:?}: {}", output.tail());
        Ok(output.stdout)
    }

    /// It must fail with this code, and say this on standard error.
    pub fn fails(&self, code: i32, says: &str, words: &[&str]) -> Result<String> {
        let output = self.call(words)?;
        ensure!(
            output.status.code() == Some(code) && output.stderr.contains(says),
            "{words:?}: exit {:?} instead of {code} with `{says}`: {}",
            output.status.code(),
            output.tail()
        );
        Ok(output.stderr)
    }

    /// The JSON that it prints.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.done(words)?;
        serde_json::from_str(text.trim()).with_context(|| format!("{words:?} prints {text}"))
    }

    /// A new sandbox from the commit of the fixture's folder.
    pub fn create(&self, options: &[&str]) -> Result<String> {
        let folder = path(&self.fixture.folder);
        self.create_of(&[&["--repo", folder, "--base", "main"], options].concat())
    }

    /// A new sandbox with these words.
    pub fn create_of(&self, options: &[&str]) -> Result<String> {
        let words = [&["sandbox", "create"], options].concat();
        Ok(self.done(&words)?.trim().to_owned())
    }

    /// A shell command inside; it must succeed. Gives what it printed.
    pub fn sh(&self, id: &str, shell: &str) -> Result<String> {
        self.done(&["sandbox", "exec", id, "--", "sh", "-c", shell])
    }

    /// A shell command inside that runs on beside the test.
    pub fn live(&self, id: &str, shell: &str) -> Result<Live> {
        let words = ["sandbox", "exec", id, "--", "sh", "-c", shell];
        self.env.call(self.fixture).live(&words)
    }

    /// A shell command inside, with options, and its JSON result.
    pub fn sh_json(&self, id: &str, options: &[&str], shell: &str) -> Result<Value> {
        let words = [
            &["sandbox", "exec", id, "--json"],
            options,
            &["--", "sh", "-c", shell],
        ]
        .concat();
        let output = self.call(&words)?;
        output
            .json
            .clone()
            .with_context(|| format!("`{shell}` gives no result: {}", output.tail()))
    }

    /// What `status` says of a sandbox.
    pub fn status(&self, id: &str) -> Result<Value> {
        let all = self.json(&["status", "--json"])?;
        all["sandboxes"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["sandbox"] == id)
            .cloned()
            .with_context(|| format!("no sandbox {id} in {all}"))
    }

    /// The states of all sandboxes.
    pub fn states(&self) -> Result<Vec<String>> {
        let all = self.json(&["status", "--json"])?;
        let rows = all["sandboxes"].as_array().context("no list")?;
        Ok(rows
            .iter()
            .map(|row| row["state"].as_str().unwrap_or("?").to_owned())
            .collect())
    }

    pub fn expect_state(&self, id: &str, state: &str) -> Result<Value> {
        let seen = self.status(id)?;
        ensure!(seen["state"] == state, "not {state}: {seen}");
        Ok(seen)
    }

    /// Waits for something that comes by itself.
    pub fn until(&self, what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(LOOK_SECONDS.into());
        while !is()? {
            if Instant::now() > deadline {
                bail!("never {what}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn keeper(&self, id: &str) -> Result<Pid> {
        let seen = self.status(id)?;
        let pid = seen["keeper_pid"].as_i64().context("no keeper")?;
        Pid::from_raw(pid as i32).context("no pid")
    }

    /// Kills the keeper and waits until it is gone.
    pub fn kill_keeper(&self, id: &str) -> Result<()> {
        let pid = self.keeper(id)?;
        kill_process(pid, Signal::KILL)?;
        let process = PathBuf::from(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        self.until("killed", || {
            Ok(fs::read(&process).map_or(true, |line| line.is_empty()))
        })
    }

    pub fn state_path(&self, name: &str) -> PathBuf {
        self.fixture.state.join(name)
    }

    /// Removes all sandboxes and looks for what they left.
    fn clear(&self) -> Result<()> {
        let all = self.json(&["status", "--json"])?;
        let ids: Vec<&str> = all["sandboxes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|row| row["sandbox"].as_str())
            .collect();
        if !ids.is_empty() {
            self.done(&[&["sandbox", "rm"], ids.as_slice()].concat())?;
        }
        self.until("without processes of this home", || {
            Ok(self.processes()?.is_empty())
        })
        .with_context(|| format!("{:?}", self.processes()))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let home = path(&self.fixture.state);
        ensure!(!mounts.contains(home), "mounts are left: {mounts}");
        let left: Vec<PathBuf> = fs::read_dir(self.state_path("sandboxes"))?
            .chain(fs::read_dir(self.state_path("layers"))?)
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        ensure!(left.is_empty(), "left in the home: {left:?}");
        Ok(())
    }

    /// Processes of the program that work on this home.
    pub fn processes(&self) -> Result<Vec<String>> {
        let mark = format!("RINGFENCE_HOME={}\0", self.fixture.state.display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let process = entry?.path();
            let (Ok(environ), Ok(line)) = (
                fs::read(process.join("environ")),
                fs::read(process.join("cmdline")),
            ) else {
                continue;
            };
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let ours = environ
                .windows(mark.len())
                .any(|window| window == mark.as_bytes());
            if ours && (line.contains(" keep ") || line.contains(" settle ")) {
                found.push(line);
            }
        }
        Ok(found)
    }
}

pub fn path(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}

/// The text of a JSON field.
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}
