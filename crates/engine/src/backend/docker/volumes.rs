//! Without root, only the engine can join layers: as volumes of its own, which are overlays of the same
//! form as ours. What the kernel leaves in the work directory of such a mount belongs to root, so that
//! only the engine can remove it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::attach::escaped;
use ringfence_jail::plan::{Access, Holds, PrivateOverlay, Spec};
use serde_json::{Value, json};

use super::api::Ask;
use super::place::{self, GUEST, Mount, Place, Source, failed, make_all, read_only};
use super::{Docker, container, image, text};
use crate::backend::BackendError;
use crate::guest::{self, Readable};

/// BOUND: so many sandboxes' leavings are removed at once: it takes a container.
const MANY: usize = 16;
/// BOUND: the kernel takes one page of options.
const OPTIONS_BYTES: usize = 4000;

/// All that a specification shows, but the system.
pub fn shown(spec: &Spec, place: &Place) -> Result<Vec<Mount>, BackendError> {
    let own = &spec.workspace;
    let lower: Vec<PathBuf> = own.lower.iter().chain(&own.below).cloned().collect();
    let (upper, work) = (own.layer.join("upper"), own.layer.join("work"));
    let mut mounts = Vec::new();
    match own.holds {
        Holds::Folder => {
            mounts.push(written(&lower, &upper, &work, text(&own.inside)?)?);
        }
        Holds::Everything => {
            for (part, inside) in [
                ("workspace", text(&own.inside)?),
                ("home", "/home/agent".to_owned()),
                ("tmp", "/tmp".to_owned()),
            ] {
                mounts.push(part_of(&lower, &upper, &work, part, inside)?);
            }
        }
    }
    let mut soiled = vec![work];
    for overlay in &spec.overlays {
        mounts.push(private(overlay)?);
        soiled.push(overlay.layer.join("work"));
    }
    place.soil(&soiled)?;
    let shade = place.path().join("shade");
    make_all(&shade.join("info"))?;
    fs::write(shade.join("info/alternates"), "").map_err(failed("write", &shade))?;
    let blank = place.path().join("blank");
    make_all(&blank)?;
    for (number, objects) in own.objects.iter().enumerate() {
        as_looked_at(&objects.host, objects.identity)?;
        mounts.push(veiled(
            &shade,
            &objects.host,
            format!("/.ringfence/objects/{number}"),
        )?);
    }
    if let Some(tools) = &own.tools {
        mounts.push(veiled(&shade, tools, "/.ringfence/tools".to_owned())?);
    }
    for mount in &spec.mounts {
        let inside = text(&mount.inside)?;
        as_looked_at(&mount.host, mount.identity)?;
        mounts.push(match (mount.is_directory, mount.access) {
            (true, Access::ReadOnly) => veiled(&blank, &mount.host, inside)?,
            (_, access) => Mount {
                access,
                ..read_only(&mount.host, &inside)?
            },
        });
    }
    Ok(mounts)
}

/// Whether a path is what was looked at: the engine goes by the path.
fn as_looked_at(path: &Path, identity: (u64, u64)) -> Result<(), BackendError> {
    let now = fs::symlink_metadata(path).map_err(failed("look at", path))?;
    if (now.dev(), now.ino()) == identity {
        return Ok(());
    }
    Err(BackendError::DoesNotHold {
        backend: super::DOCKER,
        what: "a mount that is another file by now",
    })
}

/// One directory of layers that have several.
fn part_of(
    lower: &[PathBuf],
    upper: &Path,
    work: &Path,
    part: &str,
    inside: String,
) -> Result<Mount, BackendError> {
    let mut parts = Vec::new();
    for layer in lower {
        let directory = layer.join(part);
        let Ok(metadata) = fs::symlink_metadata(&directory) else {
            continue;
        };
        if !metadata.is_dir() {
            break;
        }
        let opaque = is_opaque(&directory);
        parts.push((directory, metadata.permissions().mode() & 0o7777));
        // What is below it was there before, and is not any more.
        if opaque {
            break;
        }
    }
    let top = upper.join(part);
    if !top.is_dir() {
        let mode = parts.first().map_or(0o755, |(_, mode)| *mode);
        let made = fs::create_dir(&top)
            .and_then(|()| fs::set_permissions(&top, fs::Permissions::from_mode(mode)));
        made.map_err(failed("make", &top))?;
    }
    let work = work.join(part);
    make_all(&work)?;
    let lower: Vec<PathBuf> = if parts.is_empty() || is_opaque(&top) {
        // The kernel wants one below.
        let empty = work.with_extension("empty");
        make_all(&empty)?;
        vec![empty]
    } else {
        parts.into_iter().map(|(path, _)| path).collect()
    };
    written(&lower, &top, &work, inside)
}

fn is_opaque(directory: &Path) -> bool {
    let mut value = [0_u8; 1];
    let read = rustix::fs::lgetxattr(directory, "user.overlay.opaque", &mut value[..]);
    read == Ok(1) && value == *b"y"
}

fn private(overlay: &PrivateOverlay) -> Result<Mount, BackendError> {
    let (upper, work) = (overlay.layer.join("upper"), overlay.layer.join("work"));
    written(&overlay.lower, &upper, &work, text(&overlay.inside)?)
}

