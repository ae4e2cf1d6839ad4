//! An engine of the tests' own: its data, socket and images are in a directory that goes with it.
//! Nothing is pulled; images are made of programs of this machine.

mod kind;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Fixture, PATH, Sandboxed, in_each_mode_in_turn, is_root, run_directory, run_quietly,
};
use kind::{DOCKER, Kind, Lifetime, PODMAN};

/// Programs of this machine: what the attacks and the other cases use, but no compiler.
pub const TOOLS: &str = "conformance-tools:1";
/// One static program, and nothing else: not even a shell.
pub const SINGLE: &str = "conformance-single:1";

/// BOUND: an engine is up within a second or two; on a machine that is drowning, within a minute.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// An engine that runs. It ends when this is dropped, and its data are removed.
#[derive(Debug)]
pub struct Engine {
    kind: &'static Kind,
    directory: PathBuf,
    /// Itself is the last.
    daemons: Vec<Child>,
    /// The lock of an engine that other tests use before and after this one, and that does not end with it.
    lease: Option<fs::File>,
}

impl Engine {
    /// Starts one of Docker's and makes the images.
    pub fn start() -> Result<Self> {
        Self::of(&DOCKER, |_| Ok(()))
    }

    /// The Docker engine that all tests of a run share, one test at a time: starting it and making its images
    /// takes seconds. `scripts/test` stops it by the file `pids` in its directory; without `scripts/test`, a test
    /// starts one of its own.
    pub fn shared() -> Result<Self> {
        let Some(top) = run_directory() else {
            return Self::start();
        };
        can_have(&DOCKER)?;
        let lease = fs::File::create(top.join("docker.lock"))?;
        flock(&lease, FlockOperation::LockExclusive)?;
        let directory = top.join("docker");
        let mut engine = Self {
            kind: &DOCKER,
            directory,
            daemons: Vec::new(),
            lease: Some(lease),
        };
        // Written last, so that no test uses an engine that another was killed while starting.
        let ready = engine.directory.join("ready");
        if !ready.exists() {
            fs::create_dir(&engine.directory)
                .context("an earlier test was killed while it started Docker")?;
            engine.start_daemons(Lifetime::Run, |_| Ok(()))?;
            engine.daemons.clear();
            fs::write(ready, "")?;
        }
        engine.remove_leftovers()?;
        Ok(engine)
    }

    /// Removes what a failed test left, so that the next does not fail as well.
    fn remove_leftovers(&self) -> Result<()> {
        for container in self.containers(&[])? {
            self.docker(&["rm", "--force", "--volumes", &container])?;
        }
        for volume in self.docker(&["volume", "ls", "--quiet"])?.lines() {
            self.docker(&["volume", "rm", "--force", volume])?;
        }
        Ok(())
    }

    /// The same of Podman's.
    pub fn podman() -> Result<Self> {
        Self::of(&PODMAN, |_| Ok(()))
    }

    /// One with a disk of its own, which [`Self::leave_room`] makes small.
    pub fn on_own_disk() -> Result<Self> {
        Self::of(&DOCKER, |directory| {
            let data = directory.join("data");
            fs::create_dir(&data)?;
            let words = ["-t", "tmpfs", "-o", "size=2g", "tmpfs"];
            run_quietly(Command::new("mount").args(words).arg(data))
        })
    }

    /// Leaves so many bytes on its own disk.
    pub fn leave_room(&self, bytes: u64) -> Result<()> {
        let data = self.directory.join("data");
        let told = rustix::fs::statvfs(&data)?;
        let size = (told.f_blocks - told.f_bfree) * told.f_frsize + bytes;
        let option = format!("remount,size={size}");
        run_quietly(Command::new("mount").args(["-o", &option]).arg(data))
    }

    fn of(kind: &'static Kind, prepare: impl Fn(&Path) -> Result<()>) -> Result<Self> {
        can_have(kind)?;
        // What a killed test leaves here goes with the run. Short: a socket's path may have 107 bytes.
        let place = run_directory().unwrap_or_else(|| "/var/tmp".into());
        let directory = tempfile::Builder::new()
            .prefix("engine-")
            .tempdir_in(place)?
            .keep();
        let mut engine = Self {
            kind,
            directory,
            daemons: Vec::new(),
            lease: None,
        };
        engine.start_daemons(Lifetime::Test, prepare)?;
        Ok(engine)
    }

