//! What a campaign has come to: for a program as JSON, for a person as Markdown. Every task is in
//! it, those above all that did not pass.
//!
//! HOSTILE: the words of agents, checks and file names are in it; each is put on one line and into
//! code marks that it cannot leave.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringfence_model::campaign::{Spent, TaskState};
use ringfence_model::flag::Severity;
use ringfence_model::outcome::RunStatus;
use ringfence_model::plan::budget::in_dollars;
use serde::Serialize;

use super::begin::is_driven;
use super::strayed::{Owners, Strayed};
use crate::archive;
use crate::clock::now_us;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::run::{RunResult, Seconds};
use crate::store::{CampaignRecord, RunRecord, Store, TaskRecord};
use crate::verdicts::{self, Standing};

/// How many tasks are where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All but those that the plan has no more.
    pub tasks: u64,
    pub by_state: BTreeMap<TaskState, u64>,
    pub changed_files: u64,
    pub insertions: u64,
    pub deletions: u64,
    pub spent: Spent,
}

impl Counts {
    pub fn of<'t>(tasks: impl IntoIterator<Item = &'t TaskRecord>) -> Self {
        let mut counts = Self::default();
        for task in tasks {
            *counts.by_state.entry(task.state).or_default() += 1;
            counts.spent = counts.spent.plus(task.figures.spent);
            if task.state == TaskState::Dropped {
                continue;
            }
            counts.tasks += 1;
            counts.changed_files += task.figures.changed_files;
            counts.insertions += task.figures.insertions;
            counts.deletions += task.figures.deletions;
        }
        counts
    }

    pub fn in_state(&self, state: TaskState) -> u64 {
        self.by_state.get(&state).copied().unwrap_or(0)
    }

    /// Tasks to which nothing more happens by itself.
    pub fn over(&self) -> u64 {
        let waits = self.in_state(TaskState::Waiting) + self.in_state(TaskState::Running);
        self.tasks - waits
    }

    /// Whether nothing is left that `resume` would do by itself because somebody stopped it.
    pub fn is_finished(&self) -> bool {
        self.over() == self.tasks && self.in_state(TaskState::Cancelled) == 0
    }

    /// `12 passed, 1 failed`.
    pub fn words(&self) -> String {
        let some = self.by_state.iter().filter(|(_, count)| **count > 0);
        let words: Vec<String> = some
            .map(|(state, count)| format!("{count} {}", state.words()))
            .collect();
        words.join(", ")
    }
}

/// Whether somebody works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// A process drives it.
    Running,
    /// Nobody does, and tasks are left.
    Stopped,
    /// Every task is over, and none was stopped.
    Finished,
}

impl Progress {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
        }
    }
}

/// A task in a report.
#[derive(Clone, Debug)]
pub struct ReportedTask {
    pub task: TaskRecord,
    /// All its runs, the oldest first.
    pub runs: Vec<RunId>,
    /// Where the run that counts stands: held, approved or rejected.
    pub review: Option<String>,
    /// What to look at first of the run that counts: its serious flags.
    pub serious: Vec<String>,
    /// What the run that counts changed and is not the task's own.
    pub strayed: Strayed,
}

impl Serialize for ReportedTask {
    /// One object: what the store knows, and beside it what was found out.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::Error as _;
        let mut value = serde_json::to_value(&self.task).map_err(S::Error::custom)?;
        value["runs"] = serde_json::json!(self.runs);
        value["review"] = serde_json::json!(self.review);
        value["serious"] = serde_json::json!(self.serious);
        value["strayed"] = serde_json::json!(self.strayed);
        value.serialize(serializer)
    }
}

/// A command to type next, and what for.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub why: &'static str,
    pub command: String,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub campaign: CampaignRecord,
    pub progress: Progress,
    pub counts: Counts,
    pub tasks: Vec<ReportedTask>,
    pub next: Vec<Step>,
}

/// Its tasks, and whether somebody works on them. Where nobody does nothing runs: what was under way
/// when its driver died waits for the next one.
pub fn tasks(
    home: &Home,
    store: &Store,
    campaign: &CampaignRecord,
) -> Result<(Vec<TaskRecord>, bool), Error> {
    let driven = is_driven(home, campaign)?;
    let mut tasks = store.campaign_tasks(campaign.id)?;
    for task in &mut tasks {
        if !driven && task.state == TaskState::Running {
            task.state = TaskState::Waiting;
        }
    }
    Ok((tasks, driven))
}

