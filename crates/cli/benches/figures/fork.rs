//! Forks and checkpoints: of a large workspace against a small one, and against what the machine
//! needs for one synced commit.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use ringfence_engine::ids::SandboxId;
use ringfence_engine::sandboxes::Host;
use ringfence_engine::sandboxes::create::From;
use ringfence_engine::sandboxes::fork::{ForkRequest, Point, fork};
use ringfence_engine::sandboxes::seal::checkpoint;
use ringfence_engine::sandboxes::stop::stop;
use ringfence_engine::store::Pin;

use crate::lasting::{self, LARGE, SMALL};
use crate::place::{Place, names, outside};
use crate::sample::{Contender, Samples, in_turn};
use crate::table::{Against, Bound, Table, milliseconds};

/// BOUND: enough for a median where a round takes some milliseconds.
const ROUNDS: usize = 40;
/// BOUND: where each round starts an execution first.
const FEW: usize = 20;
const SIZE: Bound = Bound::times(2.0);
const COMMIT: Bound = Bound::times(3.0);
const FORKS: usize = 1000;
/// How many at either end are held against each other.
const END: usize = 100;

/// What a sandbox is doing when it is forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing runs, nothing was written.
    Clean,
    /// Nothing runs, a file was written.
    Dirty,
    /// An execution in which nothing runs; a file was written.
    Idle,
    /// An execution with a process in the background; a file was written.
    Busy,
}

impl State {
    const ALL: [Self; 4] = [Self::Clean, Self::Dirty, Self::Idle, Self::Busy];

    fn name(self) -> &'static str {
        match self {
            Self::Clean => "stopped, clean",
            Self::Dirty => "stopped, dirty",
            Self::Idle => "running idle",
            Self::Busy => "running busy",
        }
    }

    fn runs(self) -> bool {
        matches!(self, Self::Idle | Self::Busy)
    }

    fn prepare(self, host: &Host, from: &From) -> Result<SandboxId> {
        let id = lasting::sandbox(host, from)?;
        match self {
            Self::Clean => {}
            Self::Dirty => lasting::soil(host, id)?,
            Self::Idle => lasting::shell(host, id, "echo new > new")?,
            Self::Busy => {
                lasting::shell(host, id, "echo new > new; sleep 1000 </dev/null >&0 2>&0 &")?;
            }
        }
        Ok(id)
    }
}

type Verb = fn(&Host, SandboxId) -> Result<()>;

pub fn forks_once(place: &Place, table: &mut Table) -> Result<()> {
    compare(place, table, one_fork)?;
    peers(place, table)
}

pub fn checkpoints(place: &Place, table: &mut Table) -> Result<()> {
    compare(place, table, |host, id| {
        checkpoint(host, id, "here")?;
        Ok(())
    })
}

fn one_fork(host: &Host, id: SandboxId) -> Result<()> {
    fork(host, id, &request(1))?;
    Ok(())
}

fn request(count: usize) -> ForkRequest {
    ForkRequest {
        count,
        at: Point::Now,
        tag: None,
        ttl_seconds: None,
    }
}

fn compare(place: &Place, table: &mut Table, verb: Verb) -> Result<()> {
    let host = lasting::host(place)?;
    let small = lasting::from_commit(&SMALL.repository(place)?)?;
    let large = lasting::from_commit(&LARGE.repository(place)?)?;
    for state in State::ALL {
        let rounds = if state.runs() { FEW } else { ROUNDS };
        let [commit, of_small, of_large] = timed(&host, state, [&small, &large], rounds, verb)?;
        let name = |files: usize| format!("{}, {files} files", state.name());
        if state == State::Clean {
            table.times("a synced commit and `mkdir`", &commit);
        }
        if state.runs() {
            table.times(&name(SMALL.files), &of_small);
        } else {
            let against = Against {
                name: "commit and mkdir",
                samples: &commit,
                bound: COMMIT,
            };
            table.held(&name(SMALL.files), &of_small, against);
        }
        let against = Against {
            name: "the small one's",
            samples: &of_small,
            bound: SIZE,
        };
        table.held(&name(LARGE.files), &of_large, against);
    }
    Ok(())
}

/// A synced commit with a `mkdir`, and the verb on sandboxes from both, in turn.
fn timed(
    host: &Host,
    state: State,
    from: [&From; 2],
    rounds: usize,
    verb: Verb,
) -> Result<[Samples; 3]> {
    let some = lasting::sandbox(host, from[0])?;
    let number = Cell::new(names(&host.home.sandboxes())?.len());
    let prepared: [Cell<Option<SandboxId>>; 2] = Default::default();
    let mut contenders = vec![Contender::new("commit and mkdir", || {
        number.set(number.get() + 1);
        fs::create_dir(host.home.root().join(format!("made-{}", number.get())))?;
        // A row that stays the same is not written.
        let pin = match number.get() % 2 {
            0 => Pin::Keep,
            _ => Pin::Release,
        };
        host.store.pin_sandbox(some, pin)?;
        Ok(())
    })];
    for (from, id) in from.into_iter().zip(&prepared) {
        let once = || verb(host, id.get().context("a sandbox was prepared")?);
        contenders.push(Contender::new(state.name(), once).after(move || {
            // The one of the round before.
            if let Some(old) = id.get().filter(|_| state.runs()) {
                stop(host, old)?;
            }
            id.set(Some(state.prepare(host, from)?));
            Ok(())
        }));
    }
    let times = in_turn(rounds, &mut contenders)?;
    drop(contenders);
    for id in prepared.iter().filter_map(Cell::get) {
        stop(host, id)?;
    }
    Ok(times.try_into().expect("three contenders"))
}