    fn start_daemons(
        &mut self,
        lifetime: Lifetime,
        prepare: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;
        let log = fs::File::create(self.directory.join("log"))?;
        prepare(&self.directory)?;
        for mut command in (self.kind.commands)(&self.directory, lifetime)? {
            let started = command
                .env("PATH", PATH)
                // What ends a test's process group must not end an engine that others share.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .spawn();
            let daemon = started.with_context(|| format!("cannot start `{}`", self.kind.daemon))?;
            self.daemons.push(daemon);
        }
        if lifetime == Lifetime::Run {
            let pids = self.daemons.iter().map(|child| format!("{}\n", child.id()));
            fs::write(self.directory.join("pids"), pids.collect::<String>())?;
        }
        self.wait()?;
        self.make_images()
    }

    fn wait(&mut self) -> Result<()> {
        let socket = self.socket();
        let deadline = Instant::now() + UP_WITHIN;
        // It tells nobody when it is there: its socket is asked.
        while UnixStream::connect(&socket).is_err() || self.docker(&["version"]).is_err() {
            for daemon in &mut self.daemons {
                let Some(status) = daemon.try_wait()? else {
                    continue;
                };
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                bail!(
                    "`{}` ended with {status}: {}",
                    self.kind.daemon,
                    log.lines().last().unwrap_or_default()
                );
            }
            ensure!(
                Instant::now() < deadline,
                "`{}` is not up within {UP_WITHIN:?}",
                self.kind.daemon
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        // So that somebody unprivileged can use it, as who is in its group can.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// The variable that says where it is.
    pub fn variable(&self) -> &'static str {
        self.kind.variable
    }

    /// As the variable has it.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Variables by which it is found as an engine of this machine.
    pub fn here(&self) -> Vec<(String, String)> {
        vec![(self.variable().to_owned(), self.address())]
    }

    /// The same as one of another machine: what `ssh` would run there is run here, by the same client.
    pub fn elsewhere(&self) -> Result<Vec<(String, String)>> {
        let directory = self.directory.join("elsewhere");
        let program = directory.join("ssh");
        if !program.exists() {
            fs::create_dir_all(&directory)?;
            let script = format!(
                "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\n\
                 exec env -i PATH={PATH} HOME=/ DOCKER_HOST={} \"$@\"\n",
                self.address()
            );
            let part = directory.join(format!("ssh-{:?}", std::thread::current().id()));
            fs::write(&part, script)?;
            fs::set_permissions(&part, fs::Permissions::from_mode(0o755))?;
            fs::rename(&part, &program)?;
        }
        Ok(vec![
            (
                self.variable().to_owned(),
                "ssh://somebody@elsewhere".to_owned(),
            ),
            ("PATH".to_owned(), format!("{}:{PATH}", directory.display())),
        ])
    }

    /// The client with these words, not started.
    pub fn client(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.kind.client[0]);
        command
            .args(&self.kind.client[1..])
            .args(words)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", &self.directory)
            .env(self.variable(), self.address());
        command
    }

    /// What the client says, which is Docker's or one that takes the same words. It must succeed.
    pub fn docker(&self, words: &[&str]) -> Result<String> {
        let output: Output = self.client(words).stdin(Stdio::null()).output()?;
        ensure!(
            output.status.success(),
            "{}: {words:?}: {output:?}",
            self.kind.daemon
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Containers that carry our label, whatever home they are of.
    pub fn ours(&self) -> Result<Vec<String>> {
        self.containers(&["--filter", "label=ringfence.sandbox"])
    }

    /// Lists containers, without those that Docker can no longer inspect. Docker 20.10 may list a container that was
    /// removed while it ended by itself as "Removal In Progress" until the daemon restarts; every command on it fails
    /// with "No such container".
    fn containers(&self, filter: &[&str]) -> Result<Vec<String>> {
        let list = ["ps", "--all", "--quiet", "--no-trunc"];
        let mut found = Vec::new();
        for id in self.docker(&[&list, filter].concat())?.lines() {
            let inspected = self.client(&["container", "inspect", id]).output()?;
            let is_gone = String::from_utf8_lossy(&inspected.stderr).contains("o such container");
            if !is_gone {
                found.push(id.to_owned());
            }
        }
        Ok(found)
    }

    fn make_images(&self) -> Result<()> {
        let tools = self.directory.join("tools");
        link_tools(&tools)?;
        self.import(&tools, TOOLS)?;
        let single = self.directory.join("single");
        fs::create_dir_all(&single)?;
        let source = self.directory.join("single.c");
        fs::write(&source, ONE_PROGRAM)?;
        run_quietly(
            Command::new("cc")
                .args(["-static", "-O1", "-o"])
                .arg(single.join("single"))
                .arg(&source),
        )?;
        self.import(&single, SINGLE)
    }

    /// The same image, as if it were made for another machine.
    pub fn for_another_machine(&self, name: &str, new: &str) -> Result<()> {
        let script = "mkdir other && cd other && docker save \"$1\" | tar -x \
            && sed -i 's/\"architecture\":\"[a-z0-9]*\"/\"architecture\":\"s390x\"/' ./*.json \
            && sed -i \"s/$1/$2/\" manifest.json && rm -f repositories \
            && tar -c . | docker load && cd .. && rm -r other";
        run_quietly(
            Command::new("sh")
                .args(["-c", script, "sh", name, new])
                .current_dir(&self.directory)
                .env_clear()
                .env("PATH", PATH)
                .env("HOME", &self.directory)
                .env(self.variable(), self.address()),
        )
    }

    /// Makes an image of a directory.
    pub fn import(&self, root: &Path, name: &str) -> Result<()> {
        let mut tar = Command::new("tar")
            .args(["--owner=0", "--group=0", "-C"])
            .arg(root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()?;
        let archive = tar.stdout.take().context("no pipe")?;
        let imported = self
            .client(&["import", "-", name])
            .stdin(archive)
            .output()?;
        ensure!(tar.wait()?.success(), "`tar` failed");
        ensure!(imported.status.success(), "{imported:?}");
        Ok(())
    }
}

/// Why this machine cannot have an engine: the only reason to skip its tests.
#[derive(Debug)]
pub struct Absent(pub String);

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// Whether this machine can have such an engine; else [`Absent`].
fn can_have(kind: &Kind) -> Result<()> {
    if !is_root() {
        bail!(Absent("an engine of the tests' own needs root".to_owned()));
    }
    for program in kind.programs {
        if which(program).is_none() {
            bail!(Absent(format!("there is no `{program}`")));
        }
    }
    Ok(())
}

/// The engine, or `None` and a line about the skipped test where this machine cannot have one. An engine that is
/// installed and does not start fails the test.
pub fn or_skip(engine: Result<Engine>, name: &str) -> Option<Engine> {
    match engine {
        Ok(engine) => Some(engine),
        Err(error) if error.is::<Absent>() => {
            println!("SKIPPED {name}: {error:#}");
            None
        }
        Err(error) => panic!("{name}: {error:#}"),
    }
}

/// Tries something with an engine, as each kind of user; without one, says why.
pub fn with_each_user(
    engine: Result<Engine>,
    name: &str,
    test: impl Fn(&Sandboxed, &Fixture, &Engine) -> Result<()>,
) {
    let Some(engine) = or_skip(engine, name) else {
        return;
    };
    let tried = in_each_mode_in_turn(name, |env, fixture| test(env, fixture, &engine));
    tried.unwrap_or_else(|error| panic!("{error:#}"));
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.lease.is_some() && self.daemons.is_empty() {
            return;
        }
        if !self.kind.clear.is_empty() {
            let _ = self.docker(self.kind.clear);
        }
        for daemon in self.daemons.iter_mut().rev() {
            if let Some(pid) = Pid::from_raw(daemon.id() as i32) {
                let _ = kill_process(pid, Signal::TERM);
            }
            let _ = daemon.wait();
        }
        // It leaves mounts of its own.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = table.lines().filter_map(|line| line.split(' ').nth(4));
        for mount in below.filter(|path| Path::new(path).starts_with(&self.directory)) {
            let _ = Command::new("umount").args(["-l", mount]).status();
        }
        let _ = Command::new("rm").arg("-rf").arg(&self.directory).status();
    }
}

const ONE_PROGRAM: &str = r#"
#include <stdio.h>
int main(void) {
  FILE *made = fopen("made.txt", "w");
  if (!made) return 7;
  fputs("made\n", made);
  puts("single");
  return 3;
}
"#;

/// What is in the image with tools.
const PROGRAMS: &[&str] = &[
    "sh",
    "bash",
    "python3",
    "busybox",
    "env",
    "cat",
    "ls",
    "head",
    "tail",
    "grep",
    "sed",
    "awk",
    "tr",
    "find",
    "touch",
    "ln",
    "mv",
    "rm",
    "mkdir",
    "rmdir",
    "cp",
    "chmod",
    "chown",
    "mknod",
    "mount",
    "umount",
    "unshare",
    "nsenter",
    "chroot",
    "id",
    "stat",
    "sleep",
    "sha256sum",
    "seq",
    "tee",
    "dd",
    "wc",
    "sort",
    "cut",
    "timeout",
    "setsid",
    "tty",
    "stty",
    "kill",
    "chrt",
    "nice",
    "su",
    "passwd",
    "setfattr",
    "git",
    "ip",
    "mkfifo",
    "truncate",
    "true",
    "false",
    "dirname",
    "basename",
    "uname",
    "yes",
    "date",
    "xxd",
    "od",
    "readlink",
    "ps",
    "hostname",
    "test",
    "printf",
    "echo",
    "pwd",
];

/// A tree with programs of this machine and the libraries that they ask for.
fn link_tools(root: &Path) -> Result<()> {
    for name in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    let programs: Vec<PathBuf> = PROGRAMS.iter().filter_map(|name| which(name)).collect();
    for program in &programs {
        let name = program.file_name().context("a program has a name")?;
        fs::copy(program, root.join("usr/bin").join(name))?;
    }
    let asked = python("import sysconfig; print(sysconfig.get_path('stdlib'))")?;
    let standard = PathBuf::from(asked.trim());
    copy(&standard, root)?;
    for part in ["test", "idlelib", "lib2to3", "ensurepip", "turtledemo"] {
        let _ = fs::remove_dir_all(root.join(inner(&standard)).join(part));
    }
    let extra = fs::read_dir(standard.join("lib-dynload"))?;
    let extra = extra.filter_map(|entry| Some(entry.ok()?.path()));
    let mut ldd = Command::new("ldd");
    ldd.args(&programs).args(extra.collect::<Vec<_>>());
    let told = ldd.output().context("cannot run `ldd`")?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let mut wanted: Vec<&str> = told
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .filter(|word| !word.ends_with(':'))
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    for library in wanted {
        // The links of `/lib` are those of the tree.
        let to = root.join(inner(Path::new(library)));
        fs::create_dir_all(to.parent().context("a library is in a directory")?)?;
        if !to.exists() {
            fs::copy(library, &to).with_context(|| format!("cannot copy `{library}`"))?;
        }
    }
    Ok(())
}

fn inner(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn copy(from: &Path, root: &Path) -> Result<()> {
    let to = root.join(inner(from));
    fs::create_dir_all(to.parent().context("it is in a directory")?)?;
    run_quietly(Command::new("cp").arg("-rL").arg(from).arg(&to))
}

fn python(line: &str) -> Result<String> {
    // That of the machine, whatever the tester has in front of it.
    let program = which("python3").context("there is no `python3`")?;
    let output = Command::new(program).args(["-c", line]).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where a program is.
pub fn which(name: &str) -> Option<PathBuf> {
    let places = PATH.split(':').map(Path::new);
    places
        .map(|place| place.join(OsStr::new(name)))
        .find(|path| path.exists())
}
