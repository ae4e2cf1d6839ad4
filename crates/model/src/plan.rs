//! The plan of a campaign: one large job, how it is split into tasks, and what each task is held to.
//!
//! A plan is its user's own, as a policy is. What it names is looked up by the engine; here its
//! text becomes data, and what is wrong in it is told with a line and a caret.

pub mod budget;
mod diff;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::check::MAX_CHECKS;
use crate::limits::Limit;
use crate::policy::Line;
use crate::policy::document::DocumentError;
use crate::policy::document::reader::{Reader, Value, read_text};
use crate::policy::glob::Globs;
use crate::rounds::AgentLife;
use crate::split::content::Pattern;

pub use budget::Budget;
pub use diff::{Moved, SplitDiff, diff};

/// BOUND: files of one task where the plan says nothing: what a person reviews in one sitting.
pub const PER_TASK: usize = 10;
/// BOUND: files of one task. Whoever wants more wants no split.
pub const MAX_PER_TASK: usize = 10_000;
/// BOUND: rounds of one task.
pub const MAX_ROUNDS: u32 = 100;
/// BOUND: attempts at one task: as many as are compared at once.
pub const MAX_ATTEMPTS: u32 = 64;
/// BOUND: sandboxes that a plan may ask for at once.
pub const MAX_PARALLEL: u32 = 10_000;
/// BOUND: words of an agent's command.
const MAX_WORDS: usize = 256;
/// BOUND: characters of a campaign's name: it stands in branches, lists and names of files.
const MAX_NAME: usize = 64;
/// BOUND: bytes of a line of shell; more belongs into a script.
const MAX_SHELL: usize = 4096;

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: String,
    /// The file that says what is to be done, beside the plan.
    pub brief: Line,
    pub agent: Agent,
    pub split: Split,
    pub checks: Checks,
    pub rounds: Rounds,
    pub run: Running,
    pub budget: Budget,
    /// As they are written in policies, by the name of the limit.
    pub limits: BTreeMap<Limit, String>,
}

/// Who does the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    Preset(String),
    Command(Vec<String>),
}

/// Which files, and how they become tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Patterns of the files; empty: the whole tree, or what `command` names.
    pub files: Vec<Line>,
    pub except: Vec<Line>,
    /// Only files that hold a match of this expression.
    pub matching: Option<Line>,
    pub by: By,
    /// `None`: [`PER_TASK`], or the groups of a command as they are.
    pub per_task: Option<usize>,
    pub keep: Keep,
    /// What changes together, before and after all other tasks.
    pub first: Vec<Line>,
    pub last: Vec<Line>,
}

/// What decides which files meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Neighbours in the order of their paths.
    #[default]
    Path,
    /// No task has files of two directories.
    Directory,
    /// What is imported comes before what imports it.
    Dependencies,
    /// A line of shell prints the groups.
    Command(Line),
}

/// What is not torn apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// A file and its tests.
    #[default]
    Tests,
    /// That, and directories as far as they fit into a task.
    Directory,
    Nothing,
}

/// Commands of the host's own; their exit codes decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Before the agent starts.
    pub baseline: Vec<String>,
    /// On what it leaves.
    pub last: Vec<String>,
}

/// How often a task is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    pub iterations: u32,
    pub attempts: u32,
    pub agent: AgentLife,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            iterations: 1,
            attempts: 1,
            agent: AgentLife::default(),
        }
    }
}

/// How tasks run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// `None`: as many as the host bears.
    pub parallel: Option<u32>,
    pub stage: crate::task::Stage,
    /// Patterns of what every sandbox sees besides, where it does not see everything.
    pub needs: Vec<Line>,
    /// A file beside the plan, or the name of a policy that is built in.
    pub policy: Option<Line>,
    pub hard_limits: bool,
    /// What holds the sandboxes, by name; `None`: what the settings say.
    pub backend: Option<Line>,
    /// What that must be seen to have, as `kernel=separate`.
    pub require: Vec<Line>,
}

