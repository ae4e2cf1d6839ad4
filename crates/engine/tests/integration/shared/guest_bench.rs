//! A sandbox on an empty folder, and short words for what tests do with it.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_engine::backend::{Native, Start};
use ringfence_engine::client::{ClientError, Message, Stream};
use ringfence_engine::guest::install_tools;
use ringfence_engine::home::Home;
use ringfence_engine::sandbox::{Sandbox, SandboxError};
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::{Holds, Root, Runs, Spec, WorkspaceSpec};
use ringfence_jail::signals::Signal;
use ringfence_model::limits::Limits;
use ringfence_model::wire::{
    Exec, Exited, Leftovers, Notice, OutputMode, Reply, Request, SignalScope, Stdin, WriteHow,
};

/// BOUND: nothing in these tests takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Bench {
    pub sandbox: Sandbox,
    state: tempfile::TempDir,
    seen: Vec<Message>,
}

/// A command that is over.
pub struct Done {
    pub stream: u32,
    pub exited: Exited,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

pub fn exec(argv: &[&str]) -> Exec {
    Exec {
        argv: argv.iter().map(|word| (*word).into()).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/workspace".into(),
        stdin: Stdin::Empty,
        terminal: None,
        timeout_ms: None,
        output: OutputMode::Attached,
        leftovers: Leftovers::Keep,
    }
}

pub fn sh(line: &str) -> Exec {
    exec(&["sh", "-c", line])
}

impl Bench {
    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), None)
    }

    /// With the direct tools inside, as the sandboxes that last have them.
    pub fn with_tools() -> Self {
        let state = tempfile::tempdir().unwrap();
        let home = Home::open(Some(state.path().join("home"))).unwrap();
        // Whoever the agent is on the host must get there.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(home.root(), open).unwrap();
        let tools = install_tools(&home).unwrap();
        Self::start_in(state, Some(tools))
    }

    fn start_in(state: tempfile::TempDir, tools: Option<PathBuf>) -> Self {
        Self::start_as(state, |spec| spec.workspace.tools = tools).unwrap()
    }

    /// A sandbox with a specification that is changed beforehand.
    pub fn start_as(
        state: tempfile::TempDir,
        change: impl FnOnce(&mut Spec),
    ) -> Result<Self, SandboxError> {
        let path = |name: &str| state.path().join(name);
        for name in ["folder", "upper", "work", "mask"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let folder = std::fs::File::open(path("folder")).unwrap();
        let identity = identity_for(folder.as_fd()).unwrap();
        let (uid, gid) = identity.agent_on_host();
        for name in ["upper", "work", "mask", ""] {
            std::os::unix::fs::chown(path(name), Some(uid), Some(gid)).unwrap();
        }
        let mut spec = Spec {
            identity,
            runs: Runs::Agent,
            hostname: "ringfence".into(),
            root: Root::Host,
            workspace: WorkspaceSpec {
                lower: vec![path("mask"), path("folder")],
                below: Vec::new(),
                layer: state.path().to_owned(),
                inside: "/workspace".into(),
                objects: Vec::new(),
                holds: Holds::Folder,
                tools: None,
                areas: Vec::new(),
            },
            overlays: Vec::new(),
            mounts: Vec::new(),
            tmpfs: Vec::new(),
            tmpfs_bytes: 64 << 20,
            gate: None,
        };
        change(&mut spec);
        let name = state
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let limits = Limits::for_host(ringfence_jail::total_memory_bytes());
        let start = Start {
            name: name.trim_start_matches('.'),
            spec: &spec,
            limits: &limits,
            gate: None,
        };
        let mut sandbox = Sandbox::start(&Native, &start)?;
        sandbox.prove(&path("canary"))?;
        Ok(Self {
            sandbox,
            state,
            seen: Vec::new(),
        })
    }

    pub fn send(&mut self, request: &Request) -> u32 {
        self.sandbox.client().send(request).unwrap()
    }

    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.sandbox.client().call(request)
    }

    pub fn run(&mut self, exec: Exec) -> Done {
        let stream = self.send(&Request::Exec(exec));
        self.finish(stream)
    }

    /// Waits for a message, and keeps all others.
    pub fn wait_for(&mut self, wanted: impl Fn(&Message) -> bool) -> Message {
        if let Some(at) = self.seen.iter().position(&wanted) {
            return self.seen.remove(at);
        }
        loop {
            let message = self
                .sandbox
                .client()
                .next(Some(PATIENCE))
                .unwrap()
                .expect("nothing came");
            if wanted(&message) {
                return message;
            }
            self.seen.push(message);
        }
    }

    /// Kills all that is left of a command, and waits until it is gone.
    pub fn end(&mut self, stream: u32) {
        let kill = Request::Signal {
            exec: stream,
            signal: Signal::KILL,
            scope: SignalScope::All,
        };
        // Where nothing is left any more, there is nobody to be told.
        let _ = self.call(&kill);
        self.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == stream));
    }

    /// Waits for the end of a command and gives all that it wrote.
    pub fn finish(&mut self, stream: u32) -> Done {
        let end =
            self.wait_for(|m| matches!(m, Message::Notice(s, Notice::Exited(_)) if *s == stream));
        let Message::Notice(_, Notice::Exited(exited)) = end else {
            unreachable!()
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.seen.retain(|message| match message {
            Message::Data(s, which, bytes) if *s == stream => {
                match which {
                    Stream::Stdout => stdout.extend_from_slice(bytes),
                    Stream::Stderr => stderr.extend_from_slice(bytes),
                }
                false
            }
            _ => true,
        });
        Done {
            stream,
            exited,
            stdout,
            stderr,
        }
    }

    /// All that came and was not asked for.
    pub fn take_seen(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.seen)
    }

    /// Waits until a command has written something.
    pub fn read_until(&mut self, stream: u32, word: &[u8]) {
        let mut all = Vec::new();
        while !all.windows(word.len()).any(|w| w == word) {
            match self.wait_for(|m| matches!(m, Message::Data(s, ..) if *s == stream)) {
                Message::Data(_, _, bytes) => all.extend_from_slice(&bytes),
                _ => unreachable!(),
            }
        }
    }

    pub fn read(&mut self, path: &str, offset: u64, length: u64) -> Result<Vec<u8>, ClientError> {
        let stream = self.send(&Request::ReadFile {
            path: path.into(),
            offset,
            length,
        });
        self.sandbox.client().answer_to(stream)?;
        let mut content = Vec::new();
        loop {
            match self.wait_for(|m| matches!(m, Message::Data(s, ..) if *s == stream)) {
                Message::Data(_, _, bytes) if bytes.is_empty() => return Ok(content),
                Message::Data(_, _, bytes) => content.extend_from_slice(&bytes),
                _ => unreachable!(),
            }
        }
    }

    pub fn write(
        &mut self,
        path: &str,
        content: &[u8],
        how: WriteHow,
    ) -> Result<Reply, ClientError> {
        let stream = self.send(&Request::WriteFile {
            path: path.into(),
            mode: 0o644,
            how,
        });
        let client = self.sandbox.client();
        client.input(stream, content)?;
        client.end_input(stream)?;
        client.answer_to(stream)
    }

    /// Proves with a canary of the test's choice, which must be on the host as well.
    pub fn prove_with(&mut self, inside: &Path) -> Result<(), SandboxError> {
        assert!(self.state.path().exists());
        self.sandbox.prove_unread(inside).map(drop)
    }
}
