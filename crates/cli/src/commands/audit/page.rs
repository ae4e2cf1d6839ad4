//! A story on a page: rows of a table, or the lines of a tree.

use ringfence_engine::audit::{Branch, Filter, Story, Twig};
use ringfence_model::journal::{Event, Line};

use super::words;
use crate::text::{argument, clean, shorten};

/// BOUND: levels that are drawn; what is deeper says how deep it is.
const DRAWN_LEVELS: usize = 24;
/// BOUND: of whoever started a program, so much is shown.
const BY_COLUMNS: usize = 16;

/// What is told, and how wide.
#[derive(Debug)]
pub struct Page<'a> {
    pub story: &'a Story,
    pub width: usize,
}

impl Page<'_> {
    pub fn header(&self, filter: &Filter) -> String {
        let (ended, what) = if filter.writes {
            ("DID", "PATH")
        } else {
            ("ENDED", "PROGRAM")
        };
        let header = columns(["TIME", "EXEC", ended, "TOOK", "BY"], what);
        shorten(&header, self.width)
    }

    /// One event in one row; nothing for what is told elsewhere, or not in this table.
    pub fn row(&self, line: &Line, filter: &Filter) -> Option<String> {
        let time = self.time(line.time_us);
        let row = match &line.event {
            Event::Exec(exec) => {
                let ran = self.story.exec(exec.exec)?;
                let (ending, took) = self.story.ending(ran);
                columns(
                    [
                        &time,
                        &exec.exec.to_string(),
                        &words::ending(ending),
                        &words::took(took),
                        &self.by(self.story.starter(exec).map(|before| before.exec.exec)),
                    ],
                    &words::ran(exec),
                )
            }
            Event::ExecFailed(failed) => columns(
                [
                    &time,
                    &format!("pid {}", failed.pid),
                    &words::errno(failed.errno),
                    "",
                    &self.by(failed.by),
                ],
                &words::tried(failed),
            ),
            Event::Denial(refused) => columns(
                [&time, &format!("pid {}", refused.pid), "denied", "", ""],
                &clean(&format!("{}: {}", refused.operation, refused.reason)),
            ),
            // Many, and told where they are asked for.
            Event::Write(_) if !filter.writes => return None,
            Event::Write(write) => {
                let (did, other) = words::wrote(&write.what);
                let exec = write
                    .exec
                    .map_or_else(|| format!("pid {}", write.pid), |exec| exec.to_string());
                let path = argument(&write.path) + &other;
                columns([&time, &exec, did, "", &self.by_name(write.exec)], &path)
            }
            event if self.story.is_told_elsewhere(event) => return None,
            event => format!("{time:>9}  -- {}", words::sentence(event)?),
        };
        Some(shorten(&row, self.width))
    }

    /// One line of the tree.
    pub fn branch(&self, branch: &Branch<'_, '_>) -> String {
        let text = match branch.twig {
            Twig::Ran(ran) => {
                let (ending, took) = self.story.ending(ran);
                let took = match took {
                    None => String::new(),
                    us => format!(", {}", words::took(us)),
                };
                let exec = &ran.exec;
                let ending = words::ending(ending);
                format!("{} ({ending}{took}) {}", exec.exec, words::ran(exec))
            }
            Twig::Failed(failed) => {
                format!("! {}: {}", words::errno(failed.errno), words::tried(failed))
            }
            Twig::Refused(refused) => clean(&format!(
                "! denied: {}: {}",
                refused.operation, refused.reason
            )),
            Twig::Wrote(write) => {
                let (did, other) = words::wrote(&write.what);
                format!("~ {did} {}{other}", argument(&write.path))
            }
        };
        shorten(&(rails(branch) + &text), self.width)
    }

    /// Seconds since the journal began.
    fn time(&self, us: i64) -> String {
        let since = us.saturating_sub(self.story.began_us());
        format!("{:.3}", since as f64 / 1e6)
    }

    /// The number and the program of whoever started something.
    fn by(&self, exec: Option<u64>) -> String {
        match exec {
            None => "command".to_owned(),
            Some(number) => format!("{number} {}", self.by_name(exec)),
        }
    }

    fn by_name(&self, exec: Option<u64>) -> String {
        let ran = exec.and_then(|exec| self.story.exec(exec));
        ran.map_or_else(|| "?".to_owned(), |ran| words::name(&ran.exec.exe))
    }
}

fn columns([time, exec, ended, took, by]: [&str; 5], what: &str) -> String {
    let by = shorten(by, BY_COLUMNS);
    format!("{time:>9}  {exec:<9}  {ended:<13}  {took:>9}  {by:<BY_COLUMNS$}  {what}")
}

/// The lines that lead to a line.
fn rails(branch: &Branch<'_, '_>) -> String {
    let [_, above @ .., more] = branch.rails else {
        return String::new();
    };
    if above.len() >= DRAWN_LEVELS {
        return format!("[{} levels down] ", above.len() + 1);
    }
    let mut drawn = String::new();
    for &more in above {
        drawn.push_str(if more { "│  " } else { "   " });
    }
    let is_same_process = matches!(branch.twig, Twig::Ran(ran) if ran.exec.replaces.is_some());
    drawn.push_str(match (more, is_same_process) {
        (true, false) => "├─ ",
        (false, false) => "└─ ",
        (true, true) => "├⇒ ",
        (false, true) => "└⇒ ",
    });
    drawn
}
