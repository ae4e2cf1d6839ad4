//! The one list: what every backend is asked.

use anyhow::Result;

use crate::scene::{Scene, Seen};
use crate::{evidence, exec, files, isolation, lasting, lifecycle, limits, network};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub area: &'static str,
    pub title: &'static str,
    pub check: fn(&Scene<'_>) -> Result<Seen>,
}

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("life", "begins, ends, leaves nothing on the host", lifecycle::leaves_nothing),
    row("life", "two at once", lifecycle::two_at_once),
    row("life", "pid 1 killed: `runtime_lost`, the work kept", lifecycle::survives_a_kill),
    row("life", "container killed or removed: `runtime_lost`, the work kept", lifecycle::survives_its_engine),
    row("life", "an image of one static program", lifecycle::holds_one_program),
    row("life", "checkpoint, rollback, fork", lasting::checkpoints),
    row("life", "execution lost and replaced, no file lost", lasting::replaced),
    row("life", "moved to `native` and back", lasting::moves),
    row("life", "no more is claimed by `ringfence backends` than was seen", lasting::claims),
    row("command", "streams apart, bytes as they are", exec::streams),
    row("command", "exit codes", exec::codes),
    row("command", "signals", exec::signals),
    row("command", "background jobs named and gone", exec::background),
    row("command", "standard input", exec::input),
    row("command", "a terminal of its own", exec::terminal),
    row("command", "50 MB of output, whole", exec::large_output),
    row("command", "1,000 programs, each recorded", exec::thousand),
    row("files", "the folder is what it was", files::folder),
    row("files", "modes, owners, times, links, names, deletes", files::inside),
    row("files", "the patch gives the tree that was made, in the same bytes everywhere", files::fidelity),
    row("files", "read, written, edited, patched and searched by the direct tools", lasting::tools),
    row("bound", "time", limits::time),
    row("bound", "memory", limits::memory),
    row("bound", "processes", limits::processes),
    row("bound", "processor time", limits::processor),
    row("bound", "disk", limits::disk),
    row("bound", "size of a file", limits::file_size),
    row("bound", "output", limits::output),
    row("attacks", "kernel", |scene| isolation::area(scene, "kernel")),
    row("attacks", "processes", |scene| isolation::area(scene, "processes")),
    row("attacks", "files", |scene| isolation::area(scene, "files")),
    row("attacks", "environment", |scene| isolation::area(scene, "environment")),
    row("attacks", "terminal", |scene| isolation::area(scene, "terminal")),
    row("attacks", "what the host tells of itself", |scene| isolation::area(scene, "what the host tells of itself")),
    row("network", "nothing without a policy", network::offline),
    row("network", "what a rule allows, by the gate", network::rule),
    row("evidence", "every program, static and from memory", evidence::execs),
    row("evidence", "every change has its writer", evidence::writes),
    row("evidence", "the bundle verifies", evidence::bundle),
    row("evidence", "verdicts of the host's checks", evidence::checks),
];

const fn row(
    area: &'static str,
    title: &'static str,
    check: fn(&Scene<'_>) -> Result<Seen>,
) -> Row {
    Row { area, title, check }
}
