//! What others have and lack: `docker run` and `bwrap`, as people type them, on the same rows. They are
//! asked for no more than what they are for: to run a command on a folder.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cases::Case;
use crate::controls::{self, Control};
use crate::engine::{Engine, TOOLS, which};
use crate::isolation::{self, AREAS};
use crate::scene::{Log, Seen};
use crate::support::{
    CANARY, Fixture, LEAK_A_DESCRIPTOR, Mode, NOBODY, PATH, Sandboxed, fingerprint,
};

/// Somebody else's command line.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// `docker run --rm -v DIR:/workspace -w /workspace IMAGE sh -c …`, as root of the container.
    Docker,
    /// `bwrap --unshare-all` with the system read-only, as somebody unprivileged.
    Bwrap,
}

impl Peer {
    pub const ALL: [Self; 2] = [Self::Docker, Self::Bwrap];

    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "plain `docker run`",
            Self::Bwrap => "`bwrap`",
        }
    }

    /// Who owns the folder.
    fn mode(self) -> Mode {
        match self {
            Self::Docker => Mode::Root,
            Self::Bwrap => Mode::Rootless,
        }
    }

    /// Its version; what it says depends on it.
    pub fn version(self, engine: &Engine) -> Result<String> {
        match self {
            Self::Docker => {
                let said = engine.docker(&["version", "--format", "{{.Server.Version}}"])?;
                Ok(format!("Docker {}", said.trim()))
            }
            Self::Bwrap => {
                ensure!(which("bwrap").is_some(), "there is no `bwrap`");
                let output = Command::new("bwrap").arg("--version").output()?;
                Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
            }
        }
    }

    fn command(self, engine: &Engine, folder: &Path, shell: &str) -> Command {
        let folder = folder.to_string_lossy().into_owned();
        match self {
            Self::Docker => {
                let volume = format!("{folder}:/workspace");
                let words = [
                    "run",
                    "--rm",
                    "-v",
                    &volume,
                    "-w",
                    "/workspace",
                    TOOLS,
                    "sh",
                    "-c",
                ];
                engine.client(&[&words[..], &[shell]].concat())
            }
            Self::Bwrap => {
                let mut command = Command::new("setpriv");
                command
                    .args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"])
                    .arg(format!("--reuid={NOBODY}"))
                    .arg(format!("--regid={NOBODY}"))
                    .args(["--", "bwrap", "--ro-bind", "/usr", "/usr"])
                    .args([
                        "--symlink",
                        "usr/bin",
                        "/bin",
                        "--symlink",
                        "usr/lib",
                        "/lib",
                    ])
                    .args([
                        "--symlink",
                        "usr/lib64",
                        "/lib64",
                        "--symlink",
                        "usr/sbin",
                        "/sbin",
                    ])
                    .args([
                        "--ro-bind",
                        "/etc",
                        "/etc",
                        "--proc",
                        "/proc",
                        "--dev",
                        "/dev",
                    ])
                    .args(["--tmpfs", "/tmp", "--bind", &folder, "/workspace"])
                    .args(["--chdir", "/workspace", "--unshare-all", "--new-session"])
                    .args(["--die-with-parent", "sh", "-c", shell])
                    .env_clear()
                    .env("PATH", PATH);
                command
            }
        }
    }
}

/// One peer with a folder.
struct Bench<'a> {
    env: &'a Sandboxed,
    engine: &'a Engine,
    peer: Peer,
    fixture: Fixture,
    log: &'a Log,
}

impl Bench<'_> {
    fn run(&self, shell: &str) -> Result<std::process::Output> {
        let typed = self.peer.command(self.engine, &self.fixture.folder, shell);
        // What a careless user has in the environment, and open, is there as well.
        let given = typed.get_envs();
        Command::new(LEAK_A_DESCRIPTOR[0])
            .args(&LEAK_A_DESCRIPTOR[1..])
            .arg(typed.get_program())
            .args(typed.get_args())
            .env_clear()
            .envs(given.filter_map(|(name, value)| Some((name, value?))))
            .env("GITHUB_TOKEN", CANARY)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.peer.name()))
    }
}

type Check = fn(&Bench<'_>) -> Result<Seen>;

/// What is asked of them besides the attacks.
const ROWS: &[(&str, &str, Check)] = &[
    ("command", "streams apart, bytes as they are", streams),
    ("command", "exit codes", codes),
    ("command", "background jobs named and gone", background),
    ("files", "the folder is what it was", folder),
    ("bound", "processes", processes),
];

fn streams(bench: &Bench<'_>) -> Result<Seen> {
    let output = bench.run("echo out; printf 'a\\000\\377'; echo err >&2")?;
    ensure!(output.stdout == b"out\na\0\xff", "{output:?}");
    ensure!(output.stderr == b"err\n", "{output:?}");
    Ok(Seen::Held)
}

fn codes(bench: &Bench<'_>) -> Result<Seen> {
    for code in [0, 42, 255] {
        let output = bench.run(&format!("exit {code}"))?;
        ensure!(output.status.code() == Some(code), "{output:?}");
    }
    Ok(Seen::Held)
}

fn background(bench: &Bench<'_>) -> Result<Seen> {
    // A number that nobody else sleeps.
    let seconds = format!("98{}", std::process::id());
    bench.run(&format!(
        "(setsid sleep {seconds} > /dev/null 2>&1 &); true"
    ))?;
    std::thread::sleep(Duration::from_millis(300));
    let wanted = format!("sleep\0{seconds}\0");
    let is_there = fs::read_dir("/proc")?.flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line == wanted.as_bytes()
    });
    ensure!(!is_there, "still running");
    Ok(Seen::As("gone, not named".to_owned()))
}

