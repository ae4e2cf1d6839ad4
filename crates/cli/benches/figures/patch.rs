//! The patch of ten changed files, in a small folder and in a large one.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use ringfence_engine::changes::{self, Bounds, Crossing, EntryType, Sources};
use ringfence_engine::ids::RunId;
use ringfence_engine::lock::RunLock;
use ringfence_engine::workspace::{View, Workspace, open_folder};
use ringfence_model::changes::WhyOmitted;
use ringfence_model::policy::Files;

use crate::place::{Place, outside};
use crate::sample::{Contender, Samples, in_turn};
use crate::table::{Against, Bound, Table};

const ROUNDS: usize = 40;
const SMALL: usize = 500;
const LARGE: usize = 50_000;
/// What the issue allows beyond reading the git index.
const BOUND: Bound = Bound {
    times: 1.5,
    more: Duration::from_millis(25),
};

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let small = Changed::make(place, SMALL)?;
    let large = Changed::make(place, LARGE)?;
    let mut contenders = [
        Contender::new(format!("among {SMALL}"), || small.patch_without_rules()),
        Contender::new(format!("among {LARGE}"), || large.patch_without_rules()),
        Contender::new(format!("among {SMALL}, index and rules"), || small.patch()),
        Contender::new(format!("among {LARGE}, index and rules"), || large.patch()),
    ];
    let all: Vec<Samples> = in_turn(ROUNDS, &mut contenders)?;
    table.times(&contenders[0].name, &all[0]);
    let against = Against {
        name: "the small folder's",
        samples: &all[0],
        bound: BOUND,
    };
    table.held(&contenders[1].name, &all[1], against);
    table.times(&contenders[2].name, &all[2]);
    table.times(&contenders[3].name, &all[3]);
    Ok(())
}

/// A repository of which ten files were changed in a layer.
struct Changed {
    workspace: Workspace,
    _lock: RunLock,
}

impl Changed {
    fn make(place: &Place, files: usize) -> Result<Self> {
        let folder = place.beside(&format!("files-{files}"))?;
        for number in 0..files {
            let path = folder.join(name(number));
            if number % 100 == 0 {
                fs::create_dir_all(path.parent().expect("each file is in a directory"))?;
            }
            fs::write(path, content(number))?;
        }
        for words in [&["init", "--quiet"][..], &["add", "--all"]] {
            outside(Command::new("git").args(words).current_dir(&folder))?;
        }
        let home = place.home();
        let id = RunId::random()?;
        let lock = RunLock::create(home, id)?;
        let folder = open_folder(home, &folder)?;
        let workspace = Workspace::create(home, id, folder, &View::default(), &Files::default())?;
        change(&workspace.upper())?;
        Ok(Self {
            workspace,
            _lock: lock,
        })
    }

    /// All that a run does between the end of its command and the patch.
    fn patch(&self) -> Result<()> {
        let sources = self.workspace.sources()?;
        render(&sources, &mut self.workspace.rules(&sources)?)
    }

    /// The same without the git index and ignore rules.
    fn patch_without_rules(&self) -> Result<()> {
        render(&self.workspace.sources()?, &mut Everything)
    }
}

fn render(sources: &Sources, crossing: &mut dyn Crossing) -> Result<()> {
    let set = changes::compute(sources, crossing, &Bounds::default())?;
    ensure!(set.changes.len() == 10, "{:?}", set.changes);
    let mut patch = Vec::new();
    changes::render(sources, &set, &mut patch)?;
    Ok(())
}

/// Everything crosses back.
struct Everything;

impl Crossing for Everything {
    fn crosses(&mut self, _path: &[u8], _what: EntryType) -> Result<(), WhyOmitted> {
        Ok(())
    }
}

/// Writes the layer as overlayfs leaves it: six edits, three new files and a changed mode.
fn change(upper: &Path) -> Result<()> {
    let make = |path: PathBuf, content: &str| -> Result<fs::File> {
        let path = upper.join(path);
        fs::create_dir_all(path.parent().expect("each file is in a directory"))?;
        let mut file = fs::File::create(path)?;
        file.write_all(content.as_bytes())?;
        Ok(file)
    };
    for number in [0, 10, 100, 200, 300, 400] {
        make(name(number), &(content(number) + "one more\n"))?;
    }
    for number in 0..3 {
        make(PathBuf::from(format!("d{number}/new")), "new\n")?;
    }
    let same = make(name(401), &content(401))?;
    same.set_permissions(fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn name(number: usize) -> PathBuf {
    PathBuf::from(format!("d{}/f{number}", number / 100))
}

fn content(number: usize) -> String {
    "a line\n".repeat(100) + &format!("{number}\n")
}
