//! A home with a sandbox in it of which everything is known, and the questions that are asked after
//! each death.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringfence_engine::home::Home;
use ringfence_engine::store::{SourceState, Store};
use ringfence_model::sandbox::SandboxState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Fixture, Output, Sandboxed, in_each_mode};

/// BOUND: the kernel and what goes on in the background need a moment; far more than that.
const SOON: Duration = Duration::from_secs(60);

/// What is written before the checkpoint `green`: tracked, deleted, new, in the home, in `/tmp`.
const GREEN: &str = "echo green >> a.txt; rm README.md; mkdir -p sub/deep; echo new > sub/deep/new; \
    ln -s new sub/deep/link; echo h > ~/green; echo t > /tmp/green; chmod 640 src/main.c";
/// What is written after it and sealed by nobody yet.
pub const DIRTY: &str = "echo dirty >> a.txt; echo u > untracked; rm -r sub; echo h > ~/dirty; \
    echo t > /tmp/dirty; git add untracked";
/// All that can be seen of the workspace, the home and `/tmp`, in one number. Of git's index what
/// it lists: it also holds times.
const DIGEST: &str = "cd / && { find workspace home/agent tmp -printf '%y %m %l %p\\n'; \
    find workspace home/agent tmp -type f ! -path 'workspace/.git/index' -print0 | xargs -0 sha256sum; \
    git -C workspace ls-files -s; } | sort | sha256sum";
/// Something that runs until it is ended, and can be seen to run.
pub const BACKGROUND: &str =
    "(while :; do date +%N > /dev/shm/tick; sleep 0.02; done) >/dev/null 2>&1 &";
const TICKS: &str = "a=$(cat /dev/shm/tick); for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; \
    do sleep 0.05; [ \"$a\" = \"$(cat /dev/shm/tick)\" ] || exit 0; done; exit 1";

pub struct Scene<'a> {
    pub env: &'a Sandboxed,
    pub fixture: &'a Fixture,
    /// The sandbox that others are forked from.
    pub template: String,
    /// Digests of its checkpoint, and of that with what is dirty.
    pub green: String,
    pub dirty: String,
    /// Every sandbox that there ever was.
    known: Mutex<BTreeSet<String>>,
}

/// A variable in every sandbox of a scene.
fn mark(fixture: &Fixture) -> String {
    format!("RF_SCENE={}", fixture.state.display())
}

/// What the store and the directories say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub sandboxes: BTreeMap<String, String>,
    pub layers: BTreeMap<String, String>,
    pub bases: BTreeMap<String, String>,
    pub mirrors: BTreeMap<String, String>,
    pub listed: BTreeSet<String>,
}

