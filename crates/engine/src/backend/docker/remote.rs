//! Sandboxes at an engine of another machine: what cannot be shown there is brought, and what changed is
//! brought back.
//!
//! ```text
//! here                                        there
//! native sandbox ── --pack ──▶ parcel ──────▶ errand: --unpack ──▶ volume `work` ─┐
//!                                      known ◀┘                                   ├─ the sandbox's container
//!                              guest, tools ▶ volume `own` (read-only) ───────────┘
//! native sandbox ◀─ --unpack ─ parcel ◀────── errand: --pack of what is not as known
//! ```
//!
//! An errand is a container of one moment with one program of ours, as the agent. The volume outlives the
//! sandbox's container: what a killed one had written is brought back all the same.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::path::Path;

use ringfence_jail::identity::AGENT_ID;
use ringfence_jail::plan::Access;
use serde_json::{Value, json};

use super::api::Ask;
use super::container::{self, NAME_LABEL};
use super::parcel::{Local, keep_tail, last_words};
use super::place::{GUEST, Mount, Place, Source, failed};
use super::{Docker, image, streams};
use crate::backend::{BackendError, Start};
use crate::guest::{self, TOOLS_NAME};

const OWN: &str = "/.ringfence";
/// BOUND: of a manifest, so many bytes: a million names.
const KNOWN_BYTES: u64 = 256 << 20;

/// What is there of one sandbox.
#[derive(Debug)]
pub struct Elsewhere {
    local: Local,
    inside: String,
}

/// Who the agent is there.
pub const AGENT: (u32, u32) = (AGENT_ID, AGENT_ID);

/// Brings the workspace there; gives what a container is shown.
pub fn stage(
    docker: &Docker,
    start: &Start<'_>,
    place: &Place,
) -> Result<(Elsewhere, Vec<Mount>), BackendError> {
    let local = Local::new(&docker.home, start)?;
    let own = &start.spec.workspace;
    let inside = super::text(&own.inside)?;
    let errand = Errand::new(docker, start.name, &inside);
    errand.put(own.objects.len())?;
    let parcel = place.path().join("parcel");
    local.pack(&inside, &parcel)?;
    errand.run(
        "--unpack",
        &inside,
        Some(&parcel),
        &place.path().join("known"),
    )?;
    for number in 0..own.objects.len() {
        let inside = format!("{OWN}/objects/{number}");
        local.pack(&inside, &parcel)?;
        errand.run(
            "--unpack",
            &inside,
            Some(&parcel),
            &place.path().join("objects"),
        )?;
    }
    let _ = std::fs::remove_file(&parcel);
    let mounts = errand.mounts(Access::ReadOnly);
    Ok((Elsewhere { local, inside }, mounts))
}

impl Elsewhere {
    /// Brings back what changed, into the layer.
    pub fn bring(&self, docker: &Docker, place: &Place) -> Result<(), BackendError> {
        let name = place.name();
        let known = place.path().join("known");
        let parcel = place.path().join("parcel");
        let bounded = Errand {
            most: self.local.most(),
            ..Errand::new(docker, &name, &self.inside)
        };
        bounded.run("--pack", &self.inside, Some(&known), &parcel)?;
        self.local.unpack(&parcel, &self.inside)
    }
}

/// What an engine's own words of a container say of its bounds: memory, and processes with threads.
pub fn bounds(docker: &Docker, id: &str) -> (Option<u64>, Option<u64>) {
    let path = format!("/containers/{id}/stats?stream=false&one-shot=true");
    let told: Result<Value, _> = docker.engine.ask("look at its bounds", Ask::Get, &path);
    let told = told.unwrap_or_default();
    (
        told["memory_stats"]["limit"].as_u64(),
        told["pids_stats"]["limit"].as_u64(),
    )
}

/// Containers of one moment.
struct Errand<'a> {
    docker: &'a Docker,
    name: &'a str,
    inside: &'a str,
    /// BOUND: bytes that are taken from one.
    most: u64,
}

impl<'a> Errand<'a> {
    fn new(docker: &'a Docker, name: &'a str, inside: &'a str) -> Self {
        Self {
            docker,
            name,
            inside,
            most: KNOWN_BYTES,
        }
    }

    fn mounts(&self, own: Access) -> Vec<Mount> {
        let volume = |part: &str, inside: &str, access| Mount {
            source: Source::Volume(format!("{}-{part}", container::name_of(self.name))),
            inside: inside.to_owned(),
            access,
        };
        vec![
            volume("own", OWN, own),
            volume("work", self.inside, Access::Write),
        ]
    }

    /// Our programs and the directories, by an archive: nothing of ours is there to run yet.
    fn put(&self, objects: usize) -> Result<(), BackendError> {
        let what = "bring our programs";
        let agent = u64::from(AGENT_ID);
        let mut archive = Archive::default();
        archive.directory(OWN, 0)?;
        archive.file(GUEST, guest::program_bytes())?;
        archive.directory(&format!("{OWN}/tools"), 0)?;
        archive.file(&tool(), guest::tools_bytes())?;
        archive.directory(&format!("{OWN}/objects"), 0)?;
        for number in 0..objects {
            archive.directory(&format!("{OWN}/objects/{number}"), agent)?;
        }
        archive.directory(self.inside, agent)?;
        let archive = archive.finish();
        self.in_container(&["/"], |engine, id| {
            let path = format!("/containers/{id}/archive?path=%2F");
            engine.bytes(what, Ask::Put(&archive), &path).map(drop)
        })
    }

