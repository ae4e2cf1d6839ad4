//! A place to run the real `ringfence` in: own folder, own state, own home, cleared environment,
//! as root or as somebody who is nobody.
//!
//! Everything that an attack could look for is really there on the host side: secrets in the
//! environment and in the home, an inherited descriptor of `/`, listening sockets.

mod call;
mod template;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

#[allow(unused_imports, reason = "each test program uses its own part")]
pub use call::{Call, Live, expect, in_each_mode, in_each_mode_in_turn, patch, said};

/// Nobody's id: no entry in `/etc/passwd`, no subordinate ids, no groups.
pub const NOBODY: u32 = 65533;
/// What stands in every secret of the environment.
pub const CANARY: &str = "canary-3f9c2a71";

/// BOUND: far more than any case needs; what takes longer hangs.
pub const RUN_SECONDS: u32 = 240;
/// BOUND: what looks at a finished run is done at once.
pub const LOOK_SECONDS: u32 = 20;

/// Who starts the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Rootless,
    Root,
}

impl Mode {
    /// The modes that this test process can use.
    pub fn available() -> Vec<Self> {
        if is_root() {
            vec![Self::Rootless, Self::Root]
        } else {
            println!(
                "SKIPPED {:?} mode: the tests do not run as root",
                Self::Root
            );
            vec![Self::Rootless]
        }
    }
}

/// Whether a program gets a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    None,
    /// A terminal of its own that is not the first of the machine.
    Own,
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// What a program left.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The last line of stdout that is a JSON object.
    pub json: Option<Value>,
}

impl Output {
    /// `timeout` had to end it.
    pub fn hung(&self) -> bool {
        matches!(self.status.code(), Some(124 | 137))
    }

    /// The end of what it said, for a message.
    pub fn tail(&self) -> String {
        let all = format!("{}\n{}", self.stdout.trim(), self.stderr.trim());
        let lines: Vec<&str> = all.lines().collect();
        lines[lines.len().saturating_sub(6)..].join(" ⏎ ")
    }
}

/// The directory that all tests of a run of `scripts/test` share.
pub fn run_directory() -> Option<PathBuf> {
    std::env::var_os("RINGFENCE_TEST_RUN").map(PathBuf::from)
}

/// Hard-links the program to a place of the test's own, because a debug build has 130 MB. If the place is on another
/// file system, all tests of a run link to one copy there.
fn link_program(program: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(program, to).is_ok() {
        return Ok(());
    }
    let Some(run) = run_directory() else {
        return copy(program, to);
    };
    // Each build of the program gets its own copy.
    let build = fs::metadata(program)?;
    let name = format!("program-{}-{}", build.ino(), build.mtime_nsec());
    let shared = run.join(name);
    if !shared.exists() {
        let making = tempfile::tempdir_in(&run)?;
        let part = making.path().join("program");
        copy(program, &part)?;
        // Not `rename`: it would replace the copy of a faster test, and `link` fails with ENOENT if its source is
        // replaced meanwhile.
        if let Err(error) = fs::hard_link(&part, &shared) {
            ensure!(shared.exists(), "cannot share the program: {error}");
        }
    }
    fs::hard_link(&shared, to).with_context(|| format!("cannot link {shared:?} to {to:?}"))
}

/// Another process writes the copy: a fork in a neighbouring test would hold ours open, and a program that is open for
/// writing cannot be executed.
fn copy(from: &Path, to: &Path) -> Result<()> {
    run_quietly(Command::new("cp").arg(from).arg(to))
}

/// One folder with its own state directory.
#[derive(Debug)]
pub struct Fixture {
    pub name: String,
    pub mode: Mode,
    pub folder: PathBuf,
    pub state: PathBuf,
}

/// The environment of a test.
#[derive(Debug)]
pub struct Sandboxed {
    directory: TempDir,
    binary: PathBuf,
    pub home: PathBuf,
    /// A host file that everybody may read, outside every folder.
    pub secret: PathBuf,
    shared_memory: PathBuf,
    abstract_name: String,
    port: u16,
    _listening: (UnixListener, TcpListener),
}

