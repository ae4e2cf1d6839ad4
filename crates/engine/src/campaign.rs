//! Campaigns: one large job as many tasks. Here is what comes before anything runs: a plan is read
//! and becomes tasks.
//!
//! ```text
//! plan.toml ─▶ files of the folder ─▶ selected ─▶ parts ─▶ task documents
//!               as a run sees them     by path     pure functions of `model::split`
//!                                      by content
//! ```
//!
//! INVARIANT: nothing here writes below the user's folder. A plan's own command runs in a sandbox
//! without a network, on a view of the folder that is thrown away.

mod begin;
mod brief;
mod command;
mod drive;
mod error;
mod files;
mod judge;
pub mod merge;
mod needed;
mod queue;
mod ready;
mod report;
mod request;
mod room;
mod single;
mod strayed;
mod taken;
mod told;
mod work;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::bundle::Base;
use ringfence_model::check;
use ringfence_model::limits::Limits;
use ringfence_model::plan::{By, PER_TASK, Plan};
use ringfence_model::policy::{Bound, Bounds, Effective, Line};
use ringfence_model::split::imports::Graph;
use ringfence_model::split::select::Selection;
use ringfence_model::split::{self, Oversize, Part, Rules, Way, When};
use ringfence_model::task::{self, Agent, Checks, Requires, Rounds, SCHEMA, Stage, Task};
use serde::Serialize;

use crate::agents;
use crate::attend::Inputs;
use crate::error::Error;
use crate::git;
use crate::home::Home;
use crate::policy::{self, Asked};
use crate::store::Settings;
use crate::workspace::{Folder, open_folder};

pub use begin::{against, begin, find, forget, held, is_driven, replan};
pub use drive::{Again, Driving, Ended, HostSize, drive};
pub use error::CampaignError;
pub use files::{LeftOut, Why};
pub use ready::{next_task, ready};
pub use report::{Counts, Progress, Report, ReportedTask, Step, report, tasks};
pub use request::{Typed, request};
pub use single::{open_task, placed};
pub use strayed::{Strayed, StrayedFile};
pub use told::{Told, Watcher};
pub use write::{compare, refuse_full, write, write_tasks};

use brief::Beside;
use files::Listing;
use needed::Imports;
use room::Room;

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The plan.
    pub file: PathBuf,
    pub folder: PathBuf,
    /// Bounds where nobody says one.
    pub usual: Limits,
}

/// A plan, and the tasks that it comes to.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    pub name: String,
    pub folder: PathBuf,
    pub base: Base,
    pub brief_sha256: String,
    pub tasks: Vec<PlannedTask>,
    /// Files that the plan's patterns name, and no task has.
    pub left_out: Vec<LeftOut>,
    /// For a person.
    pub notes: Vec<String>,
    /// The plan as it was written.
    #[serde(skip)]
    pub text: String,
    #[serde(skip)]
    pub brief: task::Brief,
    #[serde(skip)]
    pub settings: Settings,
    /// What is written for each task, in the same order.
    #[serde(skip)]
    pub documents: Vec<Task>,
}

/// One of the tasks.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedTask {
    pub id: String,
    /// From 1, in the order in which they are begun.
    pub number: u32,
    pub when: When,
    pub files: Vec<ByteText>,
    /// Of its files; those of files that are no text are not counted.
    pub lines: u64,
    pub bytes: u64,
    /// Why it has more files than the plan allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversize: Option<Oversize>,
    /// How many files its sandbox sees; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<usize>,
}