    /// Runs one of our tools there, with a file as its input and one for its output.
    fn run(
        &self,
        verb: &str,
        root: &str,
        input: Option<&Path>,
        output: &Path,
    ) -> Result<(), BackendError> {
        let what = "run an errand";
        let mut said = Vec::new();
        let code = self.in_container(&[&tool(), verb, root], |engine, id| {
            let streams = streams::attach(engine, id)?;
            let path = format!("/containers/{id}/start");
            engine.bytes(what, Ask::Post(None), &path)?;
            said = self.exchange(streams, input, output)?;
            let path = format!("/containers/{id}/wait");
            let ended: Value = engine.ask(what, Ask::Post(None), &path)?;
            Ok(ended["StatusCode"].as_i64())
        })?;
        if code == Some(0) {
            return Ok(());
        }
        let said = last_words(&said).unwrap_or_else(|| format!("the errand exited with {code:?}"));
        Err(BackendError::Parcel { said })
    }

    /// Gives all of the input, then takes all of the output; gives its last bytes.
    fn exchange(
        &self,
        mut streams: std::os::unix::net::UnixStream,
        input: Option<&Path>,
        output: &Path,
    ) -> Result<Vec<u8>, BackendError> {
        if let Some(input) = input {
            let mut file = File::open(input).map_err(failed("read", input))?;
            // One that ended early has said why.
            let _ = io::copy(&mut file, &mut streams);
        }
        let _ = streams.shutdown(Shutdown::Write);
        let mut file = File::create(output).map_err(failed("write", output))?;
        let mut tail = Vec::new();
        let mut taken = 0;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = streams
                .read(&mut buffer)
                .map_err(failed("read for", output))?;
            if count == 0 {
                return Ok(tail);
            }
            taken += count as u64;
            if taken > self.most {
                return Err(BackendError::Parcel {
                    said: format!("there is more than {} bytes of it", self.most),
                });
            }
            keep_tail(&mut tail, &buffer[..count]);
            file.write_all(&buffer[..count])
                .map_err(failed("write", output))?;
        }
    }

    fn in_container<T>(
        &self,
        entry: &[&str],
        act: impl FnOnce(&super::api::Engine, &str) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let engine = &self.docker.engine;
        let mounts = self.mounts(Access::Write);
        let mounts = mounts.iter().map(|mount| mount.describe(self.name));
        let body = json!({
            "Image": image::empty(engine)?,
            "User": format!("{AGENT_ID}:{AGENT_ID}"),
            "Entrypoint": entry,
            "Cmd": [],
            "Labels": { NAME_LABEL: self.name },
            "OpenStdin": true,
            "StdinOnce": true,
            "HostConfig": {
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges", format!("seccomp={}", container::seccomp())],
                "PidsLimit": 8,
                "LogConfig": { "Type": "none", "Config": {} },
                "Mounts": mounts.collect::<Vec<_>>(),
            },
        });
        let id = self.docker.create(&name_of(self.name), &body)?;
        let done = act(engine, &id);
        let removed = self.docker.remove(&id);
        let done = done?;
        removed.map(|()| done)
    }
}

fn tool() -> String {
    format!("{OWN}/tools/{TOOLS_NAME}")
}

/// What the errands of a sandbox are called.
pub fn name_of(name: &str) -> String {
    format!("{}-errand", container::name_of(name))
}

/// A tar of directories and programs.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    const BLOCK: usize = 512;

    fn directory(&mut self, path: &str, owner: u64) -> Result<(), BackendError> {
        self.head(&format!("{path}/"), b'5', 0o755, owner, 0)
    }

    fn file(&mut self, path: &str, content: &[u8]) -> Result<(), BackendError> {
        self.head(path, b'0', 0o555, 0, content.len() as u64)?;
        self.0.extend_from_slice(content);
        let rest = self.0.len() % Self::BLOCK;
        if rest > 0 {
            self.0.resize(self.0.len() + Self::BLOCK - rest, 0);
        }
        Ok(())
    }

    fn head(
        &mut self,
        path: &str,
        kind: u8,
        mode: u64,
        owner: u64,
        size: u64,
    ) -> Result<(), BackendError> {
        let path = path.trim_start_matches('/').as_bytes();
        // BOUND: the form's own for a name.
        if path.len() > 100 {
            return Err(BackendError::DoesNotHold {
                backend: super::DOCKER,
                what: "so long a path of the workspace inside",
            });
        }
        let mut head = [0_u8; Self::BLOCK];
        head[..path.len()].copy_from_slice(path);
        let mut number = |at: usize, digits: usize, value: u64| {
            let text = format!("{value:0digits$o}");
            head[at..at + digits].copy_from_slice(text.as_bytes());
        };
        number(100, 7, mode);
        number(108, 7, owner);
        number(116, 7, owner);
        number(124, 11, size);
        number(136, 11, 0);
        head[148..156].fill(b' ');
        head[156] = kind;
        head[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u64 = head.iter().map(|byte| u64::from(*byte)).sum();
        head[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        head[154] = 0;
        self.0.extend_from_slice(&head);
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * Self::BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::tar::{EntryKind, Reader};

    #[test]
    fn an_archive_is_one() {
        let mut archive = Archive::default();
        archive.directory("/.ringfence", 1000).expect("short");
        archive.file("/.ringfence/x", &[7; 600]).expect("short");
        assert!(archive.directory(&"x".repeat(200), 0).is_err());
        let archive = archive.finish();
        let mut reader = Reader::new(&archive[..]);
        let first = reader.advance().expect("an entry").expect("one");
        assert_eq!(first.kind, Some(EntryKind::Directory));
        assert_eq!(first.path, b".ringfence/");
        let second = reader.advance().expect("an entry").expect("two");
        assert_eq!((second.kind, second.size), (Some(EntryKind::File), 600));
        assert_eq!(second.path, b".ringfence/x");
        let mut content = [0; 1024];
        assert_eq!(reader.read(&mut content).expect("content"), 600);
        assert!(reader.advance().expect("the end").is_none());
    }
}