/// What others do to have a second copy of the large workspace.
fn peers(place: &Place, table: &mut Table) -> Result<()> {
    let repository = LARGE.repository(place)?;
    let copies = place.beside("copies")?;
    let number = Cell::new(0);
    let next = || {
        number.set(number.get() + 1);
        copies.join(number.get().to_string())
    };
    let last = RefCell::new(None);
    let forget = || -> Result<()> {
        if let Some(path) = last.take() {
            fs::remove_dir_all::<std::path::PathBuf>(path)?;
        }
        Ok(())
    };
    let mut copy = Contender::new("cp -a", || {
        let path = last.borrow_mut().insert(next()).clone();
        outside(Command::new("cp").arg("-a").arg(&repository).arg(path))
    })
    .after(forget);
    let mut worktree = Contender::new("git worktree add", || {
        let path = last.borrow_mut().insert(next()).clone();
        let words = ["worktree", "add", "--quiet", "--detach"];
        let mut command = Command::new("git");
        outside(command.args(words).arg(path).current_dir(&repository))
    })
    .after(forget);
    for contender in [&mut copy, &mut worktree] {
        let times: Vec<_> = (0..2).map(|_| contender.time()).collect::<Result<_>>()?;
        table.times(&contender.name, &Samples::new(times));
    }
    drop((copy, worktree));
    forget()?;
    if !rustix::process::geteuid().is_root() {
        table.note("btrfs subvolume snapshot: a loop mount needs root; see `--as-root`");
        return Ok(());
    }
    match btrfs(place, &repository) {
        Ok(samples) => table.times("btrfs subvolume snapshot", &samples),
        Err(error) => table.note(&format!("btrfs subvolume snapshot: {error:#}")),
    }
    Ok(())
}

/// Snapshots of the repository's files in a btrfs of its own, on a loop device.
fn btrfs(place: &Place, repository: &Path) -> Result<Samples> {
    let image = place.root().join("btrfs.image");
    fs::File::create(&image)?.set_len(4 << 30)?;
    outside(Command::new("mkfs.btrfs").arg("-q").arg(&image)).context("mkfs.btrfs")?;
    let mount = place.beside("btrfs")?;
    outside(
        Command::new("mount")
            .args(["-o", "loop"])
            .args([&image, &mount]),
    )
    .context("mount")?;
    let measured = (|| {
        let subvolume = |words: &[&str], paths: &[&Path]| {
            let mut command = Command::new("btrfs");
            outside(command.arg("subvolume").args(words).args(paths))
        };
        let from = mount.join("from");
        subvolume(&["create"], &[&from])?;
        outside(Command::new("cp").arg("-a").arg(repository).arg(&from))?;
        outside(&mut Command::new("sync"))?;
        let number = Cell::new(0);
        let mut snapshot = Contender::new("btrfs", || {
            number.set(number.get() + 1);
            subvolume(
                &["snapshot"],
                &[&from, &mount.join(number.get().to_string())],
            )
        });
        let times: Vec<_> = (0..FEW).map(|_| snapshot.time()).collect::<Result<_>>()?;
        Ok(Samples::new(times))
    })();
    outside(Command::new("umount").arg(&mount))?;
    fs::remove_file(image)?;
    measured
}

/// Many forks of one workspace: each costs the same, in time and on the disk.
pub fn many(place: &Place, table: &mut Table) -> Result<()> {
    let host = lasting::host(place)?;
    let id = lasting::sandbox(&host, &lasting::from_commit(&SMALL.repository(place)?)?)?;
    lasting::soil(&host, id)?;
    one_fork(&host, id)?;
    let used = || -> Result<u64> {
        let parts = [host.home.sandboxes(), host.home.layers(), host.home.store()];
        parts.iter().map(|path| lasting::disk(path)).sum()
    };
    let before = used()?;
    let mut one = Contender::new("one fork", || one_fork(&host, id));
    let times: Vec<_> = (0..FORKS).map(|_| one.time()).collect::<Result<_>>()?;
    let (first, last) = (times[..END].to_vec(), times[FORKS - END..].to_vec());
    let first = Samples::new(first);
    table.times(&format!("the first {END} of {FORKS}"), &first);
    let against = Against {
        name: "the first ones'",
        samples: &first,
        bound: Bound::times(1.5),
    };
    table.held(&format!("the last {END}"), &Samples::new(last), against);
    let each = (used()? - before) / FORKS as u64;
    table.note(&format!(
        "{each} bytes of disk each, its row in the store included"
    ));
    let mut all = Contender::new("all at once", || {
        fork(&host, id, &request(FORKS))?;
        Ok(())
    });
    let all = milliseconds(all.time()?);
    table.note(&format!("{FORKS} by one request: {all:.0} ms"));
    Ok(())
}
