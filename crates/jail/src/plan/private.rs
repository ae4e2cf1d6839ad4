//! The part of the plan that shows what is shared below and private on top: homes and caches.

use std::path::{Path, PathBuf};

use super::{
    LAYER_ATTRIBUTES, List, OWN, Op, PlanError, SYSTEM_ATTRIBUTES, Shown, Spec, host, mounts, text,
};

/// A directory inside that was filled by somebody else and can be written: what is written is in a
/// layer of this sandbox alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateOverlay {
    /// Absolute path inside: the home, something in it, or where mounts can be.
    pub inside: PathBuf,
    /// Read-only, the topmost first. Owned as layers are.
    pub lower: Vec<PathBuf>,
    /// Holds `upper` and `work`, on one file system.
    pub layer: PathBuf,
}

pub(super) fn open(list: &mut List, spec: &Spec) -> Result<(), PlanError> {
    for overlay in &spec.overlays {
        for layer in &overlay.lower {
            list.open(host(layer)?, SYSTEM_ATTRIBUTES);
        }
        list.open(host(&overlay.layer)?, LAYER_ATTRIBUTES);
    }
    Ok(())
}

/// Made apart and shown at its place, as mounts are. No path to a layer is left inside.
pub(super) fn mount(list: &mut List, spec: &Spec, workspace: &str) -> Result<(), PlanError> {
    let (shared, layer) = (format!("{OWN}/shared"), format!("{OWN}/own"));
    let made = format!("{OWN}/private");
    let most = spec.overlays.iter().map(|overlay| overlay.lower.len());
    if let Some(most) = most.max() {
        for path in [&layer, &made] {
            list.directory(path, 0o755);
        }
        for number in 0..most {
            list.directory(&format!("{shared}{number}"), 0o755);
        }
    }
    for overlay in &spec.overlays {
        let parts = if overlay.inside == Path::new("/home/agent") {
            vec![text("home"), text("agent")]
        } else {
            mounts::parts(&overlay.inside, workspace)?
        };
        let mut lower = Vec::new();
        for number in 0..overlay.lower.len() {
            let path = format!("{shared}{number}");
            list.attach_next(text(&path));
            lower.push(path);
        }
        list.attach_next(text(&layer));
        list.push(Op::Overlay {
            path: text(&made),
            options: text(&format!(
                "lowerdir={},upperdir={layer}/upper,workdir={layer}/work,userxattr,volatile",
                lower.join(":")
            )),
            attributes: LAYER_ATTRIBUTES,
        });
        list.push(Op::Reveal {
            mount: Shown::At(text(&made)),
            parts,
            is_directory: true,
        });
        for path in [made.clone(), layer.clone()].into_iter().chain(lower) {
            list.push(Op::Detach { path: text(&path) });
        }
    }
    Ok(())
}
