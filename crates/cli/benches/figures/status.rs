//! `git status` in a sandbox on a large repository, against outside.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::lasting::{self, Tree};
use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const ROUNDS: usize = 20;
/// How many files there are is what counts here.
const MANY: Tree = Tree {
    files: 50_000,
    bytes: 200,
};
const STATUS: [&str; 3] = ["git", "status", "--porcelain"];
/// Counts, inside, what `git status` opens.
const TRACE: &str = "strace -f -e trace=open,openat -o /tmp/trace git status --porcelain";
/// Tracked files are `d…/f…`.
const OPENED: &str = r#"! grep -E '"(/workspace/)?(\.\./)?d[0-9]+/f[0-9]+"' /tmp/trace"#;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let host = lasting::host(place)?;
    let repository = MANY.repository(place)?;
    let id = lasting::sandbox(&host, &lasting::from_commit(&repository)?)?;
    let clone = place.root().join("clone");
    let mut git = Command::new("git");
    outside(git.args(["clone", "--quiet"]).args([&repository, &clone]))?;
    let mut contenders = [
        Contender::new("git status outside", || {
            let mut git = Command::new(STATUS[0]);
            let output = git.args(&STATUS[1..]).current_dir(&clone).output()?;
            ensure!(output.status.success() && output.stdout.is_empty());
            Ok(())
        }),
        Contender::new("git status inside", || lasting::command(&host, id, &STATUS)),
        Contender::new("true inside", || {
            lasting::command(&host, id, &["/bin/true"])
        }),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times(&contenders[0].name, &times[0]);
    let against = Against {
        name: "outside",
        samples: &times[0],
        bound: Bound::times(1.5),
    };
    table.held(&contenders[1].name, &times[1], against);
    table.times(&contenders[2].name, &times[2]);
    drop(contenders);
    // On another sandbox: there it is the first look at these files.
    let fresh = lasting::sandbox(&host, &lasting::from_commit(&repository)?)?;
    match lasting::shell(&host, fresh, TRACE) {
        Ok(()) => {
            let trace = host.places(fresh).upper().join("tmp/trace");
            let calls = fs::read_to_string(&trace).context("cannot read the trace")?;
            let opened = lasting::shell(&host, fresh, OPENED).is_err();
            let calls = calls.lines().count();
            table.holds(
                &format!("no tracked file is opened among {calls} calls"),
                !opened && calls > 0,
            );
        }
        Err(error) => table.note(&format!("what is opened: no strace inside ({error:#})")),
    }
    for id in [id, fresh] {
        ringfence_engine::sandboxes::stop::stop(&host, id)?;
    }
    Ok(())
}
