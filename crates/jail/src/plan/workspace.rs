//! The part of the plan that shows the workspace, and what is read-only beside it.

use super::{Holds, LAYER_ATTRIBUTES, List, OWN, Op, SYSTEM_ATTRIBUTES, Spec, make_parents, text};

/// The layers are attached below our own directory, joined by an overlay, and let go: the overlay
/// holds them from then on, and no path to a layer is left inside.
pub(super) fn mount(list: &mut List, spec: &Spec, inside: &str) {
    let mut lower = Vec::new();
    for number in 0..spec.workspace.lower.len() {
        let path = format!("{OWN}/lower{number}");
        list.directory(&path, 0o755);
        list.attach_next(text(&path));
        lower.push(path);
    }
    let layer = format!("{OWN}/layer");
    list.directory(&layer, 0o755);
    list.attach_next(text(&layer));
    make_parents(list, inside);
    list.directory(inside, 0o755);
    let tree = format!("{OWN}/tree");
    let at = match spec.workspace.holds {
        Holds::Folder => inside,
        Holds::Everything => {
            list.directory(&tree, 0o755);
            &tree
        }
    };
    // `volatile`: the end of a sandbox does not sync the whole file system below the layer, and no
    // agent can make the host's disk busy with syncs. What must last, the bundle, is synced by us.
    list.push(Op::Overlay {
        path: text(at),
        options: text(&format!(
            "lowerdir={},upperdir={layer}/upper,workdir={layer}/work,userxattr,volatile",
            lower.join(":")
        )),
        attributes: LAYER_ATTRIBUTES,
    });
    for path in lower.into_iter().chain([layer]) {
        list.push(Op::Detach { path: text(&path) });
    }
    if spec.workspace.holds == Holds::Everything {
        for (part, to) in [
            ("workspace", inside),
            ("home", "home/agent"),
            ("tmp", "tmp"),
        ] {
            list.push(Op::Bind {
                from: text(&format!("{tree}/{part}")),
                path: text(to),
            });
        }
        list.push(Op::Detach { path: text(&tree) });
    }
    show(list, spec);
}

/// What is shown read-only beside the workspace: objects of git, and our own programs.
fn show(list: &mut List, spec: &Spec) {
    if spec.workspace.objects.is_empty() && spec.workspace.tools.is_none() {
        return;
    }
    // Object directories are shown through an overlay of their own: a plain bind mount would show
    // their host paths in mountinfo.
    let objects = format!("{OWN}/objects");
    list.directory(&objects, 0o755);
    // Where they look for more objects themselves is a host path; all of those are mounted here.
    let shade = format!("{OWN}/shade");
    list.directory(&shade, 0o755);
    list.directory(&format!("{shade}/info"), 0o755);
    list.file(&format!("{shade}/info/alternates"), b"");
    let source = format!("{OWN}/source");
    list.directory(&source, 0o755);
    let numbers = 0..spec.workspace.objects.len();
    let places = numbers
        .map(|number| format!("{objects}/{number}"))
        .chain(spec.workspace.tools.iter().map(|_| format!("{OWN}/tools")));
    for path in places {
        list.attach_next(text(&source));
        list.directory(&path, 0o755);
        list.push(Op::Overlay {
            path: text(&path),
            options: text(&format!("lowerdir={shade}:{source},userxattr")),
            attributes: SYSTEM_ATTRIBUTES,
        });
        list.push(Op::Detach {
            path: text(&source),
        });
    }
}
