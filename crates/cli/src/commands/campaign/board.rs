//! The progress of a campaign: a table on a terminal, lines elsewhere, JSON Lines for programs.
//!
//! With two hundred tasks nobody reads two hundred rows: a bar with counts, the runs under way, and
//! what ended last are shown, as many as there are rows for. What did not pass also stays above the
//! table as a line.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal as _, Write as _, stderr, stdout};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence_engine::campaign::{Counts, Told, Watcher};
use ringfence_engine::run::Seconds;
use ringfence_engine::store::TaskRecord;
use ringfence_model::campaign::{Spent, TaskState};
use ringfence_model::plan::budget::in_dollars;

use crate::console::window_size;
use crate::text::{clean, clean_json, plural, shorten, shorten_middle};

/// Characters of the bar.
const BAR: u64 = 20;
/// BOUND: tasks that are over and may still be shown.
const RECENT: usize = 100;
/// BOUND: a table is drawn no more often than this.
const DRAW: Duration = Duration::from_millis(100);

/// How progress is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Table,
    Lines,
    Json,
}

/// The watcher of a campaign.
#[derive(Debug)]
pub struct Board {
    way: Way,
    state: Mutex<State>,
}

/// What is known so far.
#[derive(Debug)]
struct State {
    name: String,
    tasks: BTreeMap<u32, TaskRecord>,
    running: BTreeMap<(u32, u32), Row>,
    recent: VecDeque<TaskRecord>,
    began: Instant,
    drawn: Drawn,
}

/// A run under way.
#[derive(Debug)]
struct Row {
    step: String,
    of: u32,
    since: Instant,
}

/// What is on the screen.
#[derive(Debug)]
struct Drawn {
    widths: Vec<usize>,
    at: Option<Instant>,
}

impl Board {
    pub fn new(json: bool) -> Self {
        let term = std::env::var("TERM").unwrap_or_default();
        let table = stderr().is_terminal() && !matches!(term.as_str(), "" | "dumb");
        Self {
            way: match (json, table) {
                (true, _) => Way::Json,
                (_, true) => Way::Table,
                _ => Way::Lines,
            },
            state: Mutex::new(State {
                name: String::new(),
                tasks: BTreeMap::new(),
                running: BTreeMap::new(),
                recent: VecDeque::new(),
                began: Instant::now(),
                drawn: Drawn {
                    widths: Vec::new(),
                    at: None,
                },
            }),
        }
    }
}

impl Watcher for Board {
    fn told(&self, told: &Told<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take(told);
        match self.way {
            Way::Json => {
                if let Ok(line) = serde_json::to_string(told) {
                    // Who does not read any more does not stop the campaign.
                    let _ = writeln!(stdout(), "{}", clean_json(&line));
                }
            }
            Way::Lines => {
                if let Some(line) = state.line(told, true) {
                    let _ = writeln!(stderr(), "{line}");
                }
            }
            Way::Table => {
                if let Some(line) = state.line(told, false) {
                    state.above(&line);
                }
                if matches!(told, Told::Ended { .. }) {
                    state.wipe();
                }
            }
        }
    }

    fn tick(&self) {
        if self.way == Way::Table {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.draw();
        }
    }
}

impl State {
    fn take(&mut self, told: &Told<'_>) {
        match told {
            Told::Begun {
                campaign, tasks, ..
            } => {
                self.name = (*campaign).to_owned();
                self.tasks = tasks
                    .iter()
                    .map(|task| (task.number, task.clone()))
                    .collect();
            }
            Told::Task {
                number,
                attempt,
                of,
                ..
            } => {
                let row = Row {
                    step: "begins".to_owned(),
                    of: *of,
                    since: Instant::now(),
                };
                self.running.insert((*number, *attempt), row);
                if let Some(task) = self.tasks.get_mut(number) {
                    task.state = TaskState::Running;
                }
            }
            Told::Step {
                number,
                attempt,
                step,
                ..
            } => {
                if let Some(row) = self.running.get_mut(&(*number, *attempt)) {
                    row.step = (*step).to_owned();
                    if *step == "hold" && row.of > 1 {
                        self.running.remove(&(*number, *attempt));
                    }
                }
            }
            Told::Retry { number, .. } => self.running.retain(|(own, _), _| own != number),
            Told::Over { task } => {
                self.running.retain(|(own, _), _| *own != task.number);
                self.tasks.insert(task.number, (*task).clone());
                if task.state != TaskState::Waiting {
                    self.recent.push_front((*task).clone());
                    self.recent.truncate(RECENT);
                }
            }
            Told::Stopping { .. } | Told::Note { .. } | Told::Ended { .. } => {}
        }
    }

