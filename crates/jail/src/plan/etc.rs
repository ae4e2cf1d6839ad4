//! The part of the plan that makes `/etc`: a synthetic part, and what the host or the image gives.

use super::{List, Op, PlanError, Root, Spec, bytes, gate, make_parents, text};
use crate::facts::{HostFacts, Item};

pub(super) fn show(list: &mut List, spec: &Spec, facts: &HostFacts) -> Result<(), PlanError> {
    list.directory("etc", 0o755);
    for (name, item) in &facts.etc {
        let path = format!("etc/{name}");
        make_parents(list, &path);
        match item {
            Item::Directory => {
                list.directory(&path, 0o755);
                list.attach_next(text(&path));
            }
            Item::Symlink(target) => list.push(Op::Symlink {
                target: bytes(target)?,
                path: text(&path),
            }),
            Item::File(content) => list.file(&path, content),
        }
    }
    list.file("etc/passwd", &facts.accounts.passwd);
    list.file("etc/group", &facts.accounts.group);
    list.file(
        "etc/hosts",
        b"127.0.0.1 localhost ringfence\n::1 localhost\n",
    );
    list.file("etc/hostname", b"ringfence\n");
    list.file("etc/resolv.conf", gate::name_service(spec).as_bytes());
    list.file(
        "etc/nsswitch.conf",
        b"passwd: files\ngroup: files\nhosts: files dns\n",
    );
    list.link("/proc/self/mounts", "etc/mtab");
    if let Root::Image(_) = spec.root {
        trust(list, spec, facts);
    }
    Ok(())
}

/// Where the certificates that are trusted will be shown. The host has files there already.
fn trust(list: &mut List, spec: &Spec, facts: &HostFacts) {
    for place in gate::bundles(spec, facts) {
        make_parents(list, place);
        list.file(place, b"");
    }
}