impl Plan {
    /// Reads a plan.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self, DocumentError> {
        let plan = read_text(bytes, file, "a plan", Self::read)?;
        // A plan that lacks something has a problem.
        plan.ok_or_else(|| DocumentError(Vec::new()))
    }

    fn read<'t>(reader: &mut Reader<'t>, table: &toml::de::DeTable<'t>) -> Option<Self> {
        let (mut name, mut brief) = (None, None);
        let (mut preset, mut command) = (None, None);
        let mut split = Split::default();
        let mut checks = Checks::default();
        let mut rounds = Rounds::default();
        let mut run = Running::default();
        let mut budget = Budget::default();
        let mut limits = BTreeMap::new();
        let keys = [
            "name", "brief", "agent", "command", "split", "checks", "loop", "run", "budget",
            "limits",
        ];
        let found = reader.keys(table, &keys);
        for (key, value) in &found {
            match *key {
                "name" => name = checked(reader, value, campaign_name),
                "brief" => brief = line(reader, value, beside),
                "agent" => preset = checked(reader, value, preset_name),
                "command" => command = words(reader, value),
                "split" => split = read_split(reader, value),
                "checks" => checks = read_checks(reader, value),
                "loop" => rounds = read_rounds(reader, value),
                "run" => run = read_running(reader, value),
                "budget" => budget = budget::read(reader, value),
                _ => limits = read_limits(reader, value),
            }
        }
        for (key, what) in [
            ("name", "a plan has a name: name = \"my-migration\""),
            (
                "brief",
                "a plan has a brief, the file that tells the agent what to do: brief = \"BRIEF.md\"",
            ),
            (
                "split",
                "a plan has a split: [split] with files = \"src/**\"",
            ),
        ] {
            if !found.contains_key(key) {
                reader.wrong(0..0, what);
            }
        }
        let agent = match (found.get("agent"), found.get("command")) {
            (Some(_), None) => preset.map(Agent::Preset),
            (None, Some(_)) => command.map(Agent::Command),
            (Some(both), Some(_)) => {
                reader.wrong(both.span(), "either `agent` or `command`, not both");
                None
            }
            (None, None) => {
                let message =
                    "a plan has an agent: agent = \"claude\", or command = [\"./agent.sh\"]";
                reader.wrong(0..0, message);
                None
            }
        };
        if run.stage == crate::task::Stage::Whole
            && let Some(line) = run.needs.first()
        {
            let at = place(reader.text, line);
            reader.wrong(at, "`needs` goes with stage = \"needed\"");
        }
        Some(Self {
            name: name?,
            brief: brief?,
            agent: agent?,
            split,
            checks,
            rounds,
            run,
            budget,
            limits,
        })
    }
}

/// Where the line of an item begins.
fn place(text: &str, line: &Line) -> std::ops::Range<usize> {
    let before = text.split_inclusive('\n').take(line.from.line as usize - 1);
    let at = before.map(str::len).sum();
    at..at + 1
}

fn read_split<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Split {
    let mut split = Split::default();
    let Some(table) = reader.table(value) else {
        return split;
    };
    let keys = [
        "files",
        "except",
        "matching",
        "by",
        "command",
        "per_task",
        "keep_together",
        "first",
        "last",
    ];
    let found = reader.keys(table, &keys);
    for (key, value) in &found {
        match *key {
            "files" => split.files = globs(reader, value),
            "except" => split.except = globs(reader, value),
            "first" => split.first = globs(reader, value),
            "last" => split.last = globs(reader, value),
            "matching" => {
                split.matching = line(reader, value, |text| Pattern::parse(text).map(|_| ()));
            }
            "by" => {
                let ways = [
                    ("path", By::Path),
                    ("directory", By::Directory),
                    ("dependencies", By::Dependencies),
                ];
                if let Some(by) = one_of(reader, value, &ways) {
                    split.by = by;
                }
            }
            "command" => {
                if let Some(line) = line(reader, value, shell) {
                    split.by = By::Command(line);
                }
            }
            "per_task" => {
                split.per_task = count(reader, value, MAX_PER_TASK as u32).map(|n| n as usize);
            }
            _ => {
                let ways = [
                    ("tests", Keep::Tests),
                    ("directory", Keep::Directory),
                    ("nothing", Keep::Nothing),
                ];
                if let Some(keep) = one_of(reader, value, &ways) {
                    split.keep = keep;
                }
            }
        }
    }
    if let (Some(by), Some(_)) = (found.get("by"), found.get("command")) {
        reader.wrong(by.span(), "either `by` or `command`, not both");
    }
    let says = ["files", "matching", "command", "first", "last"];
    if !says.iter().any(|key| found.contains_key(key)) {
        let message =
            "a split says which files: files = \"src/**\", matching = 'expression', or command";
        reader.wrong(value.span(), message);
    }
    split
}