    fn counts(&self) -> Counts {
        Counts::of(self.tasks.values())
    }

    /// What stays on the screen; with `all` whatever ends does, else only what did not pass.
    fn line(&self, told: &Told<'_>, all: bool) -> Option<String> {
        Some(match told {
            Told::Begun {
                campaign,
                tasks,
                parallel,
            } if all => format!(
                "campaign {}: {}, {parallel} at once",
                clean(campaign),
                plural(tasks.len(), "task")
            ),
            Told::Over { task } if task.state == TaskState::Waiting => return None,
            Told::Over { task } if all || task.state != TaskState::Passed => {
                let counts = self.counts();
                format!("[{}/{}] {}", counts.over(), counts.tasks, ended(task, LINE))
            }
            Told::Retry {
                task,
                number,
                after_seconds,
                why,
            } => format!(
                "{}: {}; again in {after_seconds} s",
                self.called(*number, task, LINE),
                shorten(why, 300)
            ),
            Told::Stopping { why } => format!("nothing more begins: {}", clean(why)),
            Told::Note { note } => format!("note: {}", shorten(note, 600)),
            _ => return None,
        })
    }

    /// Puts a line above the table.
    fn above(&mut self, line: &str) {
        self.wipe();
        // Who closed the terminal does not look at it.
        let _ = writeln!(stderr(), "{line}");
        self.drawn.at = None;
        self.draw();
    }

    /// Takes the table away. A terminal that became narrower has wrapped what it showed.
    fn wipe(&mut self) {
        if self.drawn.widths.is_empty() {
            return;
        }
        let columns = window_size().map_or(80, |size| usize::from(size.columns).max(1));
        let rows: usize = self
            .drawn
            .widths
            .iter()
            .map(|width| width.div_ceil(columns).max(1))
            .sum();
        let _ = write!(stderr(), "\r\x1b[{rows}A\x1b[J");
        self.drawn.widths.clear();
    }

    /// Draws over what is there: nothing is wiped before, so that nothing flickers.
    fn draw(&mut self) {
        let now = Instant::now();
        if self.drawn.at.is_some_and(|at| now < at + DRAW) {
            return;
        }
        self.drawn.at = Some(now);
        let (columns, rows) = window_size().map_or((80, 24), |size| {
            (usize::from(size.columns), usize::from(size.rows))
        });
        let lines = self.frame(columns, rows, now);
        let mut out = String::new();
        let before: usize = self
            .drawn
            .widths
            .iter()
            .map(|width| width.div_ceil(columns.max(1)).max(1))
            .sum();
        if before > 0 {
            out.push_str(&format!("\r\x1b[{before}A"));
        }
        for line in &lines {
            out.push_str(line);
            out.push_str("\x1b[K\n");
        }
        out.push_str("\x1b[J");
        self.drawn.widths = lines.iter().map(|line| line.chars().count()).collect();
        let mut screen = stderr().lock();
        let _ = screen
            .write_all(out.as_bytes())
            .and_then(|()| screen.flush());
    }