fn written(
    lower: &[PathBuf],
    upper: &Path,
    work: &Path,
    inside: String,
) -> Result<Mount, BackendError> {
    let options = [
        b"lowerdir=".to_vec(),
        joined(lower),
        b",upperdir=".to_vec(),
        escaped(upper),
        b",workdir=".to_vec(),
        escaped(work),
        b",userxattr".to_vec(),
    ];
    mount(options.concat(), 3, inside, Access::Write)
}

/// A directory that is only read: none of its sockets and pipes can be reached through an overlay.
fn veiled(above: &Path, source: &Path, inside: String) -> Result<Mount, BackendError> {
    let lower = joined(&[above.to_owned(), source.to_owned()]);
    let options = [b"lowerdir=".to_vec(), lower, b",userxattr".to_vec()];
    mount(options.concat(), 1, inside, Access::ReadOnly)
}

fn joined(lower: &[PathBuf]) -> Vec<u8> {
    let paths: Vec<Vec<u8>> = lower.iter().map(|path| escaped(path)).collect();
    paths.join(&b':')
}

fn commas(options: &[u8]) -> usize {
    options.iter().filter(|&&byte| byte == b',').count()
}

/// `marks`: how many commas part the options.
fn mount(
    options: Vec<u8>,
    marks: usize,
    inside: String,
    access: Access,
) -> Result<Mount, BackendError> {
    let does_not = |what| BackendError::DoesNotHold {
        backend: super::DOCKER,
        what,
    };
    if options.len() > OPTIONS_BYTES {
        return Err(does_not("so many layers, unless it is root"));
    }
    // An engine parts options at every comma, whatever stands before it.
    if commas(&options) > marks {
        return Err(does_not("a path with a comma in it, unless it is root"));
    }
    let options = String::from_utf8(options).map_err(|_| does_not("a path that is not UTF-8"))?;
    Ok(Mount {
        source: Source::Overlay(options),
        inside,
        access,
    })
}

/// Has the engine remove what only it can, where much has come together.
pub fn clear_many(docker: &Docker, places: &Path) {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let entries = fs::read_dir(places).into_iter().flatten().flatten();
    let soiled: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.join("soiled0").is_dir() && !path.join("own").exists())
        .collect();
    if soiled.len() >= MANY {
        for path in &soiled {
            // Found again by the next.
            let _ = clear(docker, path);
            place::remove(path);
        }
    }
}

/// Removes the volumes of a sandbox whose container is gone: whoever removes one by hand leaves them.
/// What is in use goes with its container.
pub fn remove(docker: &Docker, name: &str) -> Result<(), BackendError> {
    if rustix::process::geteuid().is_root() && docker.engine.way.is_local() {
        return Ok(());
    }
    let label = format!("{}={name}", container::NAME_LABEL);
    let filter = container::percent(&json!({ "label": [label] }).to_string());
    let engine = &docker.engine;
    let path = format!("/volumes?filters={filter}");
    let told: Value = engine.ask("list volumes", Ask::Get, &path)?;
    let volumes = told["Volumes"].as_array().into_iter().flatten();
    for volume in volumes.filter_map(|volume| volume["Name"].as_str()) {
        let path = format!("/volumes/{}", container::percent(volume));
        engine.bytes("remove a volume", Ask::Delete, &path)?;
    }
    Ok(())
}

/// A container of root's that has one directory, and nothing to do but to empty it.
pub fn clear(docker: &Docker, path: &Path) -> Result<(), BackendError> {
    // INVARIANT: what runs there removes as root. Root needs nobody for that, and nothing that is mounted
    // below is shown.
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let places = &docker.places;
    let guest = guest::kept(places, Readable::ByNobody).map_err(failed("keep", places))?;
    let bind = |source: &Path, target: &str, read_only: bool| -> Result<Value, BackendError> {
        let source = text(source)?;
        let alone = json!({ "NonRecursive": true, "Propagation": "rprivate" });
        Ok(
            json!({ "Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only,
                   "BindOptions": alone }),
        )
    };
    let body = json!({
        "Image": image::empty(&docker.engine)?,
        "User": "0:0",
        "Entrypoint": [GUEST, "--clear", "/place"],
        "HostConfig": {
            "AutoRemove": true,
            "NetworkMode": "none",
            "ReadonlyRootfs": true,
            "CapDrop": ["ALL"],
            "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": { "Type": "none", "Config": {} },
            "Mounts": [bind(path, "/place", false)?, bind(&guest, GUEST, true)?],
        },
    });
    let what = "clear what is left of a sandbox";
    let engine = &docker.engine;
    let made: Value = engine.ask(what, Ask::Post(Some(&body)), "/containers/create")?;
    let id = made["Id"].as_str().unwrap_or_default();
    engine.bytes(what, Ask::Post(None), &format!("/containers/{id}/start"))?;
    let path = format!("/containers/{id}/wait?condition=removed");
    match engine.bytes(what, Ask::Post(None), &path) {
        Err(BackendError::Refused { status: 404, .. }) => Ok(()),
        waited => waited.map(drop),
    }
}
