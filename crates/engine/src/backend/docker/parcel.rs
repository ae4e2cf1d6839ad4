//! The local end of a workspace that is at an engine of another machine: packed and unpacked by our tools in
//! a native sandbox on the same layers, as the agent would see them.
//!
//! HOSTILE: what comes back was made by the agent. No byte of it is read by the host itself: it becomes files
//! inside a sandbox, which has nothing but the workspace, and the kernel makes the layer of it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::plan::{Access, HostMount, Root, Spec};
use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::Outcome;
use ringfence_model::tools::{FAILED, PROGRAM};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin};

use super::place::failed;
use crate::attend::{Console, Inputs, Records, Unwatched, attend};
use crate::backend::{BackendError, Native, Start};
use crate::changes::remove_tree;
use crate::checks::chain;
use crate::client::Stream;
use crate::guest::{self, TOOLS_NAME};
use crate::home::Home;
use crate::output::Spool;
use crate::run::environment;
use crate::sandbox::Sandbox;
use crate::watch::DiskWatch;

/// Where a parcel is inside.
const INSIDE: &str = "/parcel";

/// The local end of one workspace.
#[derive(Clone, Debug)]
pub struct Local {
    home: Home,
    name: String,
    spec: Spec,
    limits: Limits,
    /// The bound of the workspace.
    most: Option<u64>,
}

impl Local {
    pub fn new(home: &Home, start: &Start<'_>) -> Result<Self, BackendError> {
        let tools = guest::install_tools(home).map_err(failed("install tools in", home.root()))?;
        let mut spec = start.spec.clone();
        spec.root = Root::Host;
        spec.workspace.tools = Some(tools);
        spec.gate = None;
        spec.tmpfs.clear();
        Ok(Self {
            home: home.clone(),
            name: start.name.to_owned(),
            spec,
            limits: Limits {
                // Its own work, for as long as it takes. A parcel is bounded.
                time_seconds: None,
                cpu_seconds: None,
                output_bytes: None,
                disk_bytes: None,
                disk_inodes: None,
                ..start.limits.clone()
            },
            most: start.limits.disk_bytes,
        })
    }

    /// BOUND: what a parcel may have: the bound of the workspace, and what can be written over it between
    /// two looks.
    pub fn most(&self) -> u64 {
        const BESIDE: u64 = 4 << 30;
        self.most.unwrap_or(u64::MAX / 2).saturating_add(BESIDE)
    }

    /// Packs all that is in a directory inside into a file.
    pub fn pack(&self, inside: &str, into: &Path) -> Result<(), BackendError> {
        self.run(&[PROGRAM, "--pack", inside], Vec::new(), into)
    }

    /// Makes the workspace what a parcel says, from what it was at the beginning.
    pub fn unpack(&self, parcel: &Path, inside: &str) -> Result<(), BackendError> {
        // What an earlier round brought goes: what is said to be as it was is so of the beginning.
        self.renew("upper")?;
        let readable = fs::Permissions::from_mode(0o644);
        fs::set_permissions(parcel, readable).map_err(failed("open", parcel))?;
        let found = fs::symlink_metadata(parcel).map_err(failed("look at", parcel))?;
        let shown = HostMount {
            host: parcel.to_owned(),
            identity: (found.dev(), found.ino()),
            is_directory: false,
            owner: (found.uid(), found.gid()),
            inside: PathBuf::from(INSIDE),
            access: Access::ReadOnly,
        };
        let line = format!("exec /.ringfence/tools/{TOOLS_NAME} --unpack \"$0\" < {INSIDE}");
        let said = parcel.with_extension("said");
        self.run(&["/bin/sh", "-c", &line, inside], vec![shown], &said)
    }

    /// Makes a directory of the layer anew, where something is in it.
    fn renew(&self, name: &str) -> Result<(), BackendError> {
        let layer = &self.spec.workspace.layer;
        let path = layer.join(name);
        let anew = || -> io::Result<()> {
            if fs::read_dir(&path)?.next().is_none() {
                return Ok(());
            }
            let own = fs::symlink_metadata(&path)?;
            let directory = File::open(layer)?;
            remove_tree(directory.as_fd(), name.as_bytes()).map_err(io::Error::other)?;
            fs::create_dir(&path)?;
            fs::set_permissions(&path, own.permissions())?;
            std::os::unix::fs::chown(&path, Some(own.uid()), Some(own.gid()))
        };
        anew().map_err(failed("begin anew with", &path))
    }

    fn run(&self, argv: &[&str], mounts: Vec<HostMount>, into: &Path) -> Result<(), BackendError> {
        let told = |said: String| BackendError::Parcel { said };
        // The kernel takes a work directory of a view that was not synced for none of its own.
        self.renew("work")?;
        let spec = Spec {
            mounts,
            ..self.spec.clone()
        };
        let start = Start {
            name: &self.name,
            spec: &spec,
            limits: &self.limits,
            gate: None,
        };
        let exec = Exec {
            argv: argv.iter().copied().map(ByteText::from).collect(),
            env: environment(&[]),
            cwd: "/".into(),
            stdin: Stdin::Empty,
            terminal: None,
            timeout_ms: None,
            output: OutputMode::Attached,
            leftovers: Leftovers::Kill,
        };
        let mut kept = Kept {
            file: BufWriter::new(File::create(into).map_err(failed("write", into))?),
            tail: Vec::new(),
            failed: None,
        };
        let work = || -> Result<_, crate::error::Error> {
            let mut sandbox = Sandbox::start(&Native, &start)?;
            sandbox.prove(&self.home.canary())?;
            let upper = spec.workspace.layer.join("upper");
            let records = Records {
                spool: &mut Spool::ends_only(),
                disk: &mut DiskWatch::new(&upper, &self.limits)?,
                witness: &mut Unwatched,
                gate: &mut None,
            };
            let inputs = Inputs::default();
            let attended = attend(
                &mut sandbox,
                exec,
                &self.limits,
                records,
                &inputs,
                &mut kept,
            )?;
            sandbox.end().map_err(crate::error::Error::Wait)?;
            Ok(attended)
        };
        let attended = work().map_err(|error| told(chain(&error)))?;
        if let Some(error) = kept.failed.or_else(|| kept.file.flush().err()) {
            return Err(failed("write", into)(error));
        }
        if attended.outcome == Outcome::Exited && attended.code == Some(0) {
            return Ok(());
        }
        Err(told(last_words(&kept.tail).unwrap_or_else(|| {
            format!("the tool ended otherwise than well: {:?}", attended.outcome)
        })))
    }
}

/// What a tool said of its failure, at the end of its output.
pub fn last_words(tail: &[u8]) -> Option<String> {
    let at = tail
        .windows(FAILED.len())
        .rposition(|part| part == FAILED)?;
    let said = &tail[at + FAILED.len()..];
    let said = String::from_utf8_lossy(said).into_owned();
    Some(said.chars().filter(|c| !c.is_control()).collect())
}

/// Keeps the end of a stream, enough for a message.
pub fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    // BOUND: a message with a path.
    const TAIL: usize = 2048;
    tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
    let over = tail.len().saturating_sub(TAIL);
    tail.drain(..over);
}

/// Output that goes into a file.
struct Kept {
    file: BufWriter<File>,
    tail: Vec<u8>,
    failed: Option<io::Error>,
}

impl Console for Kept {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream != Stream::Stdout || self.failed.is_some() {
            return;
        }
        keep_tail(&mut self.tail, bytes);
        self.failed = self.file.write_all(bytes).err();
    }
}