    /// The table: at most so many characters wide and one row less than that high.
    fn frame(&self, columns: usize, rows: usize, now: Instant) -> Vec<String> {
        let counts = self.counts();
        let done = counts.over();
        let filled = (done * BAR).checked_div(counts.tasks).unwrap_or(BAR);
        let bar: String = (0..BAR)
            .map(|at| if at < filled { '█' } else { '░' })
            .collect();
        let spent = self.spent(&counts);
        let elapsed = now.saturating_duration_since(self.began);
        let head = format!(
            "{} {bar} {done}/{} · {}{spent}",
            clean(&self.name),
            counts.tasks,
            Seconds(elapsed.as_secs() * 1000),
        );
        let mut lines = vec![head, format!("  {}", counts.words())];
        // One row is left for the cursor.
        let room = rows.saturating_sub(1).max(lines.len());
        let mut left = room - lines.len();
        let all = self.running.len();
        let shown = if all <= left {
            all
        } else {
            left.saturating_sub(1)
        };
        for ((number, attempt), row) in self.running.iter().take(shown) {
            lines.push(self.row(*number, *attempt, row, now, columns));
        }
        left -= shown;
        if shown < all && left > 0 {
            left -= 1;
            lines.push(format!("  … and {} more under way", all - shown));
        }
        for task in self.recent.iter().take(left) {
            lines.push(format!("  {}", ended(task, columns)));
        }
        // A line of full width would wrap in some terminals.
        let width = columns.saturating_sub(1);
        lines.iter().map(|line| narrow(line, width)).collect()
    }

    /// A task that may not be known.
    fn called(&self, number: u32, id: &str, columns: usize) -> String {
        match self.tasks.get(&number) {
            Some(task) => called(task, columns),
            None => format!("{number:04}-{}", clean(id)),
        }
    }

    fn row(&self, number: u32, attempt: u32, row: &Row, now: Instant, columns: usize) -> String {
        let which = match row.of {
            1 => String::new(),
            of => format!(" ({attempt} of {of})"),
        };
        let time = Seconds(now.saturating_duration_since(row.since).as_secs() * 1000);
        format!(
            "▶ {}{which}  {time}  {}",
            self.called(number, "", columns),
            clean(&row.step).replace('\n', " ")
        )
    }

    fn spent(&self, counts: &Counts) -> String {
        match counts.spent {
            spent if spent.is_nothing() => String::new(),
            spent => format!(" · {}", cost(spent)),
        }
    }
}

