//! The part of the plan that is `/`: a small tmpfs of our own with the host's system in it, or the
//! layers of an image below a scaffold of ours.
//!
//! ```text
//!   scaffold   a directory or file for every place where something is mounted or ours   ┐ one overlay,
//!   setup      what a setup has installed                                               ├ read-only
//!   layers     the image's, as they were unpacked                                       ┘
//! ```
//!
//! HOSTILE: an image may have a link, a pipe or a file wherever we mount something. The scaffold is
//! on top, so that what is found there is ours; nothing of the image is looked up by its path before
//! it is `/`. Our own directory and `/dev` are file systems of their own, with nothing of the image.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::PathBuf;

use super::{
    LAYER_ATTRIBUTES, List, OWN, Op, PlanError, ROOT_OPTIONS, SYSTEM_ATTRIBUTES, Spec, host, text,
};

/// What `/` is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The host's own system, read-only.
    Host,
    Image(ImageRoot),
    /// An image that an engine of somebody else's has, by its id there. Our own launcher has none.
    Foreign(String),
}

/// An image as `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRoot {
    /// Read-only layers, the topmost first. As root, their owners on the disk are those of the
    /// inside.
    pub lower: Vec<PathBuf>,
    /// What a setup has installed over them, owned as layers of sandboxes are.
    pub setup: Option<PathBuf>,
    /// Of a setup: holds `upper`, which is empty, and `work` of a `/` that can be written.
    pub writable: Option<PathBuf>,
}

/// BOUND: other programs make and take images of at most 127 layers; the kernel stacks 500.
pub const MOST_LAYERS: usize = 256;

const SCAFFOLD: &str = "scaffold";
const WRITTEN: &str = "written";
const JOINED: &str = "joined";

/// How many slots are taken by the root. They are the first.
pub(super) fn slots(spec: &Spec) -> usize {
    match &spec.root {
        Root::Host | Root::Foreign(_) => 0,
        Root::Image(image) => {
            let beside = image.setup.iter().chain(&image.writable).count();
            image.lower.len() + beside
        }
    }
}

pub(super) fn open(list: &mut List, spec: &Spec) -> Result<(), PlanError> {
    let Root::Image(image) = &spec.root else {
        return Ok(());
    };
    if image.lower.len() > MOST_LAYERS {
        return Err(PlanError::TooManyLayers {
            count: image.lower.len(),
        });
    }
    if let Some(setup) = &image.setup {
        list.open(host(setup)?, SYSTEM_ATTRIBUTES);
    }
    for layer in &image.lower {
        let slot = list.slots;
        list.slots += 1;
        list.push(Op::OpenLayer {
            slot,
            path: host(layer)?,
        });
    }
    if let Some(writable) = &image.writable {
        list.open(host(writable)?, LAYER_ATTRIBUTES);
    }
    Ok(())
}

/// A directory of the root that must hold nothing of an image.
pub(super) fn apart(list: &mut List, spec: &Spec, path: &str) {
    if let Root::Image(_) = spec.root {
        list.push(Op::Tmpfs {
            path: text(path),
            options: text(ROOT_OPTIONS),
        });
    }
}

