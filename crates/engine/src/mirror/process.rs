//! The git program, run on directories of ours, with an environment that we chose.
//!
//! Two ways: [`Git::network`] may reach a remote and hears the user's own git settings, because
//! credentials and proxies come from there; [`Git::local`] hears no settings at all.
//!
//! INVARIANT: credentials of an address go to git by a credential helper that reads two environment
//! variables. They are in no argument, no file and no message; helpers of the user are switched
//! off for that call, so that none of them keeps what it is told.
//!
//! INVARIANT: a git that writes to what a lock guards holds that lock itself, as its standard input.
//! It may outlive us; nobody else writes there before it ends.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Progress;
use super::stall;
use crate::lock::FileLock;
use crate::source::{Credentials, Dial, Typed};

/// BOUND: what git says of refs; a million of them.
const OUTPUT_BYTES: u64 = 256 << 20;
/// BOUND: one line of what git tells a person.
const LINE_BYTES: usize = 300;
/// BOUND: the lines that are kept for an error.
const KEPT_LINES: usize = 6;
/// BOUND: percent lines passed on in one call.
const PROGRESS_LINES: usize = 5000;

/// What of the caller's environment git and ssh need to reach a remote.
const PASSED: [&str; 26] = [
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_CONFIG_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "SSH_ASKPASS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "TMPDIR",
];

/// BOUND: git reports every second while something arrives. A server that counts the objects of a
/// huge repository may be silent for minutes.
const STALL: Duration = Duration::from_secs(600);

/// Where the user named no command of his own: ssh that asks nobody, gives up on a host that does not
/// answer, and notices one that went away.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=30 \
     -o ServerAliveCountMax=4";

const HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
     \"$RINGFENCE_GIT_USER\" \"$RINGFENCE_GIT_PASSWORD\"; }; f";

