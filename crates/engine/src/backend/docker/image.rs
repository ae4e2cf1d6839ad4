//! Images of an engine: found by name, looked at, and one that is empty.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ringfence_jail::accounts::Accounts;
use ringfence_model::{ByteText, hex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::api::{Ask, Engine};
use super::container::percent;
use super::place::failed;
use crate::backend::BackendError;
use crate::images::tar::{EntryKind, Reader};
use crate::lock::FileLock;

/// An image that an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignImage {
    /// The engine's own id: a hash of what it is.
    pub id: String,
    /// HOSTILE: its maker's.
    pub env: Vec<(ByteText, ByteText)>,
}

/// What our empty image is called, by its version. Podman knows no tag of what is imported.
const EMPTY: &str = "ringfence-empty-1";
/// The end of an archive, and nothing before it.
const NOTHING: [u8; 1024] = [0; 1024];
/// BOUND: lists of users of the largest distributions have some kilobytes.
const ACCOUNTS_BYTES: u64 = 1 << 20;

pub fn find(engine: &Engine, name: &str) -> Result<ForeignImage, BackendError> {
    let path = format!("/images/{}/json", percent(name));
    let told: Value = match engine.ask("look at the image", Ask::Get, &path) {
        Err(BackendError::Refused { status: 404, .. }) => {
            return Err(BackendError::NoImage {
                engine: engine.name,
                image: name.to_owned(),
            });
        }
        told => told?,
    };
    described(name, &told)
}

/// By what the engine tells of it.
fn described(name: &str, told: &Value) -> Result<ForeignImage, BackendError> {
    let architecture = told["Architecture"].as_str().unwrap_or_default();
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    // An image that was imported from a directory may not say.
    if !architecture.is_empty() && architecture != own {
        return Err(BackendError::Architecture {
            image: name.to_owned(),
            found: architecture.to_owned(),
            wanted: own.to_owned(),
        });
    }
    let env = told["Config"]["Env"].as_array().into_iter().flatten();
    let env = env.filter_map(|line| line.as_str()?.split_once('='));
    Ok(ForeignImage {
        id: told["Id"].as_str().unwrap_or_default().to_owned(),
        env: env
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
    })
}

/// An image without a file, for sandboxes that see the host's own system.
pub fn empty(engine: &Engine) -> Result<String, BackendError> {
    match find(engine, EMPTY) {
        Err(BackendError::NoImage { .. }) => {}
        found => return Ok(found?.id),
    }
    let path = format!("/images/create?fromSrc=-&repo={EMPTY}&tag=latest");
    engine.bytes("make an empty image", Ask::Upload(&NOTHING), &path)?;
    Ok(find(engine, EMPTY)?.id)
}

/// What we need to know of the files of an image, kept beside the places by its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// `/etc/passwd` and `/etc/group`, as far as they are plain files.
    passwd: Vec<u8>,
    group: Vec<u8>,
    /// HOSTILE: where our own directory goes it has something that is none: a link would lead our mounts
    /// elsewhere.
    in_the_way: bool,
}

/// Looks into an image, once for each.
pub fn look(engine: &Engine, places: &Path, image: &str) -> Result<Looked, BackendError> {
    // Other homes look by themselves.
    let named = [places.as_os_str().as_bytes(), b"\0", image.as_bytes()].concat();
    let hash = hex(&Sha256::digest(named));
    let kept = places.join(format!(".image-{}", &hash[..16]));
    let known = || -> Option<Looked> { serde_json::from_slice(&fs::read(&kept).ok()?).ok() };
    let looked = match known() {
        Some(looked) => looked,
        None => {
            // One at a time: the container that is looked into has a name of its own for each image.
            let lock = kept.with_extension("lock");
            let held = FileLock::wait(&lock, || {});
            let held = held.map_err(|error| io::Error::other(error.to_string()));
            let _held = held.map_err(failed("lock", &lock))?;
            match known() {
                Some(looked) => looked,
                None => {
                    let looked = look_into(engine, &hash[..16], image)?;
                    let json = serde_json::to_vec(&looked).unwrap_or_default();
                    let part = kept.with_extension("part");
                    // Where it cannot be kept, it is looked at again.
                    let _ = fs::write(&part, json).and_then(|()| fs::rename(&part, &kept));
                    looked
                }
            }
        }
    };
    if looked.in_the_way {
        Err(BackendError::DoesNotHold {
            backend: super::DOCKER,
            what: "an image that has something else than a directory at `/.ringfence`",
        })
    } else {
        Ok(looked)
    }
}

fn look_into(engine: &Engine, hash: &str, image: &str) -> Result<Looked, BackendError> {
    let what = "look into the image";
    // Never started: a file of an image can only be had through a container. One that was left is known by
    // its name.
    let name = format!("ringfence-look-{hash}");
    let path = format!("/containers/{name}?force=1&v=1");
    let forget = || match engine.bytes(what, Ask::Delete, &path) {
        Err(BackendError::Refused { status: 404, .. }) => Ok(()),
        done => done.map(drop),
    };
    forget()?;
    let body = json!({
        "Image": image,
        "Entrypoint": ["/"],
        "NetworkDisabled": true,
        "HostConfig": { "NetworkMode": "none", "LogConfig": { "Type": "none", "Config": {} } },
    });
    let create = format!("/containers/create?name={name}");
    engine.bytes(what, Ask::Post(Some(&body)), &create)?;
    let archive = |path: &str| {
        let path = format!("/containers/{name}/archive?path={}", percent(path));
        engine.bytes(what, Ask::Get, &path)
    };
    let read = |path: &str| {
        let file = archive(path).ok().and_then(|bytes| first_file(&bytes));
        file.unwrap_or_default()
    };
    let in_the_way = match archive("/.ringfence") {
        Ok(bytes) => first_kind(&bytes) != Some(EntryKind::Directory),
        Err(BackendError::Refused { status: 404, .. }) => false,
        Err(error) => return Err(error),
    };
    let looked = Looked {
        passwd: read("/etc/passwd"),
        group: read("/etc/group"),
        in_the_way,
    };
    forget()?;
    Ok(looked)
}

fn first_kind(archive: &[u8]) -> Option<EntryKind> {
    Reader::new(archive).advance().ok()??.kind
}

/// HOSTILE: the image's maker chose what it is.
fn first_file(archive: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(archive);
    let entry = reader.advance().ok()??;
    if entry.size > ACCOUNTS_BYTES {
        return None;
    }
    let mut content = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match reader.read(&mut buffer).ok()? {
            0 => return Some(content),
            count => content.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Those of an image, with the agent in front.
pub fn joined(looked: &Looked, agent: (u32, u32)) -> Accounts {
    Accounts::with_agent(&looked.passwd, &looked.group, agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_for_another_machine_is_none() {
        let (own, other) = match std::env::consts::ARCH {
            "aarch64" => ("arm64", "amd64"),
            _ => ("amd64", "arm64"),
        };
        let told = |architecture: &str| {
            json!({ "Id": "sha256:1", "Architecture": architecture,
                    "Config": { "Env": ["A=b=c", "broken", "PATH=/p"] } })
        };
        for architecture in [own, ""] {
            let image = described("x", &told(architecture)).expect("an image");
            assert_eq!(image.id, "sha256:1");
            let env = [("A".into(), "b=c".into()), ("PATH".into(), "/p".into())];
            assert_eq!(image.env, env);
        }
        let error = described("x", &told(other)).expect_err("another machine's");
        assert!(error.to_string().contains(other), "{error}");
    }
}
