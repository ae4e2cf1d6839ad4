//! Where the figures are measured: a small folder, a home of their own, and who does it.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::backend::{Native, Start};
use ringfence_engine::changes;
use ringfence_engine::client::Message;
use ringfence_engine::home::Home;
use ringfence_engine::ids::RunId;
use ringfence_engine::sandbox::Sandbox;
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::{Holds, Root, Runs, Spec, WorkspaceSpec};
use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::wire::{Exec, Leftovers, Notice, Observation, OutputMode, Request, Stdin};
use tempfile::TempDir;

/// Tell the second process where the first has put the program, and the toolchain.
const BINARY_VARIABLE: &str = "RINGFENCE_BENCH_BINARY";
const TOOLCHAIN_VARIABLE: &str = "RINGFENCE_BENCH_TOOLCHAIN";
/// BOUND: an id that no distribution gives to a user or a service.
const UNPRIVILEGED: u32 = 54_321;

/// Runs this same bench once more as somebody without rights. What it needs is copied to where
/// that user can read it: the build directory may be closed to others.
/// So is the toolchain, where a figure needs it: it lies in the home of whoever builds.
pub fn again_unprivileged(toolchain: Option<PathBuf>) -> Result<ExitCode> {
    let open = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()?;
    let own = open.path().join("tmp");
    fs::create_dir(&own)?;
    std::os::unix::fs::chown(&own, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
    let bench = open.path().join("figures");
    let binary = open.path().join("ringfence");
    for (from, to) in [
        (std::env::current_exe()?, &bench),
        (PathBuf::from(env!("CARGO_BIN_EXE_ringfence")), &binary),
    ] {
        fs::copy(&from, to).with_context(|| format!("cannot copy `{}`", from.display()))?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    }
    let readable = open.path().join("toolchain");
    if let Some(toolchain) = toolchain {
        copy_toolchain(&toolchain, &readable)?;
    }
    let status = Command::new("setpriv")
        .arg(format!("--reuid={UNPRIVILEGED}"))
        .arg(format!("--regid={UNPRIVILEGED}"))
        .arg("--clear-groups")
        .arg(&bench)
        .args(std::env::args_os().skip(1))
        .current_dir(&own)
        .env("TMPDIR", &own)
        .env("HOME", &own)
        .env(BINARY_VARIABLE, &binary)
        .env(TOOLCHAIN_VARIABLE, &readable)
        .status()
        .context("cannot start `setpriv`, which is part of util-linux")?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

/// Where the toolchain of this machine is, if there is one that can be read.
pub fn toolchain() -> Option<PathBuf> {
    let given = std::env::var_os(TOOLCHAIN_VARIABLE).map(PathBuf::from);
    let found = given.or_else(|| {
        let output = Command::new("rustc").args(["--print", "sysroot"]).output();
        let said = String::from_utf8(output.ok()?.stdout).ok()?;
        Some(PathBuf::from(said.trim()))
    });
    found.filter(|path| path.join("bin/cargo").is_file())
}

/// Copies what a build needs of a toolchain.
pub fn copy_toolchain(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    let copied = Command::new("cp")
        .arg("-rL")
        .args(["bin", "lib"].map(|part| from.join(part)))
        .arg(to)
        .status()?;
    ensure!(copied.success(), "cannot copy `{}`", from.display());
    Ok(())
}

/// A folder to work on and a home.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
    home: Home,
    binary: PathBuf,
}

impl Place {
    pub fn make() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let folder = directory.path().join("folder");
        fs::create_dir(&folder)?;
        for number in 0..10 {
            fs::write(folder.join(format!("file{number}")), "a line\n")?;
        }
        let home = Home::open(Some(directory.path().join("home")))?;
        let binary = std::env::var_os(BINARY_VARIABLE).map_or_else(
            || PathBuf::from(env!("CARGO_BIN_EXE_ringfence")),
            PathBuf::from,
        );
        Ok(Self {
            directory,
            home,
            binary,
        })
    }

    pub fn folder(&self) -> PathBuf {
        self.directory.path().join("folder")
    }

    pub fn home(&self) -> &Home {
        &self.home
    }

    /// A new directory of this name beside the folder.
    pub fn beside(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// `ringfence run -- true` on the folder.
    pub fn whole_program(&self) -> Command {
        self.program_at(&self.home, &["run", "--", "true"])
    }

    /// The program in the folder, with a home and these words.
    pub fn program_at(&self, home: &Home, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(words)
            .current_dir(self.folder())
            .env("RINGFENCE_HOME", home.root());
        command
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Where everything is.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A proven sandbox on the folder, with a layer of its own.
    pub fn sandbox(&self) -> Result<(Sandbox, Layer)> {
        let layer = self.layer()?;
        let mut sandbox = self.start(&layer)?;
        self.prove(&mut sandbox)?;
        Ok((sandbox, layer))
    }

    pub fn layer(&self) -> Result<Layer> {
        Layer::make(&self.home)
    }

    pub fn prove(&self, sandbox: &mut Sandbox) -> Result<()> {
        sandbox.prove(&self.home.canary())?;
        Ok(())
    }

    /// A sandbox on the folder that has not proven itself yet.
    pub fn start(&self, layer: &Layer) -> Result<Sandbox> {
        self.start_observed(layer, Observation::Verified)
    }

    pub fn start_observed(&self, layer: &Layer, observation: Observation) -> Result<Sandbox> {
        let folder = self.folder();
        let spec = Spec {
            identity: identity_for(fs::File::open(&folder)?.as_fd())?,
            runs: Runs::Agent,
            hostname: "ringfence".to_owned(),
            root: Root::Host,
            workspace: WorkspaceSpec {
                lower: vec![self.home.mask(layer.id), folder],
                below: Vec::new(),
                layer: self.home.workspace(layer.id),
                inside: PathBuf::from("/workspace"),
                objects: Vec::new(),
                holds: Holds::Folder,
                tools: None,
                areas: Vec::new(),
            },
            overlays: Vec::new(),
            mounts: Vec::new(),
            tmpfs: Vec::new(),
            tmpfs_bytes: 1 << 30,
            gate: None,
        };
        if let Some((uid, gid)) = rustix::process::geteuid()
            .is_root()
            .then(|| spec.identity.agent_on_host())
        {
            for path in [self.home.upper(layer.id), self.home.work(layer.id)] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
            }
        }
        let limits = Limits::for_host(2 << 30);
        let start = Start {
            name: layer.id.as_str(),
            spec: &spec,
            limits: &limits,
            gate: None,
        };
        Ok(Sandbox::start_observed(&Native, &start, observation)?)
    }
}

/// The layers of one sandbox, removed with it.
#[derive(Debug)]
pub struct Layer {
    id: RunId,
    parent: fs::File,
}

impl Layer {
    fn make(home: &Home) -> Result<Self> {
        let id = RunId::random()?;
        for path in [
            home.workspace(id),
            home.upper(id),
            home.work(id),
            home.mask(id),
        ] {
            fs::create_dir(path)?;
        }
        Ok(Self {
            id,
            parent: fs::File::open(home.workspaces())?,
        })
    }

    pub fn remove(self) -> Result<()> {
        changes::remove_tree(self.parent.as_fd(), self.id.as_str().as_bytes())?;
        Ok(())
    }
}

/// A command in the folder, with nobody to talk to.
pub fn command(argv: &[&str], env: &[(&str, &str)]) -> Exec {
    let variable = |(key, value): &(&str, &str)| (ByteText::from(*key), ByteText::from(*value));
    Exec {
        argv: argv.iter().map(|word| ByteText::from(*word)).collect(),
        env: env.iter().map(variable).collect(),
        cwd: ByteText::from("/workspace"),
        stdin: Stdin::Empty,
        terminal: None,
        timeout_ms: None,
        output: OutputMode::Attached,
        leftovers: Leftovers::Keep,
    }
}

/// Runs `/bin/true` in a sandbox, until its end has been told.
pub fn exec_true(sandbox: &mut Sandbox) -> Result<()> {
    let client = sandbox.client();
    let asked = client.send(&Request::Exec(command(&["/bin/true"], &[])))?;
    loop {
        if let Some(Message::Notice(stream, Notice::Exited(exited))) = client.next(None)?
            && stream == asked
        {
            ensure!(exited.code == Some(0), "/bin/true ended with {exited:?}");
            return Ok(());
        }
    }
}

/// Runs a program outside to its end; nobody reads what it says.
pub fn outside(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The names in a directory.
pub fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    Ok(fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<std::io::Result<_>>()?)
}