/// One row of at most so many columns. Characters that may take two columns count as two.
fn narrow(line: &str, width: usize) -> String {
    let columns = |c: char| {
        if u32::from(c) < 0x1100 || "█░▶…−·".contains(c) {
            1
        } else {
            2
        }
    };
    let line = line.replace('\n', " ");
    if line.chars().map(columns).sum::<usize>() <= width {
        return line;
    }
    let mut taken = 1;
    let fits = |c: &char| {
        taken += columns(*c);
        taken <= width
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

/// What agents say that they used.
pub fn cost(spent: Spent) -> String {
    match (spent.tokens, spent.cost_micros) {
        (0, micros) => in_dollars(micros),
        (tokens, 0) => format!("{tokens} tokens"),
        (tokens, micros) => format!("{tokens} tokens, {}", in_dollars(micros)),
    }
}

/// Columns of a line where nobody says how many there are.
const LINE: usize = 160;

/// Number and id of a task, and its first file: by that a person knows it.
fn called(task: &TaskRecord, columns: usize) -> String {
    // The rest of a row needs some fifty.
    let room = columns.saturating_sub(50).clamp(12, 60);
    format!(
        "{:04}-{} ({}{})",
        task.number,
        clean(&task.task),
        shorten_middle(&task.first.to_text(), room),
        task.more_files()
    )
}

/// A task that is over, in one line, for a screen of so many columns.
pub fn ended(task: &TaskRecord, columns: usize) -> String {
    let figures = &task.figures;
    let mut line = format!("{} {}", called(task, columns), task.verdict());
    if task.state == TaskState::Running && figures.duration_ms > 0 {
        line.push_str(&format!(" {} so far", Seconds(figures.duration_ms)));
    }
    if figures.best_of > 0 {
        line.push_str(&format!(" (best of {} attempts)", figures.best_of));
    }
    if task.run.is_some() {
        line.push_str(&format!(
            " {} +{} −{}",
            Seconds(figures.duration_ms),
            figures.insertions,
            figures.deletions
        ));
    }
    if figures.checks > 0 {
        line.push_str(&format!(
            " checks {}/{}",
            figures.checks_held, figures.checks
        ));
    }
    if !figures.spent.is_nothing() {
        line.push_str(&format!(" {}", cost(figures.spent)));
    }
    if let Some(strayed) = figures.strayed() {
        line.push_str(&format!(", {strayed}"));
    }
    if let Some(why) = task
        .why
        .as_ref()
        .filter(|_| task.state != TaskState::Passed)
    {
        line.push_str(&format!(": {}", shorten(why, 300)));
    }
    line
}

#[cfg(test)]
mod tests {
    use ringfence_model::campaign::Figures;
    use ringfence_model::split::When;

    use super::*;

    fn task(number: u32, state: TaskState, why: &str) -> TaskRecord {
        TaskRecord {
            task: format!("{number:016x}"),
            number,
            when: When::Between,
            state,
            turn: 1,
            tries: 0,
            run: None,
            why: Some(why.to_owned()),
            files: 10,
            first: format!("src/{}/{number}.txt", "long\x1b[2J/".repeat(9))
                .as_str()
                .into(),
            figures: Figures::default(),
            seen: String::new(),
        }
    }

    fn board(tasks: u32, running: u32) -> Board {
        let board = Board::new(true);
        let all: Vec<_> = (1..=tasks)
            .map(|number| task(number, TaskState::Waiting, ""))
            .collect();
        let mut state = board.state.lock().unwrap();
        state.take(&Told::Begun {
            campaign: "c",
            tasks: &all,
            parallel: 8,
        });
        for number in 1..=running {
            state.take(&Told::Task {
                task: "x",
                number,
                attempt: 1,
                of: 1,
            });
        }
        drop(state);
        board
    }

    #[test]
    fn a_table_fits_whatever_the_terminal() {
        for (tasks, running, columns, rows) in [
            (200, 8, 80, 24),
            (200, 200, 80, 24),
            (1, 1, 80, 24),
            (200, 100, 20, 5),
            (200, 100, 1, 1),
            (0, 0, 0, 0),
            (10_000, 1000, 300, 100),
        ] {
            let board = board(tasks, running);
            let mut state = board.state.lock().unwrap();
            for number in 1..=running / 2 {
                let over = task(number, TaskState::Failed, &"why ".repeat(100));
                state.take(&Told::Over { task: &over });
            }
            let lines = state.frame(columns, rows, Instant::now());
            assert!(lines.len() <= rows.saturating_sub(1).max(2), "{lines:?}");
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns.max(2)), "{columns}: {lines:?}");
        }
    }

    #[test]
    fn counts_running_and_what_ended_are_shown() {
        let board = board(200, 9);
        let mut state = board.state.lock().unwrap();
        let failed = task(1, TaskState::Failed, "the agent exited with 3");
        state.take(&Told::Over { task: &failed });
        state.take(&Told::Step {
            task: "x",
            number: 2,
            attempt: 1,
            step: "agent",
        });
        let text = state.frame(140, 24, Instant::now()).join("\n");
        for part in [
            "1/200",
            "8 running",
            "1 failed",
            "191 waiting",
            "▶ 0002-0000000000000002 (\"src/long\\033[2J/",
            "/2.txt\" +9)",
            "agent",
            "0001-0000000000000001 (\"src/",
            "/1.txt\" +9) failed: the agent exited with 3",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn nothing_of_others_reaches_the_terminal_raw() {
        let board = board(2, 2);
        let mut state = board.state.lock().unwrap();
        let over = task(1, TaskState::Failed, "\x1b[2J\r\u{202e}漢字");
        state.take(&Told::Over { task: &over });
        state.take(&Told::Step {
            task: "x",
            number: 2,
            attempt: 1,
            step: "check base: \x1b]0;x\x07\nnext",
        });
        for line in state.frame(40, 24, Instant::now()) {
            assert!(
                !line.contains(['\x1b', '\r', '\n', '\x07', '\u{202e}']),
                "{line:?}"
            );
        }
    }
}