/// Reads everything that is known of a campaign.
pub fn report(home: &Home, store: &Store, campaign: &CampaignRecord) -> Result<Report, Error> {
    let (records, driven) = tasks(home, store, campaign)?;
    let mut campaign = campaign.clone();
    let mut runs: BTreeMap<String, Vec<RunRecord>> = BTreeMap::new();
    let all = store.campaign_runs(campaign.id)?;
    if driven {
        let running = all.iter().filter(|run| run.status == RunStatus::Running);
        let counted_us = store.campaign_counted_us(campaign.id)?;
        let began_us = running.map(|run| run.created_us).min();
        campaign.driven_ms += uncounted_ms(now_us(), counted_us, began_us);
    }
    for run in all {
        if let Some(of) = run.campaign() {
            runs.entry(of.task).or_default().push(run);
        }
    }
    let counts = Counts::of(&records);
    let progress = if driven {
        Progress::Running
    } else if counts.is_finished() {
        Progress::Finished
    } else {
        Progress::Stopped
    };
    let has_strayed = |task: &TaskRecord| task.figures.strayed().is_some();
    let owners = if records.iter().any(has_strayed) {
        Owners::of(store, &campaign, records.iter())?
    } else {
        Owners::default()
    };
    let mut tasks = Vec::new();
    let mut held = 0;
    for mut task in records {
        let own = runs.remove(&task.task).unwrap_or_default();
        let chosen = own.iter().find(|run| Some(run.id) == task.run);
        let review = chosen.and_then(|run| stands(home, store, run));
        let result = chosen.and_then(|run| archive::result(home, run.id).ok().flatten());
        let strayed = match &result {
            Some(result) if has_strayed(&task) => {
                owners.strayed(task.number, &result.changed_files)
            }
            _ => Strayed::default(),
        };
        // Of one that runs nothing is recorded yet: what is told is the time so far.
        if task.state == TaskState::Running
            && let Some(run) = own.last()
        {
            let so_far = (now_us() - run.created_us).max(0);
            task.figures.duration_ms = so_far.cast_unsigned() / 1000;
        }
        held += u64::from(review.as_deref() == Some("held"));
        tasks.push(ReportedTask {
            runs: own.iter().map(|run| run.id).collect(),
            review,
            serious: serious(result.as_ref()),
            strayed,
            task,
        });
    }
    let next = next(&campaign, progress, &counts, held, &tasks);
    Ok(Report {
        campaign,
        progress,
        counts,
        tasks,
        next,
    })
}

/// How long it is worked on since that was recorded, which is when a task ends: from then on, or from
/// when the first of the runs that are under way began. A clock that went back adds nothing.
fn uncounted_ms(now_us: i64, counted_us: Option<i64>, began_us: Option<i64>) -> u64 {
    let Some(began_us) = began_us else { return 0 };
    let since_us = counted_us.unwrap_or(began_us).max(began_us);
    (now_us - since_us).max(0).cast_unsigned() / 1000
}

/// BOUND: serious flags of one task that are told; `ringfence show` has all.
const SERIOUS: usize = 8;

/// What is serious about a run. One whose bundle cannot be read says so where it is decided on.
fn serious(result: Option<&RunResult>) -> Vec<String> {
    let flags = result.into_iter().flat_map(|result| &result.flags);
    flags
        .filter(|flag| flag.severity == Severity::Serious)
        .take(SERIOUS)
        .map(|flag| flag.message.clone())
        .collect()
}

/// Where a run stands, where there is anything to decide on.
fn stands(home: &Home, store: &Store, run: &RunRecord) -> Option<String> {
    if run.bundle.is_none() || run.changed_files == Some(0) {
        return None;
    }
    match verdicts::standing(store, home, run) {
        Ok(standing @ Standing::Held(_)) => Some(standing.as_str().to_owned()),
        Ok(standing) => Some(standing.as_str().to_owned()),
        Err(_) => Some("unknown".to_owned()),
    }
}

/// Why a task is skipped.
pub(super) fn spent_why(budget: &str) -> String {
    format!("the budget of {budget} is spent")
}

