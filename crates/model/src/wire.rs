//! The protocol between the host and the guest: frames on any byte stream.
//!
//! ```text
//! ┌───────────┬─────────┬───────────┬─────────┐
//! │ length u32│ kind u8 │ stream u32│ payload │   little endian; length counts the payload
//! └───────────┴─────────┴───────────┴─────────┘
//! ```
//!
//! The host numbers its requests; the number names the stream of everything that belongs to it:
//! its reply, its events, its output and its input. Control payloads are JSON, data payloads are
//! raw bytes. Nothing here knows which backend carries the stream.

use serde::{Deserialize, Serialize};

use crate::ByteText;
use crate::journal::ProbeResult;
use crate::observed::Observed;

/// BOUND: the longest command line that a kernel takes, quoted.
pub const MAX_PAYLOAD: usize = 4 << 20;
/// Bytes before the payload.
pub const HEADER: usize = 9;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Host to guest, JSON [`Request`].
    Request = 1,
    /// Guest to host, JSON [`Reply`]; exactly one for each request.
    Reply = 2,
    /// Guest to host, JSON [`Notice`].
    Notice = 3,
    /// Input of an exec, or content of a file that is written.
    Input = 4,
    /// Output of an exec, or content of a file that is read.
    Output = 5,
    /// The second output of an exec.
    ErrorOutput = 6,
    /// No more input on this stream.
    EndInput = 7,
}

impl Kind {
    fn parse(byte: u8) -> Option<Self> {
        [
            Self::Request,
            Self::Reply,
            Self::Notice,
            Self::Input,
            Self::Output,
            Self::ErrorOutput,
            Self::EndInput,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// One frame, payload borrowed from the buffer it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub stream: u32,
    pub payload: &'a [u8],
}

/// What cannot be a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {length} bytes is over the bound of {MAX_PAYLOAD}")]
    TooLong { length: usize },
    #[error("there is no frame kind {kind}")]
    UnknownKind { kind: u8 },
}

/// Appends a frame to a buffer. The payload must fit [`MAX_PAYLOAD`].
pub fn encode(out: &mut Vec<u8>, kind: Kind, stream: u32, payload: &[u8]) {
    assert!(
        payload.len() <= MAX_PAYLOAD,
        "frames are cut before they are encoded"
    );
    let length = u32::try_from(payload.len()).expect("the bound fits 32 bits");
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads the first frame of a buffer: `None` where more bytes are needed, else the frame and how
/// many bytes it took.
pub fn decode(buffer: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some((head, rest)) = buffer.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLong { length });
    }
    let kind = Kind::parse(head[4]).ok_or(FrameError::UnknownKind { kind: head[4] })?;
    if rest.len() < length {
        return Ok(None);
    }
    let frame = Frame {
        kind,
        stream: u32::from_le_bytes([head[5], head[6], head[7], head[8]]),
        payload: &rest[..length],
    };
    Ok(Some((frame, HEADER + length)))
}

/// What the host asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Request {
    /// First message: lock yourself down and say when you are ready.
    Hello(Hello),
    /// Try what must fail, as the agent would.
    Prove(Prove),
    /// Run a program. Its stream carries output until the exec is released.
    Exec(Exec),
    /// Send a signal to an exec.
    Signal {
        exec: u32,
        signal: i32,
        scope: SignalScope,
    },
    /// Tell an exec's terminal its new size.
    Resize {
        exec: u32,
        size: WindowSize,
    },
    /// Replay what an exec wrote since `from` (as far as it is kept) and follow it from now on.
    Attach {
        exec: u32,
        from: u64,
    },
    /// Keep the exec, stop sending its output.
    Detach {
        exec: u32,
    },
    ReadFile {
        path: ByteText,
        offset: u64,
        length: u64,
    },
    /// Content follows as input frames, ended by `EndInput`; the reply comes after that.
    WriteFile {
        path: ByteText,
        mode: u32,
        how: WriteHow,
    },
    List {
        path: ByteText,
    },
    Stat {
        path: ByteText,
    },
    Remove {
        path: ByteText,
        depth: Depth,
    },
    Rename {
        from: ByteText,
        to: ByteText,
    },
    MakeDirectory {
        path: ByteText,
        parents: Parents,
    },
    /// Notices of changes directly in a directory, until `Unwatch`.
    Watch {
        path: ByteText,
    },
    Unwatch {
        watch: u32,
    },
    Ping {
        nonce: u64,
    },
    /// What the processes inside use now.
    Usage,
    /// Read on from a command, or leave what it writes in its pipes.
    Flow {
        exec: u32,
        flow: Flow,
    },
    /// Everything but the guest stands still when the answer comes.
    Freeze,
    /// Everything goes on. The answer says whether something had not stood still.
    Thaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    Free,
    Held,
}