fn folder(bench: &Bench<'_>) -> Result<Seen> {
    let before = fingerprint(&bench.fixture.folder)?;
    bench.run("echo x > new.txt; rm a.txt; echo y > .git/hooks/post-checkout")?;
    let after = fingerprint(&bench.fixture.folder)?;
    ensure!(before == after, "it was changed, with its `.git`");
    Ok(Seen::Held)
}

/// BOUND: far above what a build needs, and harmless.
fn processes(bench: &Bench<'_>) -> Result<Seen> {
    let shell = "python3 -c 'import os, signal
pids = []
try:
    for _ in range(6000):
        pid = os.fork()
        if pid == 0: signal.pause()
        pids.append(pid)
    print(\"ALL\")
except OSError: print(\"STOPPED\")
for pid in pids: os.kill(pid, 9)'";
    let output = bench.run(shell)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said.contains("STOPPED"), "6,000 processes: {output:?}");
    Ok(Seen::Held)
}

/// Attacks that say nothing of others, with the reason: no table is worth much that counts these.
const UNFAIR: &[(&str, &str)] = &[
    ("proc-004", "their pid 1 guards nothing"),
    (
        "proc-1",
        "their pid 1 guards nothing, or a root of theirs is meant to be root",
    ),
    ("fs-047", "their root is thrown away, and may be written"),
    ("fs-110", "their root is thrown away, and may be written"),
    ("fs-111", "their root is thrown away, and may be written"),
    ("fs-112", "their root is thrown away, and may be written"),
    ("fs-113", "their root is thrown away, and may be written"),
    ("fs-117", "their root is thrown away, and may be written"),
    ("fs-127", "a root of theirs is meant to be root"),
    ("fs-128", "a root of theirs is meant to be root"),
];
/// Of those, what is about the machine's other processes, privileges and filters all the same.
const FAIR: &[&str] = &["proc-134", "proc-136", "proc-137", "proc-138", "proc-139"];

/// Attacks that are tried against others: not those that could change this machine where they work, nor
/// those that are about a home of ours.
fn is_fair(case: &Case) -> bool {
    let harmless = !matches!(controls::control(&case.id), Control::NotOutside(_));
    let ours = case.command.contains("@STATE@");
    // The tests' engine has no bridge, as an ordinary one has.
    let bridge = matches!(case.id.as_str(), "info-005" | "env-105");
    // Their image has no compiler.
    let compiled = isolation::is_compiled(case);
    let is_unfair = UNFAIR.iter().any(|(begin, _)| case.id.starts_with(begin));
    let fair = !is_unfair || FAIR.contains(&case.id.as_str());
    fair && harmless && !ours && !bridge && !compiled && !case.id.starts_with("tty-")
}

fn attacks(bench: &Bench<'_>, area: &str) -> Result<Seen> {
    let cases = isolation::of(area)?;
    let cases: Vec<&Case> = cases.iter().filter(|case| is_fair(case)).collect();
    let _kept = isolation::place(bench.env, &bench.fixture, &cases)?;
    let output = bench.run(isolation::DRIVER)?;
    let ended = isolation::verdicts(&String::from_utf8_lossy(&output.stdout));
    ensure!(!ended.is_empty(), "no verdict: {output:?}");
    let worked: Vec<&str> = cases
        .iter()
        .filter(|case| ended.get(&case.id) == Some(&0))
        .map(|case| case.id.as_str())
        .collect();
    bench
        .log
        .tell(&format!("{}: {area}: work: {worked:?}", bench.peer.name()));
    let failed = cases.len() - worked.len();
    Ok(if worked.is_empty() {
        Seen::As(format!("all {failed} fail"))
    } else {
        Seen::Partly(format!("{failed} of {} fail", cases.len()))
    })
}

/// Area, title and what was seen, row by row.
pub fn tried(
    env: &Sandboxed,
    engine: &Engine,
    peer: Peer,
    log: &Log,
) -> Vec<(String, String, Seen)> {
    let mut all = Vec::new();
    let mut one = |area: &str, title: &str, check: &dyn Fn(&Bench<'_>) -> Result<Seen>| {
        let name = format!("peer-{peer:?}-{}", all.len());
        let seen = env.fixture(&name, peer.mode()).and_then(|fixture| {
            let bench = Bench {
                env,
                engine,
                peer,
                fixture,
                log,
            };
            let seen = check(&bench);
            env.discard(&bench.fixture);
            seen
        });
        let seen = seen.unwrap_or_else(|error| Seen::Not(format!("{error:#}")));
        log.tell(&format!("{}: {area}: {title}: {seen:?}", peer.name()));
        all.push((area.to_owned(), title.to_owned(), seen));
    };
    for (area, title, check) in ROWS {
        one(area, title, check);
    }
    for (area, _) in AREAS.iter().filter(|(area, _)| *area != "terminal") {
        one("attacks", area, &|bench| attacks(bench, area));
    }
    all
}