/// The home alone, for scenes in which the template is not needed.
pub fn call(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<String> {
    let output = env.call(fixture).live(words)?.finish()?;
    ensure!(output.status.success(), "{words:?}: {}", output.tail());
    Ok(output.stdout.trim_end().to_owned())
}

pub fn exec(env: &Sandboxed, fixture: &Fixture, id: &str, shell: &str) -> Result<String> {
    let words = ["sandbox", "exec", id, "--replace", "--", "sh", "-c", shell];
    call(env, fixture, &words)
}

pub fn digest(env: &Sandboxed, fixture: &Fixture, id: &str) -> Result<String> {
    exec(env, fixture, id, DIGEST).with_context(|| format!("cannot see into {id}"))
}

/// Runs a check in each mode, and kills what it started where it fails.
pub fn in_modes_at_once(
    name: &str,
    check: impl Fn(&Sandboxed, &Fixture) -> Result<()> + Sync,
) -> Result<()> {
    in_each_mode(name, |env, fixture| {
        let checked = check(env, fixture);
        if checked.is_err() {
            end_all(&fixture.state);
        }
        checked
    })
}

/// Kills whatever was started for a home.
pub fn end_all(state: &Path) {
    for word in ["keep", "settle"] {
        let own = |pid: &u32| Pid::from_raw(i32::try_from(*pid).ok()?);
        for pid in processes(state, word).iter().filter_map(own) {
            // Gone by itself is as good.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl<'a> Scene<'a> {
    pub fn set(env: &'a Sandboxed, fixture: &'a Fixture) -> Result<Self> {
        let mut scene = Self {
            env,
            fixture,
            template: String::new(),
            green: String::new(),
            dirty: String::new(),
            known: Mutex::default(),
        };
        let mark = mark(fixture);
        let create = ["sandbox", "create", "--base", "HEAD", "--env", &mark];
        scene.template = scene.ask(&create)?;
        scene.exec(&scene.template, GREEN)?;
        scene.green = scene.digest(&scene.template)?;
        scene.checkpoint(&scene.template, "green")?;
        let other = scene.fresh()?;
        scene.dirty = scene.digest(&other)?;
        // What finds nothing at the end must be able to find something.
        let state = &fixture.state;
        ensure!(!processes(state, "keep").is_empty(), "no keeper is seen");
        scene.exec(&other, BACKGROUND)?;
        ensure!(!scene.inside().is_empty(), "nothing is seen inside");
        scene.remove(&other)?;
        ensure!(scene.green != scene.dirty, "the digest sees nothing");
        Ok(scene)
    }

    /// A sandbox with something sealed and something that is not.
    pub fn fresh(&self) -> Result<String> {
        let id = self.ask(&["sandbox", "fork", &self.template, "--from", "green"])?;
        self.exec(&id, DIRTY)?;
        Ok(id)
    }

    /// A call that must succeed; gives what it prints.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        call(self.env, self.fixture, words)
    }

    pub fn try_ask(&self, words: &[&str]) -> Result<Output> {
        self.env.call(self.fixture).live(words)?.finish()
    }

    pub fn exec(&self, id: &str, shell: &str) -> Result<String> {
        exec(self.env, self.fixture, id, shell)
    }

    pub fn digest(&self, id: &str) -> Result<String> {
        digest(self.env, self.fixture, id)
    }

    pub fn checkpoint(&self, id: &str, name: &str) -> Result<String> {
        self.ask(&["sandbox", "checkpoint", id, "--name", name])
    }

    pub fn remove(&self, id: &str) -> Result<String> {
        self.ask(&["sandbox", "rm", id])
    }

    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.ask(&["status", "--json"])?)?)
    }

    /// What the status says of one sandbox.
    pub fn state_of(&self, id: &str) -> Result<Option<String>> {
        let status = self.status()?;
        let rows = status["sandboxes"].as_array().context("no list")?;
        let row = rows.iter().find(|row| row["sandbox"] == id);
        Ok(row.and_then(|row| Some(row["state"].as_str()?.to_owned())))
    }

    pub fn is_there(&self, id: &str) -> Result<bool> {
        Ok(self.state_of(id)?.is_some())
    }

    pub fn checkpoints(&self, id: &str) -> Result<BTreeMap<String, bool>> {
        let list = self.ask(&["sandbox", "checkpoints", id, "--json"])?;
        let list: Vec<Value> = serde_json::from_str(&list)?;
        let row = |row: &Value| {
            let name = row["checkpoint"].as_str()?.to_owned();
            Some((name, row["durable"] == true))
        };
        Ok(list.iter().filter_map(row).collect())
    }

    /// A call that dies at a point.
    pub fn dies(&self, point: &str, words: &[&str]) -> Result<()> {
        let output = self.met(point, words)?;
        ensure!(
            output.status.signal() == Some(9),
            "{words:?} did not die at `{point}`: {}",
            output.tail()
        );
        Ok(())
    }

    /// A call in which some process dies at a point.
    pub fn met(&self, point: &str, words: &[&str]) -> Result<Output> {
        let (output, met) = self.may_meet(point, words)?;
        self.was_met(point, &met, &output)?;
        Ok(output)
    }

    /// A call in which, or after which, some process dies at a point; and the file that says so.
    pub fn may_meet(&self, point: &str, words: &[&str]) -> Result<(Output, PathBuf)> {
        let met = self.fixture.folder.with_file_name("met");
        let _ = fs::remove_file(&met);
        let call = self.env.call(self.fixture);
        let call = call
            .variable("RINGFENCE_FAIL", point)
            .variable("RINGFENCE_FAIL_MET", &met.to_string_lossy());
        Ok((call.live(words)?.finish()?, met))
    }

    pub fn was_met(&self, point: &str, met: &Path, output: &Output) -> Result<()> {
        let said = fs::read_to_string(met).unwrap_or_default();
        ensure!(said == point, "`{point}` was not met: {}", output.tail());
        Ok(())
    }

    /// That what runs in the background still runs.
    pub fn ticks(&self, id: &str) -> Result<()> {
        self.exec(id, TICKS).map(drop).context("it stands still")
    }

    /// After a death: one look settles everything, a second changes nothing.
    pub fn settled(&self) -> Result<Kept> {
        self.status()?;
        self.quiet("settle")?;
        let once = self.kept()?;
        once.is_honest()?;
        self.status()?;
        let twice = self.kept()?;
        ensure!(
            once == twice,
            "the second look changed something:\n{once:#?}\n{twice:#?}"
        );
        Ok(once)
    }

    /// And `gc` leaves nothing that nobody knows.
    pub fn swept(&self) -> Result<()> {
        self.ask(&["gc"])?;
        self.kept()?.is_complete()
    }

    /// Nor anything for the next one to do.
    fn swept_for_good(&self) -> Result<()> {
        self.swept()?;
        let more = self.ask(&["gc", "--json"])?;
        ensure!(more == "[]", "`gc` finds more the second time: {more}");
        Ok(())
    }

    /// The rows of a copy of the store: the store itself belongs to somebody else.
    pub fn kept(&self) -> Result<Kept> {
        let kept = kept(&self.fixture.state)?;
        let mut known = self.known.lock().expect("nobody panicked");
        known.extend(kept.sandboxes.keys().cloned());
        Ok(kept)
    }

    /// Processes in sandboxes of this home, by a variable that all of them have.
    fn inside(&self) -> Vec<u32> {
        let mark = format!("{}\0", mark(self.fixture));
        let is_marked = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.windows(mark.len()).any(|part| part == mark.as_bytes()))
        };
        numbers().filter(is_marked).collect()
    }

    /// Waits until no process of this home has this word in its command line.
    pub fn quiet(&self, word: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let found = processes(&self.fixture.state, word);
            if found.is_empty() {
                return Ok(());
            }
            ensure!(began.elapsed() < SOON, "still there: {found:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes everything; then nothing of this home may run, be mounted, or hold a cgroup.
    pub fn end(&self) -> Result<()> {
        let all = self.kept()?.sandboxes;
        for id in all.keys() {
            self.remove(id)?;
        }
        self.quiet("settle")?;
        self.quiet("keep")?;
        let left = self.inside();
        ensure!(left.is_empty(), "left running: {left:?}");
        let known = self.known.lock().expect("nobody panicked");
        for group in cgroups(Path::new("/sys/fs/cgroup"), 6) {
            let of_us = known.iter().any(|id| group.ends_with(id.as_str()));
            ensure!(!of_us, "the cgroup `{group}` is left");
        }
        drop(known);
        self.swept_for_good()
    }
}

/// See [`Scene::kept`].
pub fn kept(state: &Path) -> Result<Kept> {
    let copy = tempfile::tempdir()?;
    let target = copy.path().join("home");
    let home = Home::open(Some(target.clone()))?;
    for entry in fs::read_dir(state)? {
        let path = entry?.path();
        let name = path.file_name().context("no name")?.to_owned();
        let log = format!("{}-wal", home.store().display());
        if target.join(&name) == home.store() || target.join(&name) == Path::new(&log) {
            fs::copy(&path, target.join(&name))?;
        }
    }
    let store = Store::open(&home)?;
    let mut kept = Kept::default();
    for record in store.sandboxes()? {
        let (state, intent) = (record.state, &record.intent);
        let named: Vec<_> = store.checkpoints(record.id)?;
        let text = format!("{state:?} {intent:?} {:?} {named:?}", record.head);
        if state == SandboxState::Making || intent.is_some() {
            bail!("sandbox {} is half done: {text}", record.id);
        }
        kept.sandboxes.insert(record.id.to_string(), text);
        for layer in named.iter().filter_map(|named| named.layer) {
            ensure!(store.layer(layer)?.is_some_and(|layer| layer.sealed));
        }
        store.stack(record.head)?;
    }
    for layer in store.layers()? {
        let text = if layer.sealed { "sealed" } else { "making" };
        kept.layers.insert(layer.id.to_string(), text.to_owned());
    }
    let word = |state: SourceState| state.as_str().to_owned();
    for base in store.bases()? {
        kept.bases.insert(base.id.to_string(), word(base.state));
    }
    for mirror in store.mirrors()? {
        let id = mirror.id.to_string();
        kept.mirrors.insert(id, word(mirror.state));
    }
    for parent in ["sandboxes", "layers", "bases", "mirrors"] {
        for entry in fs::read_dir(state.join(parent))? {
            let entry = entry?;
            let name = format!("{parent}/{}", entry.file_name().to_string_lossy());
            if parent == "sandboxes" {
                for below in fs::read_dir(entry.path())? {
                    let below = below?.file_name();
                    kept.listed
                        .insert(format!("{name}/{}", below.to_string_lossy()));
                }
            }
            kept.listed.insert(name);
        }
    }
    Ok(kept)
}

impl Kept {
    /// No row without what it stands for.
    fn is_honest(&self) -> Result<()> {
        for (parent, rows) in self.tables() {
            for (id, state) in rows {
                let there = self.listed.contains(&format!("{parent}/{id}"));
                ensure!(there || state == "making", "{parent}/{id} is not there");
            }
        }
        Ok(())
    }

    /// Nothing without a row, and nothing half made, but what was fetched so far.
    fn is_complete(&self) -> Result<()> {
        self.is_honest()?;
        for name in self.listed.iter().filter(|name| !name.ends_with(".lock")) {
            let mut parts = name.split('/');
            let (parent, id) = (parts.next(), parts.next().unwrap_or_default());
            let known = self
                .tables()
                .into_iter()
                .any(|(table, rows)| Some(table) == parent && rows.contains_key(id));
            ensure!(known, "no row knows {name}");
            ensure!(!name.contains("discarded-"), "{name} is left");
        }
        for (parent, rows) in self.tables() {
            let half = rows.iter().find(|(_, state)| *state == "making");
            ensure!(half.is_none() || parent == "mirrors", "{parent}: {half:?}");
        }
        Ok(())
    }

    fn tables(&self) -> [(&'static str, &BTreeMap<String, String>); 4] {
        [
            ("sandboxes", &self.sandboxes),
            ("layers", &self.layers),
            ("bases", &self.bases),
            ("mirrors", &self.mirrors),
        ]
    }
}

/// Processes that were started by `ringfence` for this home, with this word.
pub fn processes(state: &Path, word: &str) -> Vec<u32> {
    let home = format!("RINGFENCE_HOME={}\0", state.display());
    let is_ours = |pid: &u32| {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let words = read("cmdline");
        words.split(|&b| b == 0).nth(1) == Some(word.as_bytes())
            && read("environ")
                .windows(home.len())
                .any(|part| part == home.as_bytes())
    };
    numbers().filter(is_ours).collect()
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub fn cgroups(directory: &Path, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("ringfence-") {
            found.push(name);
        } else if depth > 0 {
            found.extend(cgroups(&entry.path(), depth - 1));
        }
    }
    found
}