fn read_checks<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Checks {
    let mut checks = Checks::default();
    if let Some(table) = reader.table(value) {
        for (key, value) in reader.keys(table, &["baseline", "final"]) {
            let lines = one_or_more(reader, value, crate::check::command);
            // BOUND: both kinds together are the checks of one run.
            if lines.len() > MAX_CHECKS / 2 {
                reader.wrong(value.span(), format!("at most {} checks", MAX_CHECKS / 2));
            }
            let texts = lines.into_iter().map(|line| line.text).collect();
            match key {
                "baseline" => checks.baseline = texts,
                _ => checks.last = texts,
            }
        }
    }
    checks
}

fn read_rounds<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Rounds {
    let mut rounds = Rounds::default();
    if let Some(table) = reader.table(value) {
        for (key, value) in reader.keys(table, &["iterations", "attempts", "agent"]) {
            if key == "agent" {
                let ways = [
                    ("restarts", AgentLife::Restarts),
                    ("stays", AgentLife::Stays),
                ];
                rounds.agent = one_of(reader, value, &ways).unwrap_or_default();
                continue;
            }
            let (count_of, most) = match key {
                "iterations" => (&mut rounds.iterations, MAX_ROUNDS),
                _ => (&mut rounds.attempts, MAX_ATTEMPTS),
            };
            if let Some(count) = count(reader, value, most) {
                *count_of = count;
            }
        }
    }
    rounds
}

fn read_running<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Running {
    use crate::task::Stage;
    let mut run = Running::default();
    let Some(table) = reader.table(value) else {
        return run;
    };
    let keys = [
        "parallel",
        "stage",
        "needs",
        "policy",
        "backend",
        "require",
        "hard_limits",
    ];
    for (key, value) in reader.keys(table, &keys) {
        match key {
            "parallel" => run.parallel = count(reader, value, MAX_PARALLEL),
            "stage" => {
                let ways = [("whole", Stage::Whole), ("needed", Stage::Needed)];
                if let Some(stage) = one_of(reader, value, &ways) {
                    run.stage = stage;
                }
            }
            "needs" => run.needs = globs(reader, value),
            "policy" => run.policy = line(reader, value, beside),
            "backend" => run.backend = line(reader, value, |_| Ok::<_, String>(())),
            "require" => run.require = one_or_more(reader, value, guarantee),
            _ => run.hard_limits = reader.boolean(value).unwrap_or_default(),
        }
    }
    run
}

fn read_limits<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> BTreeMap<Limit, String> {
    let mut limits = BTreeMap::new();
    let Some(table) = reader.table(value) else {
        return limits;
    };
    let known: Vec<&'static str> = crate::task::limits().map(Limit::as_str).collect();
    for (key, value) in reader.keys(table, &known) {
        let Some(limit) = crate::task::limits().find(|limit| limit.as_str() == key) else {
            continue;
        };
        let read = reader.quantity(value, |text| crate::task::quantity(limit, text));
        let text = match value.get_ref() {
            toml::de::DeValue::Integer(number) => number.as_str().to_owned(),
            other => other.as_str().unwrap_or_default().to_owned(),
        };
        if read.is_some() {
            limits.insert(limit, text);
        }
    }
    limits
}