/// Options by which `resume` goes on where budgets are spent, as they can be typed.
fn larger(campaign: &CampaignRecord, counts: &Counts, tasks: &[ReportedTask]) -> String {
    let is_spent = |budget: &str| {
        let why = spent_why(budget);
        let skipped = |own: &&ReportedTask| own.task.state == TaskState::Skipped;
        let mut skipped = tasks.iter().filter(skipped);
        skipped.any(|own| own.task.why.as_deref() == Some(&why))
    };
    // As much again, and at least more than what is spent.
    let more = |most: Option<u64>, spent: u64| {
        let most = most.unwrap_or_default().max(1);
        most.max(spent).saturating_add(most)
    };
    let (budget, spent) = (campaign.settings.budget, counts.spent);
    let mut options = String::new();
    if is_spent("time") {
        let seconds = more(budget.time_seconds, campaign.driven_ms / 1000);
        options.push_str(&format!(" --budget-time {seconds}s"));
    }
    if is_spent("tasks") {
        options.push_str(&format!(" --budget-tasks {}", counts.tasks));
    }
    if is_spent("tokens") {
        let tokens = more(budget.tokens, spent.tokens);
        options.push_str(&format!(" --budget-tokens {tokens}"));
    }
    if is_spent("cost") {
        let cents = more(budget.cost_micros, spent.cost_micros).div_ceil(10_000);
        options.push_str(&format!(
            " --budget-cost {}.{:02}",
            cents / 100,
            cents % 100
        ));
    }
    options
}

fn next(
    campaign: &CampaignRecord,
    progress: Progress,
    counts: &Counts,
    held: u64,
    tasks: &[ReportedTask],
) -> Vec<Step> {
    let name = &campaign.name;
    let mut next = Vec::new();
    let mut add = |why, command: String| next.push(Step { why, command });
    match progress {
        Progress::Running => add("stop it", format!("ringfence campaign cancel {name}")),
        Progress::Stopped => add("go on", format!("ringfence campaign resume {name}")),
        Progress::Finished if counts.in_state(TaskState::Skipped) > 0 => {
            let options = larger(campaign, counts, tasks);
            let command = format!("ringfence campaign resume {name}{options}");
            add("go on with a larger budget", command);
        }
        Progress::Finished if counts.in_state(TaskState::Infrastructure) > 0 => add(
            "try again what this host could not run",
            format!("ringfence campaign resume {name}"),
        ),
        Progress::Finished => {}
    }
    if progress == Progress::Finished && counts.in_state(TaskState::BaseMoved) > 0 {
        let command = format!("ringfence campaign resume {name} --plan PLAN");
        add("plan anew for the folder as it is", command);
    }
    if held > 0 {
        add("decide", format!("ringfence review --campaign {name}"));
    }
    let passed = counts.in_state(TaskState::Passed);
    if progress == Progress::Finished && held == 0 && passed > 0 {
        add(
            "take it",
            format!("ringfence campaign apply {name} --branch {name}"),
        );
    }
    let again = [TaskState::Failed, TaskState::Exhausted, TaskState::NoChange];
    let failed: u64 = again.iter().map(|state| counts.in_state(*state)).sum();
    if progress == Progress::Finished && failed > 0 {
        let command = format!("ringfence campaign resume {name} --failed");
        add("try again what did not pass", command);
    }
    next
}