/// Reads a plan and splits the folder.
pub fn plan(home: &Home, request: &PlanRequest, inputs: &Inputs<'_>) -> Result<Planned, Error> {
    let beside = Beside::open(&request.file)?;
    let plan = beside.plan()?;
    if let ringfence_model::plan::Agent::Preset(name) = &plan.agent {
        // A name that was mistyped is told before anything is looked at.
        agents::load(home, name)?;
    }
    let brief = beside.brief(&plan)?;
    let policy = beside.policy(&plan)?;
    let folder = open_folder(home, &request.folder)?;
    let effective = settle(home, request, &plan, &beside, &folder)?;
    let room = Room::make(home)?;

    let repository = git::discover(folder.path())?;
    let listing = Listing::of(&folder, repository.as_ref(), &effective.files)?;
    listing.leave(&own_files(&beside, &plan, &folder), Why::Plan);
    let selection = Selection::of(&plan.split).map_err(CampaignError::Pattern)?;
    let selected = listing.select(&selection)?;
    let mut notes = listing.notes();

    let groups = match &plan.split.by {
        By::Command(line) => {
            let known: BTreeSet<ByteText> = selected.keys().cloned().collect();
            let groups = command::groups(&room, &folder, &effective, &line.text, &known, inputs)?;
            let between = selected.iter().filter(|(_, when)| **when == When::Between);
            let grouped: BTreeSet<&ByteText> = groups.iter().flatten().collect();
            let lost = between.filter(|(path, _)| !grouped.contains(path));
            let lost: Vec<ByteText> = lost.map(|(path, _)| path.clone()).collect();
            // Who names no files means those of the groups.
            if !plan.split.files.is_empty() || plan.split.matching.is_some() {
                listing.leave(&lost, Why::NoGroup);
            }
            Some(groups)
        }
        _ => None,
    };
    let mut imports = Imports::new(&listing);
    let graph = match plan.split.by {
        By::Dependencies => imports.graph(selected.keys()),
        _ => Graph::default(),
    };
    let whole = if groups.is_some() {
        split::groups::MAX_OUTPUT
    } else {
        PER_TASK
    };
    let rules = Rules {
        way: match (&plan.split.by, &groups) {
            (By::Command(_), Some(groups)) => Way::Groups(groups),
            (By::Directory, _) => Way::Directory,
            (By::Dependencies, _) => Way::Dependencies(&graph),
            _ => Way::Path,
        },
        per_task: plan.split.per_task.unwrap_or(whole),
        keep: plan.split.keep,
    };
    let parts = split::split(&selected, rules);
    if parts.is_empty() {
        return Err(CampaignError::Empty {
            patterns: described(&plan),
            left_out: listing.left_out(),
        }
        .into());
    }
    if parts.len() > split::groups::MAX_GROUPS {
        let count = parts.len();
        return Err(CampaignError::TooManyTasks { count }.into());
    }
    let needs = match plan.run.stage {
        Stage::Whole => None,
        Stage::Needed => Some(listing.matching(&plan.run.needs)?),
    };
    if let Some(repository) = &repository {
        let mut rules = git::IgnoreRules::load(Some(repository), folder.fd(), folder.fd())?;
        let untracked = selected
            .keys()
            .filter(|path| !rules.is_tracked(path.as_bytes()));
        match untracked.count() {
            0 => {}
            count => notes.push(format!(
                "git does not track {count} of the files: work on them cannot go on a branch, so commit them first"
            )),
        }
    }
    let base = room.base(repository, &folder)?;
    if plan.checks.last.is_empty() {
        let note =
            "the plan has no final check: nothing but a reviewer decides what comes of a task";
        notes.push(note.to_owned());
    }
    if let Base::DirtyFolder { why, .. } = &base {
        notes.push(format!(
            "the folder is not at its commit: {why}; work on files with uncommitted changes cannot go on a branch, so commit them first"
        ));
    }
    let mut planned = Planned {
        name: plan.name.clone(),
        folder: folder.path().to_owned(),
        base,
        brief_sha256: brief.sha256.clone(),
        tasks: Vec::new(),
        left_out: Vec::new(),
        notes,
        text: beside.text(),
        brief: brief.clone(),
        settings: Settings {
            parallel: plan.run.parallel,
            budget: plan.budget,
        },
        documents: Vec::new(),
    };
    let draft = Draft {
        plan: &plan,
        brief: &brief,
        policy: policy.as_ref(),
    };
    for part in parts {
        let beside = needs
            .as_ref()
            .map(|needs| imports.beside(&part.files, needs));
        planned.add(&draft, part, beside, &listing)?;
    }
    planned.left_out = listing.left_out();
    Ok(planned)
}

/// What is the same in all task documents.
struct Draft<'a> {
    plan: &'a Plan,
    brief: &'a task::Brief,
    policy: Option<&'a task::Policy>,
}