/// Why git gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot start git")]
    Start(#[source] io::Error),
    #[error("cannot hear what git says")]
    Hear(#[source] io::Error),
    #[error("git said more than {OUTPUT_BYTES} bytes")]
    TooMuch,
    #[error("git said nothing for {minutes} minutes and was stopped")]
    Stalled { minutes: u64 },
    #[error("git failed: {said}")]
    Failed {
        /// The last lines of its messages, without secrets.
        said: String,
    },
}

/// One call of git.
#[derive(Debug)]
pub(crate) struct Git {
    command: Command,
    settings: Vec<(String, String)>,
    credentials: Option<Credentials>,
    lock: Option<io::Result<OwnedFd>>,
    stall: Option<Duration>,
}

impl Git {
    /// A call that may reach a remote.
    pub fn network(typed: &Typed) -> Self {
        let mut git = Self::users();
        git.stall = Some(STALL);
        git.command
            .env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh");
        // The user's own settings may turn any address into one of ssh.
        if !typed.source.is_local() && !names_ssh() {
            git.command.env("GIT_SSH_COMMAND", SSH);
        }
        if let Dial::Submodule { pin } = &typed.dial {
            // Also switches off the alternates that a dumb server names.
            git.set("http.followRedirects", "false");
            if let Some(pin) = pin {
                git.set("http.curloptResolve", pin);
            }
        }
        // BOUND: a remote that sends less than 100 bytes a second for two minutes is stuck.
        git.set("http.lowSpeedLimit", "100");
        git.set("http.lowSpeedTime", "120");
        if let (Some(credentials), Some(origin)) = (&typed.credentials, typed.source.http_origin())
        {
            match &credentials.password {
                Some(password) => {
                    // An empty one forgets all helpers named before.
                    git.set("credential.helper", "");
                    git.set(&format!("credential.{origin}.helper"), HELPER);
                    git.command
                        .env("RINGFENCE_GIT_USER", &credentials.user)
                        .env("RINGFENCE_GIT_PASSWORD", password);
                }
                None => git.set(&format!("credential.{origin}.username"), &credentials.user),
            }
            git.credentials = Some(credentials.clone());
        }
        git
    }

    /// A call that hears the user's settings.
    pub fn users() -> Self {
        let mut git = Self::new();
        for name in PASSED {
            if let Some(value) = std::env::var_os(name) {
                git.command.env(name, value);
            }
        }
        git
    }

    /// A call that stays on directories of ours and hears no settings of anybody.
    pub fn local() -> Self {
        let mut git = Self::new();
        git.command
            .env("HOME", "/nonexistent")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_ALLOW_PROTOCOL", "");
        git
    }

    fn new() -> Self {
        let mut command = Command::new("git");
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command
            .env_clear()
            .env("PATH", path)
            .env("LANG", "C.UTF-8")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_OPTIONAL_LOCKS", "0");
        let mut git = Self {
            command,
            settings: Vec::new(),
            credentials: None,
            lock: None,
            stall: None,
        };
        git.set("core.hooksPath", "/dev/null");
        git.set("core.fsmonitor", "false");
        git.set("protocol.ext.allow", "never");
        git.set("gc.auto", "0");
        git.set("maintenance.auto", "false");
        git.set("advice.detachedHead", "false");
        git
    }

    fn set(&mut self, key: &str, value: &str) {
        self.settings.push((key.to_owned(), value.to_owned()));
    }

    /// A setting for this call, which is in no argument.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.set(key, value);
        self
    }

    /// The repository to work on.
    pub fn at(mut self, git_dir: &Path) -> Self {
        self.command.env("GIT_DIR", git_dir).current_dir(git_dir);
        self
    }

    /// Git holds the lock as well, for as long as it lives.
    pub fn holding(mut self, lock: &FileLock) -> Self {
        self.lock = Some(lock.share());
        self
    }

    /// No repository: run in a directory, looking no further up.
    pub fn nowhere(mut self, directory: &Path) -> Self {
        if let Some(parent) = directory.parent() {
            self.command.env("GIT_CEILING_DIRECTORIES", parent);
        }
        self.command.current_dir(directory);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn args<I: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = I>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Runs it to its end; gives what it wrote. Percent lines go to `progress`.
    pub fn run(mut self, progress: &mut dyn Progress) -> Result<Vec<u8>, ProcessError> {
        self.say_settings();
        let stdin = match self.lock.take() {
            Some(lock) => Stdio::from(lock.map_err(ProcessError::Start)?),
            None => Stdio::null(),
        };
        self.command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(ProcessError::Start)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let written = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&written);
        let reader = std::thread::spawn(move || match stdout {
            Some(stdout) => read_output(stdout, &count),
            None => Ok(Vec::new()),
        });
        let mut ear = Ear::new(self.credentials.as_ref(), progress);
        let heard = stderr.map_or(Ok(()), |stderr| ear.listen(stderr, self.stall, &written));
        if let Err(error @ ProcessError::Stalled { .. }) = heard {
            // The reader ends with the last of them.
            stop(&mut child);
            return Err(error);
        }
        let said = ear.kept.join("; ");
        let output = match reader.join() {
            Ok(output) => output.map_err(ProcessError::Hear)?,
            Err(_) => return Err(ProcessError::Hear(io::ErrorKind::Other.into())),
        };
        if output.len() as u64 > OUTPUT_BYTES {
            stop(&mut child);
            return Err(ProcessError::TooMuch);
        }
        let status = child.wait().map_err(ProcessError::Hear)?;
        heard?;
        if status.success() {
            return Ok(output);
        }
        let said = if said.is_empty() {
            status.to_string()
        } else {
            said
        };
        Err(ProcessError::Failed { said })
    }

    /// Starts it, to be asked and answered by pipes; what it tells a person is lost.
    pub fn converse(mut self) -> Result<Child, ProcessError> {
        self.say_settings();
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // What interrupts us is not meant for it; it ends when nobody asks any more.
            .process_group(0);
        self.command.spawn().map_err(ProcessError::Start)
    }

    fn say_settings(&mut self) {
        for (number, (key, value)) in self.settings.iter().enumerate() {
            self.command
                .env(format!("GIT_CONFIG_KEY_{number}"), key)
                .env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        let count = self.settings.len().to_string();
        self.command.env("GIT_CONFIG_COUNT", count);
    }

    /// Runs it where nobody watches; whether it succeeded and what it wrote.
    pub fn quiet(self) -> Result<Vec<u8>, ProcessError> {
        self.run(&mut super::Silent)
    }
}

/// Reads all that git writes, and counts it on the way.
fn read_output(stdout: ChildStdout, count: &AtomicU64) -> io::Result<Vec<u8>> {
    let mut stdout = stdout.take(OUTPUT_BYTES + 1);
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    loop {
        match stdout.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        count.store(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Whether the user says himself how ssh is started.
fn names_ssh() -> bool {
    let set = |name: &&str| std::env::var_os(name).is_some();
    ["GIT_SSH_COMMAND", "GIT_SSH"].iter().any(set)
        || Git::users()
            .nowhere(Path::new("/"))
            .args(["config", "--get", "core.sshCommand"])
            .quiet()
            .is_ok()
}

/// Ends git and whatever it started.
fn stop(child: &mut Child) {
    stall::kill_below(child.id());
    // It may have ended by itself; either way `wait` does not block.
    let _ = child.kill();
    let _ = child.wait();
}

/// Listens to git's messages: percent lines are passed on, the last others are kept.
///
/// HOSTILE: a remote's own words come here too (`remote: …`), so control characters go.
struct Ear<'a> {
    credentials: Option<&'a Credentials>,
    progress: &'a mut dyn Progress,
    kept: Vec<String>,
    passed: usize,
    last: String,
}

impl<'a> Ear<'a> {
    fn new(credentials: Option<&'a Credentials>, progress: &'a mut dyn Progress) -> Self {
        Self {
            credentials,
            progress,
            kept: Vec::new(),
            passed: 0,
            last: String::new(),
        }
    }

    /// Until there is no more, or until nothing came for too long.
    fn listen(
        &mut self,
        mut stderr: ChildStderr,
        bound: Option<Duration>,
        written: &AtomicU64,
    ) -> Result<(), ProcessError> {
        let mut before = 0;
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            if let Some(bound) = bound
                && !stall::wait(&stderr, bound).map_err(ProcessError::Hear)?
            {
                // Some report where they write.
                let now = written.load(Ordering::Relaxed);
                if now == before {
                    return Err(ProcessError::Stalled {
                        minutes: bound.as_secs() / 60,
                    });
                }
                before = now;
                continue;
            }
            let length = match stderr.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ProcessError::Hear(error)),
            };
            for &byte in &chunk[..length] {
                match byte {
                    b'\r' | b'\n' => self.line(&std::mem::take(&mut line)),
                    _ if line.len() < LINE_BYTES => line.push(byte),
                    _ => {}
                }
            }
        }
        self.line(&line);
        Ok(())
    }

    fn line(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.replace(char::is_control, " ");
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let text = match self.credentials {
            Some(credentials) => credentials.redact(text),
            None => text.to_owned(),
        };
        if let Some(end) = text.find('%') {
            // Only what a person can see change.
            let head = text[..=end].to_owned();
            if head != self.last && self.passed < PROGRESS_LINES {
                self.passed += 1;
                self.progress.say(&text);
                self.last = head;
            }
            return;
        }
        if self.kept.len() == KEPT_LINES {
            self.kept.remove(0);
        }
        self.kept.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Progress for Lines {
        fn say(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }
    }

    #[test]
    fn percent_lines_are_passed_on_and_others_kept_without_secrets() {
        let typed = source::parse("https://u:sesame@example.org/a").unwrap();
        let mut lines = Lines::default();
        let mut ear = Ear::new(typed.credentials.as_ref(), &mut lines);
        for line in [
            "Receiving objects:  10% (1/10)",
            "Receiving objects:  10% (1/10), 1 MiB",
            "Receiving objects:  20% (2/10)",
            "",
            "fatal: \u{1b}[31m https://u:sesame@example.org/a",
        ] {
            ear.line(line.as_bytes());
        }
        for number in 0..20 {
            ear.line(format!("line {number}").as_bytes());
        }
        assert_eq!(ear.kept.len(), KEPT_LINES);
        ear.kept.clear();
        ear.line(b"fatal: \x1b[31m https://u:sesame@example.org/a");
        assert_eq!(ear.kept, ["fatal:  [31m https://…@example.org/a"]);
        assert_eq!(lines.0.len(), 2);
    }

    #[test]
    fn nothing_secret_is_an_argument() {
        let typed = source::parse("https://user:sesame@example.org/a").unwrap();
        let git = Git::network(&typed).args(["fetch", "https://example.org/a"]);
        let arguments: Vec<_> = git.command.get_args().collect();
        assert!(!format!("{arguments:?}").contains("sesame"));
        assert!(
            git.settings
                .iter()
                .all(|(_, value)| !value.contains("sesame"))
        );
        assert!(
            git.settings
                .iter()
                .any(|(key, _)| key == "credential.https://example.org.helper")
        );
    }

    #[test]
    fn a_silent_remote_is_given_up_and_nothing_stays_behind() {
        let directory = tempfile::tempdir().unwrap();
        let typed = source::parse("ssh://git@example.invalid/a").unwrap();
        let pid = directory.path().join("pid");
        let command = format!("echo $$ > {}; exec sleep 1000; :", pid.display());
        let mut git = Git::network(&typed)
            .nowhere(directory.path())
            .env("GIT_SSH_COMMAND", command)
            .args(["ls-remote", "--", "ssh://git@example.invalid/a"]);
        git.stall = Some(Duration::from_secs(1));
        let error = git.quiet().unwrap_err();
        assert!(matches!(error, ProcessError::Stalled { .. }), "{error:?}");
        let pid = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let began = std::time::Instant::now();
        // Gone, or dead and not yet collected; a kill takes its moment.
        while std::fs::read_to_string(&stat).is_ok_and(|state| !state.contains(") Z ")) {
            assert!(began.elapsed() < Duration::from_secs(20), "{pid} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn ssh_has_bounds_unless_the_user_has_a_command() {
        let ssh = |text: &str| {
            let git = Git::network(&source::parse(text).unwrap());
            let mut found = git.command.get_envs();
            found
                .find(|(name, _)| *name == "GIT_SSH_COMMAND")
                .and_then(|(_, value)| Some(value?.to_string_lossy().into_owned()))
        };
        if names_ssh() {
            println!("SKIPPED the bounds of ssh: there is a command in the settings");
            return;
        }
        let command = ssh("git@example.org:a").unwrap();
        assert!(command.contains("ConnectTimeout=30"), "{command}");
        assert!(command.contains("BatchMode=yes"), "{command}");
        assert_eq!(ssh("file:///srv/a"), None);
    }

    #[test]
    fn a_git_that_lives_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        let lock = FileLock::wait(&path, || {}).unwrap();
        let git = Git::local()
            .nowhere(directory.path())
            .holding(&lock)
            .args(["hash-object", "--stdin"]);
        drop(lock);
        assert!(FileLock::is_held(&path).unwrap());
        // It reads as if there were nothing.
        let empty = git.quiet().unwrap();
        assert!(empty.starts_with(b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"));
        assert!(!FileLock::is_held(&path).unwrap());
    }

    #[test]
    fn failures_carry_what_git_said() {
        let directory = tempfile::tempdir().unwrap();
        let error = Git::local()
            .nowhere(directory.path())
            .args(["rev-parse", "--git-dir"])
            .quiet()
            .unwrap_err();
        assert!(
            error.to_string().contains("not a git repository"),
            "{error}"
        );
    }
}