fn line<'t, E: std::fmt::Display>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    check: impl Fn(&str) -> Result<(), E>,
) -> Option<Line> {
    let line = reader.line(value)?;
    reader.keep(value.span(), check(&line.text)).map(|()| line)
}

fn checked<'t, E: std::fmt::Display>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    check: impl Fn(&str) -> Result<(), E>,
) -> Option<String> {
    line(reader, value, check).map(|line| line.text)
}

/// A string, or a list of strings.
fn one_or_more<'t, E: std::fmt::Display>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    check: impl Fn(&str) -> Result<(), E>,
) -> Vec<Line> {
    if value.get_ref().is_str() {
        return line(reader, value, check).into_iter().collect();
    }
    reader.lines(value, check)
}

fn globs<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<Line> {
    let lines = one_or_more(reader, value, |text| Globs::exact(&[text]).map(|_| ()));
    if value
        .get_ref()
        .as_array()
        .is_some_and(|list| list.is_empty())
    {
        reader.wrong(value.span(), "an empty list selects nothing; leave it out");
    }
    lines
}

fn words<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Vec<String>> {
    let before = reader.problems.len();
    let lines = reader.lines(value, |_| Ok::<(), std::convert::Infallible>(()));
    let words: Vec<String> = lines.into_iter().map(|line| line.text).collect();
    match words.first() {
        _ if reader.problems.len() > before => None,
        Some(first) if !first.is_empty() && words.len() <= MAX_WORDS => Some(words),
        _ => {
            let message = "a command is a list of words: command = [\"./agent.sh\", \"--fast\"]";
            reader.wrong(value.span(), message);
            None
        }
    }
}

fn one_of<'t, T: Clone>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    ways: &[(&str, T)],
) -> Option<T> {
    let text = reader.string(value)?;
    let found = ways.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let names: Vec<String> = ways.iter().map(|(name, _)| format!("`{name}`")).collect();
        let message = format!("`{text}` is none of {}", names.join(", "));
        reader.wrong(value.span(), message);
    }
    found.map(|(_, way)| way.clone())
}

fn count<'t>(reader: &mut Reader<'t>, value: &Value<'t>, most: u32) -> Option<u32> {
    let read = match value.get_ref() {
        toml::de::DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
        _ => None,
    };
    let read = read.filter(|number| (1..=most).contains(number));
    if read.is_none() {
        reader.wrong(value.span(), format!("a number from 1 to {most} is meant"));
    }
    read
}

/// Refuses what cannot be the name of a campaign.
pub fn campaign_name(text: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let first = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    if first && text.len() <= MAX_NAME && text.bytes().all(plain) && !text.contains("..") {
        Ok(())
    } else {
        Err(format!(
            "a name has letters, digits, `-`, `_` and `.`, begins with a letter or digit, and has at most {MAX_NAME} characters"
        ))
    }
}

fn preset_name(text: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(plain) {
        Ok(())
    } else {
        Err("`agent` is the name of a preset; a program is command = [\"./agent.sh\"]")
    }
}

/// HOSTILE: a plan may have come with a repository; what it names is below it, and nowhere else.
fn guarantee(text: &str) -> Result<(), &'static str> {
    match crate::guarantees::Requirement::parse(text) {
        Some(_) => Ok(()),
        None => Err("a guarantee and its value are meant, as `kernel=separate`"),
    }
}

fn beside(text: &str) -> Result<(), &'static str> {
    use std::path::{Component, Path};
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !text.is_empty() && Path::new(text).components().all(plain) {
        Ok(())
    } else {
        Err("a path below the plan's own directory is meant, without `..`")
    }
}

fn shell(text: &str) -> Result<(), String> {
    if !text.trim().is_empty() && text.len() <= MAX_SHELL {
        Ok(())
    } else {
        Err(format!(
            "a line of shell of at most {MAX_SHELL} bytes is meant; put more into a script"
        ))
    }
}
