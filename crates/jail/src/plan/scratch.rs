//! The part of the plan that is in memory: home and temporary files, and what a policy asks for.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use super::{Holds, List, OWN, Op, PlanError, Root, Runs, Shown, Spec, mounts, text};

/// A directory in memory, with a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Absolute path inside.
    pub inside: PathBuf,
    pub bytes: u64,
}

/// BOUND: inodes are kernel memory; 100,000 temporary files are enough for any build.
const INODES: u32 = 100_000;

pub(super) fn usual(list: &mut List, spec: &Spec) {
    match spec.workspace.holds {
        Holds::Folder => {
            tmpfs(list, spec, "tmp", 0o1777);
            list.directory("home", 0o755);
            tmpfs(list, spec, "home/agent", 0o700);
        }
        // Filled with the workspace.
        Holds::Everything => {
            for path in ["tmp", "home", "home/agent"] {
                list.directory(path, 0o755);
            }
        }
    }
    list.directory("var", 0o755);
    list.link("/tmp", "var/tmp");
    list.directory("run", 0o755);
    // What an image may lack and packages go to: what can be written of `/` is said beforehand.
    if spec.runs == Runs::Setup {
        for (path, mode) in [
            ("opt", 0o755),
            ("root", 0o700),
            ("srv", 0o755),
            ("usr", 0o755),
        ] {
            list.directory(path, mode);
        }
    }
    // An image has its own, and whether it can be entered is for its modes to say.
    if spec.root == Root::Host {
        list.directory("sys", 0o555);
        list.directory("root", 0o555);
    }
}

pub(super) fn tmpfs(list: &mut List, spec: &Spec, path: &str, mode: u32) {
    list.directory(path, 0o755);
    list.push(Op::Tmpfs {
        path: text(path),
        options: options(spec, mode, spec.tmpfs_bytes),
    });
}

fn options(spec: &Spec, mode: u32, size: u64) -> CString {
    let id = spec.runs.id();
    text(&format!(
        "mode={mode:o},uid={id},gid={id},size={size},nr_inodes={INODES}"
    ))
}

/// What a policy asks for comes last: it is made apart and shown at its place, on the way to which
/// no link is followed.
pub(super) fn areas(list: &mut List, spec: &Spec, workspace: &str) -> Result<(), PlanError> {
    let made = format!("{OWN}/scratch");
    if !spec.tmpfs.is_empty() {
        list.directory(&made, 0o755);
    }
    // HOSTILE: a folder chooses sizes, and what is only watched is not held by the kernel. All areas
    // together have what one of the usual ones has.
    let share = spec.tmpfs_bytes / spec.tmpfs.len().max(1) as u64;
    for area in &spec.tmpfs {
        let parts = parts(&area.inside, workspace)?;
        list.push(Op::Tmpfs {
            path: text(&made),
            options: options(spec, 0o755, area.bytes.min(share)),
        });
        list.push(Op::Reveal {
            mount: Shown::At(text(&made)),
            parts,
            is_directory: true,
        });
        list.push(Op::Detach { path: text(&made) });
    }
    Ok(())
}

/// Whether a directory in memory can be at this path of a sandbox whose workspace is at another.
pub fn may_be_scratch(inside: &Path, workspace: &Path) -> bool {
    let workspace = workspace.strip_prefix("/").unwrap_or(workspace);
    parts(inside, &workspace.to_string_lossy()).is_ok()
}

/// As for mounts, and below the temporary directory as well. `/var/tmp` is a link to that.
fn parts(inside: &Path, workspace: &str) -> Result<Vec<CString>, PlanError> {
    let below = ["/tmp", "/var/tmp"]
        .iter()
        .find_map(|own| inside.strip_prefix(own).ok());
    match below {
        // Looked at as if it was anywhere else, so that the same rules hold for its names.
        Some(rest) => {
            let elsewhere = Path::new("/mnt").join(rest);
            let mut parts = mounts::parts(&elsewhere, workspace)
                .map_err(|_| PlanError::OccupiedMount(inside.to_owned()))?;
            let meets = Path::new(workspace).starts_with(Path::new("tmp").join(rest))
                || Path::new("tmp").join(rest).starts_with(workspace);
            if parts.len() < 2 || meets {
                return Err(PlanError::OccupiedMount(inside.to_owned()));
            }
            parts[0] = text("tmp");
            Ok(parts)
        }
        None => mounts::parts(inside, workspace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_where_the_sandbox_has_nothing_and_below_the_temporary_directory() {
        for (path, expected) in [
            ("/var/tmp/db", true),
            ("/tmp/db", true),
            ("/tmp/a/b", true),
            ("/data", true),
            ("/home/agent/.cache", true),
            ("/var/lib/db", true),
            ("/tmp", false),
            ("/var/tmp", false),
            ("/tmp/..", false),
            ("/tmp/a/../b", false),
            ("/tmp/own", false),
            ("/tmp/own/x", true),
            ("/tmp/own/tree/x", false),
            ("/usr/x", false),
            ("/home/agent", false),
            ("/proc/x", false),
            ("/", false),
            ("x", false),
        ] {
            let here = may_be_scratch(Path::new(path), Path::new("/tmp/own/tree"))
                && may_be_scratch(Path::new(path), Path::new("/workspace"));
            assert_eq!(here, expected, "{path}");
        }
        let same = |path: &str| parts(Path::new(path), "workspace").unwrap();
        assert_eq!(same("/var/tmp/db"), same("/tmp/db"));
    }
}
