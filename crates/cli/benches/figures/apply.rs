//! A patch of a thousand files: to the folder and to a branch, beside `git apply` of the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::home::Home;

use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const FILES: usize = 1_000;
const ROUNDS: usize = 15;
/// What the issue allows.
const BOUND: Bound = Bound::times(2.0);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let changed = Changed::make(place)?;
    let patch = changed.patch.to_str().context("not text")?.to_owned();
    let copy = changed.folder.with_file_name("apply-copy");
    let from = changed.folder.to_str().context("not text")?.to_owned();
    let to = copy.to_str().context("not text")?.to_owned();
    outside(Command::new("git").args(["clone", "-q", &from, &to]))?;
    let mut contenders = [
        Contender::new("git apply", || git(&copy, &["apply", &patch])).after(|| reset(&copy)),
        Contender::new("ringfence apply", || changed.apply(place, &[]))
            .after(|| reset(&changed.folder)),
        Contender::new("ringfence apply --branch", || {
            let author = ["--author", "Bench <bench@example.org>"];
            changed.apply(place, &[&["--branch", "taken"], &author[..]].concat())
        })
        .after(|| changed.forget_branch()),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times(&contenders[0].name, &times[0]);
    for at in [1, 2] {
        let against = Against {
            name: "git apply",
            samples: &times[0],
            bound: BOUND,
        };
        table.held(&contenders[at].name, &times[at], against);
    }
    Ok(())
}

/// A repository, and an approved run that changed each of its files.
struct Changed {
    folder: PathBuf,
    home: Home,
    run: String,
    patch: PathBuf,
}

impl Changed {
    fn make(place: &Place) -> Result<Self> {
        let folder = place.beside("apply")?;
        for number in 0..FILES {
            let path = folder.join(format!("d{}/f{number}", number / 50));
            fs::create_dir_all(path.parent().context("each file is in a directory")?)?;
            fs::write(path, "a line\n".repeat(100) + &format!("{number}\n"))?;
        }
        git(&folder, &["init", "-q", "-b", "main"])?;
        git(&folder, &["add", "-A"])?;
        git(&folder, &["commit", "-q", "-m", "all"])?;
        let home = Home::open(Some(place.root().join("home-apply")))?;
        let repo = folder.to_str().context("not text")?;
        let work = "for f in d*/f*; do echo one more >> $f; done";
        let words = ["run", "--json", "--repo", repo, "--", "sh", "-c", work];
        let output = place.program_at(&home, &words).output()?;
        ensure!(output.status.success(), "{output:?}");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let run = result["run"].as_str().context("no run")?.to_owned();
        let count = result["changed_files"].as_array().map_or(0, Vec::len);
        ensure!(count == FILES, "{count} files changed");
        let patch = result["patch"].as_str().context("no patch")?.into();
        outside(&mut place.program_at(&home, &["approve", &run, "--anyway"]))?;
        Ok(Self {
            folder,
            home,
            run,
            patch,
        })
    }

    fn apply(&self, place: &Place, more: &[&str]) -> Result<()> {
        let words = [&["apply", &self.run], more].concat();
        outside(&mut place.program_at(&self.home, &words))
    }

    /// The branch, and the objects that it alone has.
    fn forget_branch(&self) -> Result<()> {
        let _ = git(&self.folder, &["branch", "-q", "-D", "taken"]);
        git(&self.folder, &["prune", "--expire=now"])
    }
}

fn reset(folder: &Path) -> Result<()> {
    git(folder, &["checkout", "-q", "--", "."])
}

fn git(folder: &Path, words: &[&str]) -> Result<()> {
    let who = [
        "-c",
        "user.name=Bench",
        "-c",
        "user.email=bench@example.org",
    ];
    let mut command = Command::new("git");
    outside(command.args(who).args(words).current_dir(folder))
}