impl Report {
    /// For a person.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        // A string takes everything.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let campaign = &self.campaign;
        writeln!(out, "# Campaign {}\n", campaign.name)?;
        let folder = campaign.folder.to_string_lossy();
        writeln!(out, "- folder: {}", code(&folder))?;
        writeln!(out, "- {}: {}", self.progress.as_str(), self.counts.words())?;
        writeln!(
            out,
            "- {} changed, +{} −{} lines; worked on for {}",
            count(self.counts.changed_files, "file"),
            self.counts.insertions,
            self.counts.deletions,
            Seconds(campaign.driven_ms)
        )?;
        let spent = self.counts.spent;
        if !spent.is_nothing() {
            writeln!(
                out,
                "- agents say that they used {} tokens and {}",
                spent.tokens,
                in_dollars(spent.cost_micros)
            )?;
        }
        writeln!(out, "\n## Tasks\n")?;
        writeln!(
            out,
            "| task | id | first file | verdict | files | lines | checks | serious | time | run | review |"
        )?;
        writeln!(
            out,
            "| ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
        )?;
        for own in &self.tasks {
            let (task, figures) = (&own.task, &own.task.figures);
            let run = task
                .run
                .map_or_else(|| "-".to_owned(), |run| format!("`{run}`"));
            let time = match (figures.duration_ms, task.state) {
                (0, _) => "-".to_owned(),
                (so_far, TaskState::Running) => format!("{} so far", Seconds(so_far)),
                (all, _) => Seconds(all).to_string(),
            };
            writeln!(
                out,
                "| {} | `{}` | {} | {}{} | {} | +{} −{} | {}/{} | {} | {} | {run} | {} |",
                task.number,
                task.task,
                named(task),
                task.verdict(),
                best_of(task),
                task.files,
                figures.insertions,
                figures.deletions,
                figures.checks_held,
                figures.checks,
                own.serious.len(),
                time,
                own.review.as_deref().unwrap_or("-"),
            )?;
        }
        let wrong: Vec<&ReportedTask> = self
            .tasks
            .iter()
            .filter(|own| own.task.state.is_over() && own.task.state != TaskState::Passed)
            .collect();
        if !wrong.is_empty() {
            writeln!(out, "\n## Not passed\n")?;
        }
        for own in wrong {
            let task = &own.task;
            let why = task.why.as_deref().unwrap_or(task.state.meaning());
            writeln!(
                out,
                "- task {} (`{}`, {}): {}{}: {}",
                task.number,
                task.task,
                named(task),
                task.state.words(),
                best_of(task),
                code(why)
            )?;
            // Where none counts, the last one says most of what went wrong.
            if let Some(run) = task.run.as_ref().or(own.runs.last()) {
                writeln!(out, "  - look at it: `ringfence show {run}`")?;
            }
        }
        let doubted: Vec<&ReportedTask> = self
            .tasks
            .iter()
            .filter(|own| !own.serious.is_empty() || !own.strayed.files.is_empty())
            .collect();
        if !doubted.is_empty() {
            writeln!(out, "\n## Look at first\n")?;
        }
        for own in doubted {
            let run = own.task.run.map(|run| run.to_string()).unwrap_or_default();
            writeln!(
                out,
                "- task {} ({}): `ringfence show {run}`",
                own.task.number,
                named(&own.task)
            )?;
            if let Some(words) = own.task.figures.strayed() {
                writeln!(out, "  - {words}:")?;
            }
            for file in own.strayed.files.iter().take(STRAYED) {
                let whose = file.task.map(|number| format!(", of task {number}"));
                let whose = whose.unwrap_or_default();
                writeln!(out, "    - {}{whose}", code(&file.path.to_text()))?;
            }
            if own.strayed.files.len() > STRAYED {
                writeln!(out, "    - …; `--json` has more")?;
            }
            for message in &own.serious {
                writeln!(out, "  - {}", code(message))?;
            }
        }
        if !self.next.is_empty() {
            writeln!(out, "\n## Next\n")?;
        }
        for step in &self.next {
            writeln!(out, "- {}: `{}`", step.why, step.command)?;
        }
        Ok(())
    }
}

/// BOUND: files of one task that are told and not its own; JSON has more.
const STRAYED: usize = 10;

/// A task as a person knows it: its first file.
fn named(task: &TaskRecord) -> String {
    format!(
        "{}{}",
        cell(&code(&task.first.to_text())),
        task.more_files()
    )
}

/// HOSTILE: a name does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn best_of(task: &TaskRecord) -> String {
    match task.figures.best_of {
        0 => String::new(),
        count => format!(", best of {count} attempts"),
    }
}

fn count(number: u64, word: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {word}{plural}")
}

/// BOUND: characters of somebody else's words in one line.
const SHOWN: usize = 300;

/// Somebody else's words as they are, in marks that they cannot leave.
fn code(text: &str) -> String {
    let plain = |c: char| match c {
        '`' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    let shown: String = text.chars().take(SHOWN).map(plain).collect();
    let more = match text.chars().nth(SHOWN) {
        Some(_) => "…",
        None => "",
    };
    format!("`{}{more}`", shown.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_while_runs_are_under_way() {
        for (now, counted, began, expected) in [
            (9_000, None, None, 0),
            (9_000, Some(1_000), None, 0),
            (9_000, None, Some(4_000), 5),
            // A task ended meanwhile: what was before that is recorded.
            (9_000, Some(7_000), Some(4_000), 2),
            // It ended in an earlier sitting.
            (9_000, Some(1_000), Some(4_000), 5),
            (3_000, None, Some(4_000), 0),
        ] {
            let told = uncounted_ms(now, counted, began);
            assert_eq!(told, expected, "{now} {counted:?} {began:?}");
        }
    }

    #[test]
    fn words_of_others_stay_in_their_marks() {
        for (text, shown) in [
            ("plain", "`plain`"),
            ("a `b`\n## Next\n- `rm`", "`a 'b' ## Next - 'rm'`"),
            ("\u{1b}[31mred", "`[31mred`"),
        ] {
            assert_eq!(code(text), shown);
        }
        assert!(code(&"x".repeat(5000)).chars().count() < SHOWN + 4);
    }
}