impl Planned {
    fn add(
        &mut self,
        draft: &Draft<'_>,
        part: Part,
        beside: Option<Vec<ByteText>>,
        listing: &Listing,
    ) -> Result<(), CampaignError> {
        let plan = draft.plan;
        let checks = Checks {
            baseline: checks_of(&plan.checks.baseline, &part.files)?,
            last: checks_of(&plan.checks.last, &part.files)?,
        };
        let id = task::id(&draft.brief.sha256, &part.files);
        let number = self.tasks.len() as u32 + 1;
        let (lines, bytes) = listing.measure(&part.files);
        self.tasks.push(PlannedTask {
            id: id.clone(),
            number,
            when: part.when,
            files: part.files.clone(),
            lines,
            bytes,
            oversize: part.oversize,
            staged: beside
                .as_ref()
                .map(|beside| beside.len() + part.files.len()),
        });
        let source = ByteText::from(self.folder.as_os_str().as_encoded_bytes());
        let (preset, command) = match &plan.agent {
            ringfence_model::plan::Agent::Preset(name) => (Some(name.clone()), None),
            ringfence_model::plan::Agent::Command(words) => (None, Some(words.clone())),
        };
        let text = |line: &Line| line.text.clone();
        self.documents.push(Task {
            schema: SCHEMA,
            id,
            campaign: plan.name.clone(),
            number,
            when: part.when,
            source: source.to_text(),
            stage: plan.run.stage,
            files: part.files,
            beside: beside.unwrap_or_default(),
            base: self.base.clone(),
            brief: draft.brief.clone(),
            agent: Agent { preset, command },
            checks,
            rounds: Rounds {
                iterations: plan.rounds.iterations,
                attempts: plan.rounds.attempts,
                agent: plan.rounds.agent,
            },
            policy: draft.policy.cloned(),
            limits: plan.limits.clone(),
            requires: Requires {
                hard_limits: plan.run.hard_limits,
                backends: plan.run.backend.iter().map(text).collect(),
                guarantees: plan.run.require.iter().map(text).collect(),
                ..Requires::default()
            },
        });
        Ok(())
    }
}

/// The checks of a plan, with the names of a task's files in them where they ask for those.
fn checks_of(texts: &[String], files: &[ByteText]) -> Result<Vec<String>, CampaignError> {
    let fill = |text: &String| {
        check::for_files(text, files).map_err(|source| CampaignError::CheckOfFiles {
            check: text.clone(),
            first: files.first().map(ByteText::to_text).unwrap_or_default(),
            source,
        })
    };
    texts.iter().map(fill).collect()
}

/// What tasks may do, and above all what is hidden from them.
fn settle(
    home: &Home,
    request: &PlanRequest,
    plan: &Plan,
    beside: &Beside,
    folder: &Folder,
) -> Result<Effective, Error> {
    let typed = plan
        .run
        .policy
        .as_ref()
        .map(|line| beside.policy_path(line));
    let asked = Asked {
        host: policy::of_host(home, typed.as_deref(), Some(folder.path()))?,
        usual: request.usual.clone(),
        limits: bounds(&plan.limits, &request.file),
        hide: Vec::new(),
        caller: BTreeMap::new(),
    };
    Ok(asked.settle(home, folder.path())?.effective)
}

/// The limits of a plan or a task, as bounds of the command line are.
fn bounds(limits: &BTreeMap<ringfence_model::limits::Limit, String>, file: &Path) -> Bounds {
    let from = ringfence_model::policy::network::Origin {
        file: file.display().to_string(),
        line: 0,
    };
    let bound = |(limit, text): (&ringfence_model::limits::Limit, &String)| {
        // Looked at when it was read.
        let most = task::quantity(*limit, text).ok()?;
        let from = from.clone();
        Some((*limit, Bound { most, from }))
    };
    limits.iter().filter_map(bound).collect()
}

/// The plan and its brief, where they are in the folder: nobody works on them.
fn own_files(beside: &Beside, plan: &Plan, folder: &Folder) -> Vec<ByteText> {
    let mut own = vec![beside.file()];
    own.push(beside.path(&plan.brief.text));
    own.extend(plan.run.policy.as_ref().map(|line| beside.path(&line.text)));
    let below = own
        .iter()
        .filter_map(|path| path.strip_prefix(folder.path()).ok());
    below
        .map(|path| ByteText::from(path.as_os_str().as_encoded_bytes()))
        .collect()
}

/// What a split asks for, in a few words.
fn described(plan: &Plan) -> String {
    let files = plan.split.files.iter();
    let mut words: Vec<String> = files.map(|line| format!("`{}`", line.text)).collect();
    words.extend(
        plan.split
            .matching
            .iter()
            .map(|line| format!("content `{}`", line.text)),
    );
    let own = plan.split.first.iter().chain(&plan.split.last);
    words.extend(own.map(|line| format!("`{}`", line.text)));
    if words.is_empty() {
        "the split".to_owned()
    } else {
        words.join(", ")
    }
}