impl Sandboxed {
    pub fn start(binary: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ringfence-").tempdir()?;
        let top = directory.path().to_owned();
        fs::set_permissions(&top, Permissions::from_mode(0o755))?;

        let copy = top.join("bin/ringfence");
        fs::create_dir(top.join("bin"))?;
        link_program(Path::new(binary), &copy)?;

        let home = top.join("home");
        fs::create_dir_all(home.join(".ssh"))?;
        for name in [
            ".netrc",
            ".npmrc",
            ".git-credentials",
            ".bash_history",
            ".ssh/id_ed25519",
        ] {
            fs::write(home.join(name), CANARY)?;
        }
        let secret = top.join("host-secret");
        fs::write(&secret, CANARY)?;

        let id = std::process::id();
        let serial = top
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        let shared_memory = PathBuf::from(format!("/dev/shm/{serial}"));
        fs::write(&shared_memory, CANARY)?;
        let abstract_name = format!("ringfence-test-{id}-{serial}");
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?;
        let tcp = TcpListener::bind(("127.0.0.1", 0))?;

        Ok(Self {
            port: tcp.local_addr()?.port(),
            directory,
            binary: copy,
            home,
            secret,
            shared_memory,
            abstract_name,
            _listening: (socket, tcp),
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A fresh copy of the folder with an empty state directory, owned by whoever runs it.
    pub fn fixture(&self, name: &str, mode: Mode) -> Result<Fixture> {
        let name = format!("{name}-{mode:?}").to_lowercase();
        let top = self.path(&name);
        fs::create_dir(&top)?;
        let fixture = Fixture {
            folder: top.join("folder"),
            state: top.join("state"),
            name,
            mode,
        };
        run_quietly(
            Command::new("cp")
                .arg("-a")
                .arg(template::made()?)
                .arg(&fixture.folder),
        )?;
        if is_root() && mode == Mode::Rootless {
            let owner = format!("{NOBODY}:{NOBODY}");
            run_quietly(Command::new("chown").args(["-R", &owner]).arg(&top))?;
        }
        Ok(fixture)
    }

    /// Removes what a fixture left, whatever its permissions are.
    pub fn discard(&self, fixture: &Fixture) {
        let top = self.path(&fixture.name);
        let _ = Command::new("chmod")
            .args(["-R", "u+rwX"])
            .arg(&top)
            .stderr(Stdio::null())
            .status();
        let _ = Command::new("rm")
            .arg("-rf")
            .arg(&top)
            .stderr(Stdio::null())
            .status();
    }

    /// The words that stand in a case for what is only known now. `workspace` is where the
    /// folder is for whoever runs the command.
    pub fn fill(&self, command: &str, fixture: &Fixture, workspace: &str) -> String {
        let host_name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let own_name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        command
            .replace("@WS@", workspace)
            .replace("@HOME@", &self.home.to_string_lossy())
            .replace("@STATE@", &fixture.state.to_string_lossy())
            .replace("@FOLDER@", &fixture.folder.to_string_lossy())
            .replace("@SECRET@", &self.secret.to_string_lossy())
            .replace("@CANARY@", CANARY)
            .replace("@ABSTRACT@", &self.abstract_name)
            .replace("@PORT@", &self.port.to_string())
            .replace("@HOSTNAME@", host_name.trim())
            .replace("@COMM@", own_name.trim())
    }

    /// `ringfence` with these words, in the fixture's folder, as the fixture's owner.
    pub fn ringfence(&self, fixture: &Fixture, seconds: u32, words: &[&str]) -> Result<Output> {
        self.ringfence_at(fixture, seconds, Terminal::None, words)
    }

    pub fn ringfence_at(
        &self,
        fixture: &Fixture,
        seconds: u32,
        terminal: Terminal,
        words: &[&str],
    ) -> Result<Output> {
        let mut command = self.program(seconds, &fixture.folder);
        command.args(become_owner(fixture.mode));
        command.args(LEAK_A_DESCRIPTOR);
        if terminal == Terminal::Own {
            command.args(OWN_TERMINAL);
        }
        command
            .env("RINGFENCE_HOME", &fixture.state)
            .env("TMPDIR", std::env::temp_dir());
        finish(command.arg(&self.binary).args(words))
    }

    /// `ringfence run --json` of a shell command, marked so that leftovers can be found.
    pub fn run(&self, fixture: &Fixture, terminal: Terminal, shell: &str) -> Result<Output> {
        let mark = format!("RF_MARK={}", self.mark(fixture));
        let words = ["run", "--json", "--env", &mark, "--", "sh", "-c", shell];
        self.ringfence_at(fixture, RUN_SECONDS, terminal, &words)
    }

    /// A program outside any sandbox with the same environment and the same open descriptors.
    pub fn outside(&self, words: &[&str], terminal: Terminal, cwd: &Path) -> Result<Output> {
        let mut command = self.program(RUN_SECONDS, cwd);
        command.args(LEAK_A_DESCRIPTOR);
        if terminal == Terminal::Own {
            command.args(OWN_TERMINAL);
        }
        finish(command.args(words))
    }

    fn program(&self, seconds: u32, cwd: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds.to_string()]);
        self.surround(&mut command, cwd);
        command
    }

    /// The environment of a careless user: full of secrets.
    fn surround(&self, command: &mut Command, cwd: &Path) {
        command
            .current_dir(cwd)
            .env_clear()
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8")
            .env("HOME", &self.home)
            .env("SSH_AUTH_SOCK", self.path("agent.sock"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/dev/null")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("GIT_AUTHOR_NAME", CANARY);
        for name in [
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "ANTHROPIC_API_KEY",
            "DB_PASSWORD",
        ] {
            command.env(name, CANARY);
        }
    }

    pub fn mark(&self, fixture: &Fixture) -> String {
        let serial = self.directory.path().file_name().unwrap_or_default();
        format!("{}-{}", serial.to_string_lossy(), fixture.name)
    }

    /// Processes of a fixture's runs that are still there one second after the run ended.
    pub fn leftovers(&self, fixture: &Fixture) -> Vec<String> {
        let mark = format!("RF_MARK={}\0", self.mark(fixture));
        // BOUND: the kernel needs a moment to take a killed process away.
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            let found = processes_with(mark.as_bytes());
            if found.is_empty() || Instant::now() > deadline {
                return found;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.shared_memory);
        let _ = Command::new("chmod")
            .args(["-R", "u+rwX"])
            .arg(self.directory.path())
            .stderr(Stdio::null())
            .status();
    }
}

pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Descriptor 9 is `/`, open and inheritable, in every program that is started from here.
pub const LEAK_A_DESCRIPTOR: [&str; 4] = ["sh", "-c", "exec 9</; exec \"$@\"", "sh"];

/// The first free terminal is kept open, so that the program's is not `/dev/pts/0`.
const OWN_TERMINAL: [&str; 3] = [
    "python3",
    "-c",
    "import os,pty,sys; kept=pty.openpty(); sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
];

/// The words that make the rest of a command line run as whoever owns the fixtures of a mode.
fn become_owner(mode: Mode) -> Vec<String> {
    if !is_root() || mode == Mode::Root {
        return Vec::new();
    }
    let mut words = [
        "setpriv",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend([
        format!("--reuid={NOBODY}"),
        format!("--regid={NOBODY}"),
        "--".into(),
    ]);
    words
}

pub fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(())
}

/// Output goes to files: a process that outlives its parent cannot hold a pipe open.
fn finish(command: &mut Command) -> Result<Output> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let status = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    let (stdout, stderr) = (read_back(&mut stdout)?, read_back(&mut stderr)?);
    Ok(Output {
        status,
        json: last_object(&stdout),
        stdout,
        stderr,
    })
}

fn last_object(text: &str) -> Option<Value> {
    text.lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok())
        .find(Value::is_object)
        .or_else(|| serde_json::from_str(text).ok())
}

fn read_back(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn processes_with(mark: &[u8]) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|process| {
            fs::read(process.join("environ"))
                .is_ok_and(|environ| environ.windows(mark.len()).any(|window| window == mark))
        })
        .map(|process| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            format!("{} ({})", process.display(), name.trim())
        })
        .collect()
}

/// Mode with type, size, time of change and a hash of the content.
type Facts = (u32, u64, i64, i64, u64);

/// Everything about a folder that must not change, by path.
pub fn fingerprint(top: &Path) -> Result<BTreeMap<PathBuf, Facts>> {
    let mut found = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        let kind = metadata.file_type();
        let mut hasher = DefaultHasher::new();
        if kind.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else if kind.is_symlink() {
            fs::read_link(&path)?.hash(&mut hasher);
        } else if !kind.is_fifo() && !kind.is_socket() {
            fs::read(&path)?.hash(&mut hasher);
        }
        let facts = (
            metadata.mode(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            hasher.finish(),
        );
        found.insert(path, facts);
    }
    Ok(found)
}
