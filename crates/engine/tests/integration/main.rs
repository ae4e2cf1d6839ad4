//! The engine on the real kernel and with the real git, below its command line. One program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod attribution_property;
mod bases;
mod bases_umask;
mod changes_hostile;
mod changes_property;
mod changes_round_trip;
mod changes_rules;
mod files;
mod git_hostile;
mod git_ignoring;
mod git_nested;
mod git_origin;
mod git_sandboxed;
mod git_speed;
mod git_subfolder;
mod layers;
mod layers_hostile;
mod mirrors;
mod mirrors_killed;
mod observed;
mod protocol;
mod shared;
mod submodules;
mod verify_faults;