/// How the guest locks itself and everything below it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Whom the agent runs as. Where it differs from the guest's own id, the guest switches.
    pub agent_uid: u32,
    pub agent_gid: u32,
    /// Where the workspace is; what happens to files below it is recorded.
    pub workspace: String,
    pub observation: Observation,
    /// Whether a gate asks for sockets on the second socket that was handed over.
    pub gate: bool,
    /// Directories that the agent may write.
    pub writable: Vec<String>,
    /// Whether one of them is the host's own: then no set-id bit can be made.
    pub writes_host: bool,
    /// How long output may be idle after the leader's exit before an exec ends.
    pub drain_idle_ms: u64,
    /// Soft and hard resource limits of every exec.
    pub open_files: u64,
    pub processes: u64,
    pub ids: Ids,
    pub file_bytes: Option<u64>,
    pub memory: Option<MemoryWatch>,
    pub cpu_seconds: Option<u64>,
    /// Where the host cannot look at what the workspace grows by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskWatch>,
    /// Where commands are a setup's and not an agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
}

/// Whose the ids inside are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// This sandbox's alone: a bound for one user is a bound for the sandbox.
    Own,
    /// Also others' on the host. The number of processes is bounded by other means.
    Shared,
}

/// Commands that are root of an image of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// What they keep, as bits, in their own user namespace.
    pub capabilities: u64,
    /// Whether `/` itself can be written.
    pub writes_root: bool,
}

/// Whether what commands do is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// Every exec, verified where nobody else traces it, and every call that changes files.
    Verified,
    /// Nothing. No run and no sandbox of a user is without; measurements compare with it.
    Off,
}

/// The guest looks at what the workspace grew by and ends everything beyond the bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskWatch {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

/// The guest looks at the memory in use and ends everything beyond the bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryWatch {
    pub limit_bytes: u64,
}

/// What must fail inside. The host makes the canaries and knows what is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prove {
    /// A host file that must not be readable.
    pub canary: ByteText,
    /// A listening port of the host that must not be reachable.
    pub host_port: Option<u16>,
    /// Directories in which nothing can be made.
    pub unwritable: Vec<String>,
    /// Directories and files at which nothing can change, mode and times included.
    pub held: Vec<String>,
    /// A directory in which a file can be made, or a file that can be written.
    pub writable: String,
    /// Attempts that are known to work on this backend, and do no harm. They are not made, and that is
    /// part of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<String>,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub argv: Vec<ByteText>,
    pub env: Vec<(ByteText, ByteText)>,
    pub cwd: ByteText,
    pub stdin: Stdin,
    /// A terminal of this size instead of pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<WindowSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub output: OutputMode,
    pub leftovers: Leftovers,
}