/// Splits what makes the inside, from `staged` on: what is made directly in `/` is made in the
/// scaffold, then `/` is joined, and the rest is mounted there.
pub(super) fn raise(list: &mut List, spec: &Spec, staged: usize) {
    let Root::Image(image) = &spec.root else {
        return;
    };
    let inside = list.ops.split_off(staged);
    let mut scaffold = Scaffold::default();
    for op in inside {
        scaffold.take(op);
    }
    list.directory(SCAFFOLD, 0o755);
    list.ops.extend(scaffold.made);
    let mut lower = vec![SCAFFOLD.to_owned()];
    let mut slot = 0;
    let mut attach = |list: &mut List, path: &str| {
        list.directory(path, 0o755);
        list.push(Op::Attach {
            slot,
            path: text(path),
        });
        slot += 1;
    };
    // Short names: the kernel takes one page of them.
    let below = image.setup.iter().chain(&image.lower);
    for number in 0..below.count() {
        let path = number.to_string();
        attach(list, &path);
        lower.push(path);
    }
    let mut options = format!("lowerdir={},userxattr", lower.join(":"));
    if image.writable.is_some() {
        attach(list, WRITTEN);
        options += &format!(",upperdir={WRITTEN}/upper,workdir={WRITTEN}/work,volatile");
    } else if lower.len() == 1 {
        // An image of nothing: the kernel joins two layers or more.
        list.directory("0", 0o755);
        options = format!("lowerdir={SCAFFOLD}:0,userxattr");
    }
    list.directory(JOINED, 0o755);
    list.push(Op::Overlay {
        path: text(JOINED),
        options: text(&options),
        attributes: match image.writable {
            Some(_) => LAYER_ATTRIBUTES,
            None => SYSTEM_ATTRIBUTES,
        },
    });
    list.push(Op::Enter { path: text(JOINED) });
    list.ops.extend(scaffold.mounted);
}

/// After the pivot: what is ours takes no writes any more.
pub(super) fn seal(list: &mut List, spec: &Spec) {
    let ours: &[&str] = match spec.root {
        Root::Host | Root::Foreign(_) => &["/"],
        Root::Image(_) => &[OWN, "dev"],
    };
    for path in ours {
        list.push(Op::Seal { path: text(path) });
    }
}

/// What is made before `/` is joined, and what is mounted after.
#[derive(Default)]
struct Scaffold {
    made: Vec<Op>,
    mounted: Vec<Op>,
    /// Where something is mounted by now.
    taken: Vec<Vec<u8>>,
    directories: BTreeSet<Vec<u8>>,
}

impl Scaffold {
    fn take(&mut self, op: Op) {
        match op {
            Op::Directory { path, mode } if self.is_free(&path) => {
                if self.directories.insert(path.as_bytes().to_vec()) {
                    let path = within(path.as_bytes());
                    self.made.push(Op::Directory { path, mode });
                }
            }
            Op::File {
                path,
                content,
                mode,
            } if self.is_free(&path) => self.made.push(Op::File {
                path: within(path.as_bytes()),
                content,
                mode,
            }),
            Op::Symlink { target, path } if self.is_free(&path) => self.made.push(Op::Symlink {
                target,
                path: within(path.as_bytes()),
            }),
            op => {
                self.mount(&op);
                self.mounted.push(op);
            }
        }
    }

    /// Whether a path is in `/` itself, and not in something that is mounted there.
    fn is_free(&self, path: &CString) -> bool {
        let path = path.as_bytes();
        !self.taken.iter().any(|taken| {
            path.strip_prefix(&taken[..])
                .is_some_and(|rest| rest.starts_with(b"/"))
        })
    }

    fn mount(&mut self, op: &Op) {
        match op {
            Op::Attach { path, .. }
            | Op::Bind { path, .. }
            | Op::Tmpfs { path, .. }
            | Op::Devpts { path }
            | Op::Proc { path }
            | Op::Overlay { path, .. } => self.taken.push(path.as_bytes().to_vec()),
            Op::Reveal {
                parts,
                is_directory,
                ..
            } => self.reveal(parts, *is_directory),
            _ => {}
        }
    }

    /// A place for a mount, where it is not within another one that makes its own.
    fn reveal(&mut self, parts: &[CString], is_directory: bool) {
        let mut path = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(part.as_bytes());
            let name = CString::new(path.clone()).expect("parts have no NUL");
            if !self.is_free(&name) {
                break;
            }
            if is_directory || number + 1 < parts.len() {
                self.take(Op::Directory {
                    path: name,
                    mode: 0o755,
                });
            } else {
                self.take(Op::File {
                    path: name,
                    content: Vec::new(),
                    mode: 0o644,
                });
            }
        }
        self.taken.push(path);
    }
}

fn within(path: &[u8]) -> CString {
    let path = [SCAFFOLD.as_bytes(), b"/", path].concat();
    CString::new(path).expect("made of a path without NUL")
}
