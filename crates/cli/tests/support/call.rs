//! A call of `ringfence` that a test wants to be a little different: with other variables, input,
//! folder or surroundings, or watched while it runs.

use std::io::{BufRead as _, BufReader, Read, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::{
    Fixture, LEAK_A_DESCRIPTOR, LOOK_SECONDS, Mode, NOBODY, Output, PATH, RUN_SECONDS, Sandboxed,
    become_owner, last_object, read_back,
};

impl Sandboxed {
    /// A call that is not made yet.
    pub fn call<'a>(&'a self, fixture: &'a Fixture) -> Call<'a> {
        Call {
            env: self,
            fixture,
            before: Vec::new(),
            owner: become_owner(fixture.mode),
            within: Vec::new(),
            variables: Vec::new(),
            folder: fixture.folder.clone(),
            input: Vec::new(),
        }
    }

    /// `ringfence run --json` with these options, of a shell command. It must give a result.
    pub fn run_with(&self, fixture: &Fixture, options: &[&str], shell: &str) -> Result<Value> {
        self.call(fixture).run(options, shell)
    }

    /// A command about runs that are over. It must succeed.
    pub fn look(&self, fixture: &Fixture, words: &[&str]) -> Result<String> {
        let output = self.ringfence(fixture, LOOK_SECONDS, words)?;
        ensure!(output.status.success(), "{words:?}: {}", output.tail());
        Ok(output.stdout)
    }

    /// The runs that `ringfence list` knows, the newest first.
    pub fn runs(&self, fixture: &Fixture, more: &[&str]) -> Result<Vec<Value>> {
        let words = [&["list", "--json"], more].concat();
        Ok(serde_json::from_str(&self.look(fixture, &words)?)?)
    }

    /// A program of the fixture's owner, outside any sandbox and with nothing in its environment.
    pub fn as_owner(&self, fixture: &Fixture, cwd: &Path, words: &[&str]) -> Result<String> {
        let mut line = become_owner(fixture.mode);
        line.extend(words.iter().map(|word| (*word).to_owned()));
        let output = Command::new(&line[0])
            .args(&line[1..])
            .current_dir(cwd)
            .env_clear()
            .envs([("PATH", PATH), ("LANG", "C.UTF-8")])
            .env("HOME", &self.home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .with_context(|| format!("cannot run {words:?}"))?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A file in the folder, made by its owner.
    pub fn put(&self, fixture: &Fixture, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = fixture.folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {path:?}"))?;
        let owner = std::fs::metadata(&fixture.folder)?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        Ok(path)
    }

    /// `git` as the fixture's owner.
    pub fn git(&self, fixture: &Fixture, cwd: &Path, words: &[&str]) -> Result<String> {
        let line: Vec<&str> = GIT.iter().chain(words).copied().collect();
        self.as_owner(fixture, cwd, &line)
    }
}

const GIT: [&str; 9] = [
    "git",
    // It would run in the background, and outlive the test.
    "-c",
    "maintenance.auto=false",
    "-c",
    "user.name=Fixture",
    "-c",
    "user.email=fixture@example.org",
    "-c",
    "protocol.file.allow=always",
];

/// Ids that nobody on a machine has.
const SUBORDINATE: &str = "caller:1200000000:65536\n";

/// See [`Sandboxed::call`].
#[derive(Debug)]
pub struct Call<'a> {
    env: &'a Sandboxed,
    fixture: &'a Fixture,
    before: Vec<String>,
    owner: Vec<String>,
    within: Vec<String>,
    variables: Vec<(String, String)>,
    folder: PathBuf,
    input: Vec<u8>,
}

impl Call<'_> {
    /// Words that stand before everything else, and run as the tester.
    pub fn before(mut self, words: &[&str]) -> Self {
        self.before
            .extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Called by somebody who has a name and subordinate ids: in a view of `/etc` of its own.
    /// `directory` is where the files of that are made. Needs root.
    pub fn with_ids(mut self, directory: &Path) -> Result<Self> {
        let passwd = std::fs::read_to_string("/etc/passwd")?;
        let own = format!("{passwd}caller:x:{NOBODY}:{NOBODY}::/nonexistent:/bin/false\n");
        std::fs::create_dir_all(directory)?;
        for (name, text) in [
            ("passwd", own.as_str()),
            ("subuid", SUBORDINATE),
            ("subgid", SUBORDINATE),
        ] {
            std::fs::write(directory.join(name), text)?;
        }
        let owner = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            "for name in passwd subuid subgid; do mount --bind \"$1/$name\" /etc/$name || exit 90; done; \
             shift; exec \"$@\"",
            "sh",
            &directory.to_string_lossy(),
            "setpriv",
            "--clear-groups",
            "--inh-caps=-all",
            &format!("--reuid={NOBODY}"),
            &format!("--regid={NOBODY}"),
            "--",
        ];
        self.owner = owner.map(str::to_owned).to_vec();
        Ok(self)
    }

    /// Words directly before `ringfence`, run as the fixture's owner.
    pub fn within(mut self, words: &[&str]) -> Self {
        self.within
            .extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The current directory.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = folder.to_owned();
        self
    }

    /// What stands on standard input.
    pub fn input(mut self, bytes: &[u8]) -> Self {
        self.input = bytes.to_vec();
        self
    }

    /// The command line, to be started by somebody else.
    pub fn command(&self, first: &[&str], words: &[&str]) -> Command {
        settle();
        let mut line: Vec<String> = first.iter().map(|word| (*word).to_owned()).collect();
        line.extend(self.before.iter().cloned());
        line.extend(self.owner.iter().cloned());
        line.extend(LEAK_A_DESCRIPTOR.map(str::to_owned));
        line.extend(self.within.iter().cloned());
        let mut command = Command::new(&line[0]);
        self.env.surround(&mut command, &self.folder);
        command
            .args(&line[1..])
            .arg(&self.env.binary)
            .args(words)
            .env("RINGFENCE_HOME", &self.fixture.state)
            .env("TMPDIR", std::env::temp_dir())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Calls and waits.
    pub fn finish(&self, words: &[&str]) -> Result<Output> {
        let seconds = RUN_SECONDS.to_string();
        let mut command = self.command(&["timeout", "--kill-after=5", &seconds], words);
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut stdin = tempfile::tempfile()?;
        stdin.write_all(&self.input)?;
        stdin.rewind()?;
        let status = command
            .stdin(stdin)
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .status()
            .with_context(|| format!("cannot run {command:?}"))?;
        let output = Output::of(status, read_back(&mut stdout)?, read_back(&mut stderr)?);
        ensure!(!output.hung(), "{words:?} hangs: {}", output.tail());
        Ok(output)
    }

    /// `ringfence run --json` with these options, of a shell command. It must give a result.
    pub fn run(&self, options: &[&str], shell: &str) -> Result<Value> {
        let output = self.finish(&run_words(&self.mark(), options, shell))?;
        output
            .json
            .clone()
            .with_context(|| format!("`{shell}` gives no result: {}", output.tail()))
    }

    /// The same, not waited for.
    pub fn run_live(&self, options: &[&str], shell: &str) -> Result<Live> {
        self.live(&run_words(&self.mark(), options, shell))
    }

    fn mark(&self) -> String {
        format!("RF_MARK={}", self.env.mark(self.fixture))
    }

    /// Calls and stays at its side.
    pub fn live(&self, words: &[&str]) -> Result<Live> {
        let mut command = self.command(&[], words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let (sender, said) = channel();
        pass_on(child.stdout.take(), From::Stdout, sender.clone());
        pass_on(child.stderr.take(), From::Stderr, sender);
        Ok(Live {
            stdin: child.stdin.take(),
            child,
            said,
            stdout: String::new(),
            stderr: String::new(),
        })
    }
}

/// Waits for the tick after now, so that what was made for a test is older than its run. Whether
/// a run can tell the two apart within one tick has a test of its own.
fn settle() {
    let now = clock_gettime(ClockId::Realtime);
    loop {
        let tick = clock_gettime(ClockId::RealtimeCoarse);
        if (tick.tv_sec, tick.tv_nsec) > (now.tv_sec, now.tv_nsec) {
            return;
        }
        // BOUND: a tick is one to ten milliseconds.
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn run_words<'a>(mark: &'a str, options: &[&'a str], shell: &'a str) -> Vec<&'a str> {
    [
        &["run", "--json", "--env", mark],
        options,
        &["--", "sh", "-c", shell],
    ]
    .concat()
}

#[derive(Clone, Copy, Debug)]
enum From {
    Stdout,
    Stderr,
}

fn pass_on(stream: Option<impl Read + Send + 'static>, from: From, to: Sender<(From, String)>) {
    let Some(stream) = stream else { return };
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            if to.send((from, text)).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// A `ringfence` that runs. It is killed when this is dropped.
#[derive(Debug)]
pub struct Live {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<(From, String)>,
    stdout: String,
    stderr: String,
}

impl Live {
    /// Waits until it, or the command inside, says this on a line of its own.
    pub fn until(&mut self, word: &str) -> Result<()> {
        self.until_line(word, |line| line == word)
    }

    /// Waits until it says a line that has this in it.
    pub fn until_having(&mut self, words: &str) -> Result<()> {
        self.until_line(words, |line| line.contains(words))
    }

    fn until_line(&mut self, what: &str, meant: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = deadline();
        while let Some(line) = self.hear(deadline)? {
            if meant(line.trim_end()) {
                return Ok(());
            }
        }
        bail!("it ended without `{what}`: {}{}", self.stdout, self.stderr)
    }

    pub fn say(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input is closed")?;
        Ok(stdin.write_all(text.as_bytes())?)
    }

    /// The number of the `ringfence` process itself: all words before it become it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("no pid")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<Output> {
        self.stdin = None;
        let deadline = deadline();
        while self.hear(deadline)?.is_some() {}
        let status: ExitStatus = self.child.wait()?;
        Ok(Output::of(
            status,
            std::mem::take(&mut self.stdout),
            std::mem::take(&mut self.stderr),
        ))
    }

    fn hear(&mut self, deadline: Instant) -> Result<Option<String>> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.said.recv_timeout(left) {
            Ok((From::Stdout, line)) => {
                self.stdout.push_str(&line);
                Ok(Some(line))
            }
            Ok((From::Stderr, line)) => {
                self.stderr.push_str(&line);
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("it hangs after: {}{}", self.stdout, self.stderr)
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(RUN_SECONDS.into())
}

impl Output {
    fn of(status: ExitStatus, stdout: String, stderr: String) -> Self {
        Self {
            status,
            json: last_object(&stdout),
            stdout,
            stderr,
        }
    }

    /// The exit code, with what was said where it is another.
    pub fn exits(&self, code: i32) -> Result<()> {
        ensure!(
            self.status.code() == Some(code),
            "exit {:?} instead of {code}: {}",
            self.status.code(),
            self.tail()
        );
        Ok(())
    }
}

/// Runs a check in a fresh fixture of each mode, all modes at the same time, and says which of them fail.
pub fn in_each_mode(
    name: &str,
    check: impl Fn(&Sandboxed, &Fixture) -> Result<()> + Sync,
) -> Result<()> {
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence"))?;
    let in_mode = &|mode: Mode| check_in_mode(&env, name, mode, &check);
    std::thread::scope(|scope| {
        let modes = Mode::available().into_iter();
        let running: Vec<_> = modes
            .map(|mode| scope.spawn(move || in_mode(mode)))
            .collect();
        let results = running.into_iter().map(|running| match running.join() {
            Ok(checked) => checked,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        all_succeeded(results)
    })
}

/// The same, one mode after the other: for checks that measure memory, processes or time.
pub fn in_each_mode_in_turn(
    name: &str,
    check: impl Fn(&Sandboxed, &Fixture) -> Result<()>,
) -> Result<()> {
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence"))?;
    let modes = Mode::available().into_iter();
    all_succeeded(modes.map(|mode| check_in_mode(&env, name, mode, &check)))
}

fn check_in_mode(
    env: &Sandboxed,
    name: &str,
    mode: Mode,
    check: impl Fn(&Sandboxed, &Fixture) -> Result<()>,
) -> Result<()> {
    let fixture = env.fixture(name, mode)?;
    let checked = check(env, &fixture).with_context(|| format!("{mode:?}"));
    env.discard(&fixture);
    checked
}

fn all_succeeded(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    let failures: Vec<String> = results
        .filter_map(Result::err)
        .map(|error| format!("{error:#}"))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Fails with both sides and the whole result where a field is something else.
pub fn expect(result: &Value, field: &str, expected: impl Into<Value>) -> Result<()> {
    let expected = expected.into();
    ensure!(
        result[field] == expected,
        "`{field}` is {} instead of {expected} in {result}",
        result[field]
    );
    Ok(())
}

/// What the command printed on standard output, as far as the result has it.
pub fn said(result: &Value) -> &str {
    result["stdout"]["head"].as_str().unwrap_or_default()
}

/// The bytes of the patch.
pub fn patch(result: &Value) -> Result<Vec<u8>> {
    let path = result["patch"].as_str().context("no patch is named")?;
    std::fs::read(path).with_context(|| format!("cannot read `{path}`"))
}
