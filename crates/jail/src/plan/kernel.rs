//! The part of the plan that shows what is left of the kernel: a masked `/proc`, and its settings.

use super::{List, Op, Spec, gate, own, text};
use crate::facts::{HostFacts, MaskType};

pub(super) fn proc(list: &mut List, spec: &Spec, facts: &HostFacts) {
    list.directory("proc", 0o555);
    list.push(Op::Proc { path: text("proc") });
    for (name, kind) in &facts.proc_masks {
        let with = match kind {
            MaskType::File => own("void"),
            MaskType::Directory => own("hollow"),
        };
        list.push(Op::Mask {
            path: text(&format!("proc/{name}")),
            with,
        });
    }
    for (name, value) in SETTINGS {
        list.push(Op::Setting {
            path: text(&format!("proc/sys/user/{name}")),
            value,
        });
    }
    gate::settings(list, spec);
    list.push(Op::ReadOnly {
        path: text("proc/sys"),
    });
}

/// What is counted for the caller as well is bounded below what the caller has, and no namespace
/// can be made: a second wall beside the filter.
const SETTINGS: &[(&str, &str)] = &[
    ("max_inotify_instances", "64"),
    ("max_inotify_watches", "32768"),
    ("max_fanotify_groups", "0"),
    ("max_fanotify_marks", "0"),
    ("max_user_namespaces", "0"),
    ("max_mnt_namespaces", "0"),
    ("max_pid_namespaces", "0"),
    ("max_net_namespaces", "0"),
    ("max_ipc_namespaces", "0"),
    ("max_uts_namespaces", "0"),
    ("max_cgroup_namespaces", "0"),
    ("max_time_namespaces", "0"),
];
