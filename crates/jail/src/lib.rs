//! The kernel side: namespaces, mounts, cgroups, Landlock, seccomp, and the processes in them.
//!
//! This crate applies what it is told and holds no policy. It is the only crate with unsafe code.
//!
//! ```text
//!  host process                     launcher child                       guest (pid 1)
//!  ────────────                     ──────────────                       ─────────────
//!  plan: spec + facts → [Op]
//!  clone3(user,mount,pid,net,…) ──▶ waits
//!  cgroup, uid_map, gid_map     ──▶ executes the ops, one by one
//!                                   execveat(sealed guest, no env)  ──▶  lockdown: Landlock, seccomp
//!                                                                        observe: execs and writes
//!  ◀──────────────────── framed protocol on one inherited socket ──────  wardens, execs, files
//! ```

pub mod accounts;
pub mod apart;
pub mod attach;
pub mod cgroup;
pub mod execute;
pub mod facts;
pub mod identity;
pub mod launch;
pub mod lockdown;
pub mod mapped;
pub mod observe;
pub mod plan;
pub mod probe;
pub mod reach;
pub mod sealed;
pub mod seccomp;
pub mod signals;
mod sys;
pub mod terminal;
pub mod view;
pub mod warden;

pub use sys::{
    Descendants, allow_many_files, be_prompt, become_subject_of, close_inherited, ignore_signals,
    inherited_gate, inherited_socket, processor_time, processors, total_memory_bytes,
};