/// What becomes of processes that outlive the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leftovers {
    /// They live on: a server started with `&` is wanted.
    Keep,
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing to read.
    Empty,
    /// Input frames on the exec's stream.
    Frames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// Sent as it comes.
    Attached,
    /// Kept in a ring inside until somebody attaches.
    Background,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    pub columns: u16,
    pub rows: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// The leader's process group, as a terminal would.
    Foreground,
    /// Everything that the exec started.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteHow {
    /// Make or replace, all at once.
    Replace,
    Append,
    /// Fail if it is there.
    CreateOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    Entry,
    Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parents {
    Existing,
    Make,
}

/// What the guest answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    Done,
    Ready {
        wall: Wall,
    },
    Proof {
        probes: Vec<ProbeResult>,
    },
    Started {
        pid: i32,
    },
    /// Content follows on the stream as output frames, ended by an empty one.
    File {
        size: u64,
    },
    Listing {
        entries: Vec<Entry>,
        truncated: bool,
    },
    Entry(Entry),
    Attached {
        from: u64,
    },
    Pong {
        nonce: u64,
    },
    Usage(Usage),
    /// Everything goes on; so many threads had run meanwhile.
    Thawed {
        ran: u64,
    },
    Failed(Failure),
}

/// How much of the second wall (Landlock) stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    Full,
    Partial,
    Absent,
}

/// Why a request failed: the operation, what it acted on, and the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("cannot {operation} `{subject}`: {reason}")]
pub struct Failure {
    pub operation: String,
    pub subject: ByteText,
    pub errno: i32,
    pub reason: String,
}

/// What the guest says unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// The exec of this stream is over; leftovers live on.
    Exited(Exited),
    /// Nothing that the exec started is alive any more.
    Gone,
    /// A bound was met; what follows from it is said in `Exited`.
    Bound { bound: Bound, detail: String },
    /// So much input of an exec was taken; the host keeps a bounded amount under way.
    InputTaken { bytes: u64 },
    /// Something changed in a watched directory.
    Changed { name: ByteText, what: Changed },
    /// What the kernel showed of the processes of this exec.
    Observed(Observed),
}

/// How an exec ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Why nothing was started, where nothing was.
    pub not_started: Option<Failure>,
    /// The bound that ended it, where one did.
    pub bound: Option<Bound>,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// What it left running.
    pub leftovers: Vec<Leftover>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Time,
    Memory,
    Processes,
    Cpu,
    Disk,
}

/// A process that outlived its exec's leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub pid: i32,
    pub command: ByteText,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    Created,
    Modified,
    Removed,
    /// Too much at once: look yourself.
    Overflow,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: ByteText,
    pub what: EntryType,
    pub mode: u32,
    pub size: u64,
    pub modified_seconds: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryType {
    File,
    Directory,
    Symlink,
    Special,
}

/// What the processes inside use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Threads of everything, pid 1 and wardens included.
    pub processes: u64,
    /// What looks like a warden of ours.
    pub wardens: u64,
    pub memory_bytes: u64,
    pub cpu_ms: u64,
    /// Disk held by files that are open but have no name any more.
    pub unlinked_bytes: u64,
    /// Processes whose open files could not be looked at.
    pub hidden_processes: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_heads_are_refused() {
        let mut long = Vec::new();
        long.extend_from_slice(&u32::MAX.to_le_bytes());
        long.extend_from_slice(&[5, 0, 0, 0, 0]);
        assert!(matches!(decode(&long), Err(FrameError::TooLong { .. })));
        let unknown = [0, 0, 0, 0, 99, 0, 0, 0, 0];
        assert_eq!(decode(&unknown), Err(FrameError::UnknownKind { kind: 99 }));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            stream: u32,
            cut in 0usize..309,
        ) {
            let mut buffer = Vec::new();
            encode(&mut buffer, Kind::Output, stream, &payload);
            let (frame, used) = decode(&buffer).unwrap().unwrap();
            prop_assert_eq!(frame, Frame { kind: Kind::Output, stream, payload: &payload });
            prop_assert_eq!(used, buffer.len());
            if cut < buffer.len() {
                prop_assert_eq!(decode(&buffer[..cut]).unwrap(), None);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
