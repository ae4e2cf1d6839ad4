//! A story on a page: rows of a table, or the lines of a tree.

use ringfence_engine::audit::{Branch, Filter, Story, Twig};
use ringfence_model::journal::{Event, Line};

use super::words;
use crate::text::{argument, clean, shorten};

/// BOUND: levels that are drawn; what is deeper says how deep it is.
const DRAWN_LEVELS: usize = 24;
/// BOUND: of whoever started a program, so much is shown.
const BY_COLUMNS: usize = 16;

/// BOUND: of a narrower page the program would have too little, and one column goes.
const NARROW: usize = 110;

/// What is told, and how wide.
#[derive(Debug)]
pub struct Page<'a> {
    pub story: &'a Story,
    pub width: usize,
}

impl Page<'_> {
    pub fn header(&self, filter: &Filter) -> String {
        if filter.network {
            return shorten(
                &format!("{:>9}  ASKED, AND WHAT CAME OF IT", "TIME"),
                self.width,
            );
        }
        let (ended, took, what) = if filter.writes {
            ("DID", "", "PATH")
        } else {
            ("ENDED", "TOOK", "PROGRAM")
        };
        let header = self.columns(["TIME", "EXEC", ended, took, "BY"], what, filter);
        shorten(&header, self.width)
    }

    /// One event in one row; nothing for what is told elsewhere, or not in this table.
    pub fn row(&self, line: &Line, filter: &Filter) -> Option<String> {
        let time = self.time(line.time_us);
        let row = match &line.event {
            Event::Exec(exec) => {
                let ran = self.story.exec(exec.exec)?;
                let (ending, took) = self.story.ending(ran);
                self.columns(
                    [
                        &time,
                        &exec.exec.to_string(),
                        &words::ending(ending),
                        &words::took(took),
                        &self.by(self.story.starter(exec).map(|before| before.exec.exec)),
                    ],
                    &words::ran(exec),
                    filter,
                )
            }
            Event::ExecFailed(failed) => self.columns(
                [
                    &time,
                    &format!("pid {}", failed.pid),
                    &words::errno(failed.errno),
                    "",
                    &self.by(failed.by),
                ],
                &words::tried(failed),
                filter,
            ),
            Event::Denial(refused) => self.columns(
                [&time, &format!("pid {}", refused.pid), "denied", "", ""],
                &clean(&format!("{}: {}", refused.operation, refused.reason)),
                filter,
            ),
            // Many, and told where they are asked for.
            Event::Write(_) if !filter.writes => return None,
            Event::Write(write) => {
                let (did, other) = words::wrote(&write.what);
                let exec = write
                    .exec
                    .map_or_else(|| format!("pid {}", write.pid), |exec| exec.to_string());
                let path = argument(&write.path) + &other;
                let by = self.by_name(write.exec);
                self.columns([&time, &exec, did, "", &by], &path, filter)
            }
            Event::Network(traffic) if filter.network => {
                format!("{time:>9}  {}", words::network(traffic))
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

    /// On a narrow page who started a program is left to the tree, which shows it better; of a write
    /// nobody asks how long it took.
    fn columns(
        &self,
        [time, exec, ended, took, by]: [&str; 5],
        what: &str,
        filter: &Filter,
    ) -> String {
        let by = shorten(by, BY_COLUMNS);
        let began = format!("{time:>9}  {exec:<9}  {ended:<13}");
        match (self.width < NARROW, filter.writes) {
            (false, _) => format!("{began}  {took:>9}  {by:<BY_COLUMNS$}  {what}"),
            (true, false) => format!("{began}  {took:>9}  {what}"),
            (true, true) => format!("{began}  {by:<BY_COLUMNS$}  {what}"),
        }
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

#[cfg(test)]
mod tests {
    use ringfence_engine::audit::{Life, Tree};
    use ringfence_model::ByteText;
    use ringfence_model::limits::Limit;
    use ringfence_model::observed::{Cut, Exec, ExecFailed, Exit, Refused, Write, Wrote};
    use ringfence_model::text::misleads;

    use super::*;

    fn exec(number: u64, argv: Vec<ByteText>) -> Exec {
        Exec {
            exec: number,
            pid: 7,
            started: 1,
            parent: number.checked_sub(1),
            parent_pid: 1,
            replaces: None,
            program: 1,
            exe: "/usr/bin/dash".into(),
            asked: None,
            argv,
            argv_cut: None,
            cwd: "/".into(),
            verified: true,
        }
    }

    fn story(events: Vec<Event>) -> Story {
        let line = |(number, event)| Line {
            sequence: number as u64,
            time_us: 5_000_000 + number as i64 * 2000,
            previous: String::new(),
            event,
        };
        let lines = events.into_iter().enumerate().map(line).collect();
        Story::of(lines, Life::Over)
    }

    fn table(page: &Page<'_>, filter: &Filter) -> Vec<String> {
        let lines = page.story.lines.iter();
        lines.filter_map(|line| page.row(line, filter)).collect()
    }

    fn tree(page: &Page<'_>, filter: &Filter) -> Vec<String> {
        let mut drawn = Vec::new();
        let walked: Result<(), ()> = Tree::of(page.story, filter).walk(|branch| {
            drawn.push(page.branch(branch));
            Ok(())
        });
        walked.unwrap();
        drawn
    }

    /// The usual, in the order in which it happens.
    fn usual() -> Story {
        let words = |words: &[&str]| words.iter().map(|word| (*word).into()).collect();
        story(vec![
            Event::Command {
                argv: words(&["sh", "-c", "make; git"]),
            },
            Event::Exec(exec(1, words(&["sh", "-c", "make; git"]))),
            Event::Exec(Exec {
                exe: "/workspace/make".into(),
                ..exec(2, words(&["make", "test"]))
            }),
            Event::ExecFailed(ExecFailed {
                by: Some(2),
                pid: 9,
                asked: "/opt/cc".into(),
                argv: words(&["cc", "-c", "it's"]),
                argv_cut: None,
                cwd: "/".into(),
                errno: 2,
            }),
            Event::Exit(Exit {
                exec: 2,
                code: None,
                signal: Some(11),
                duration_us: 1_234_567,
                cpu_us: None,
            }),
            Event::Exec(Exec {
                replaces: Some(1),
                verified: false,
                argv_cut: Some(Cut {
                    bytes: 2 << 20,
                    sha256: String::new(),
                }),
                exe: "/memfd:x (deleted)".into(),
                ..exec(3, words(&["git", "status"]))
            }),
            Event::Write(Write {
                exec: Some(3),
                pid: 7,
                path: "b c".into(),
                what: Wrote::Renamed { from: "a".into() },
            }),
            Event::Denial(Refused {
                pid: 7,
                operation: "execveat".to_owned(),
                reason: "cannot be observed".to_owned(),
            }),
            Event::Limit {
                limit: Limit::OpenFiles,
                detail: "8192".to_owned(),
            },
        ])
    }

    #[test]
    fn a_table_says_who_did_what_and_how_it_ended() {
        let story = usual();
        let page = Page {
            story: &story,
            width: 200,
        };
        assert_eq!(
            table(&page, &Filter::default()),
            [
                "    0.000  -- command: sh -c 'make; git'",
                "    0.002  1          became 3            8 ms  command           [dash] sh -c 'make; git'",
                "    0.004  2          SIGSEGV            1.2 s  1 dash            [/workspace/make] make test",
                "    0.006  pid 9      not found                 2 make            /opt/cc -c $'it\\'s'",
                "    0.010  3          no end seen               1 dash            (as asked, not verified) ['/memfd:x (deleted)'] (2.0 MiB of arguments) git status",
                "    0.014  pid 7      denied                                      execveat: cannot be observed",
                "    0.016  -- limit of open files met: 8192",
            ]
        );
        let mut writes = Filter::matching("").unwrap();
        writes.writes = true;
        let rows: Vec<String> = story
            .lines
            .iter()
            .filter(|line| writes.wants(&story, &line.event))
            .filter_map(|line| page.row(line, &writes))
            .collect();
        assert_eq!(
            rows,
            ["    0.012  3          renamed                   'memfd:x (delet…  'b c' (was a)"]
        );
    }

    /// What is asked for most, the program or the path, has at least 25 columns of 80.
    #[test]
    fn a_narrow_page_leaves_room_for_the_program() {
        let story = usual();
        let page = Page {
            story: &story,
            width: 80,
        };
        let mut filter = Filter::default();
        assert_eq!(
            page.header(&filter),
            "     TIME  EXEC       ENDED               TOOK  PROGRAM"
        );
        assert_eq!(
            table(&page, &filter)[1..3],
            [
                "    0.002  1          became 3            8 ms  [dash] sh -c 'make; git'",
                "    0.004  2          SIGSEGV            1.2 s  [/workspace/make] make test",
            ]
        );
        filter.writes = true;
        let rows = table(&page, &filter);
        let wrote = "    0.012  3          renamed        'memfd:x (delet…  'b c' (was a)";
        assert!(rows.iter().any(|row| row == wrote), "{rows:?}");
    }

    #[test]
    fn a_tree_shows_who_started_whom() {
        let story = usual();
        let page = Page {
            story: &story,
            width: 200,
        };
        assert_eq!(
            tree(&page, &Filter::default()),
            [
                "1 (became 3, 8 ms) [dash] sh -c 'make; git'",
                "├─ 2 (SIGSEGV, 1.2 s) [/workspace/make] make test",
                "│  └─ ! not found: /opt/cc -c $'it\\'s'",
                "└⇒ 3 (no end seen) (as asked, not verified) ['/memfd:x (deleted)'] (2.0 MiB of arguments) git status",
                "   └─ ! denied: execveat: cannot be observed",
            ]
        );
    }

    /// HOSTILE: bytes that an agent may choose for an argument, a path or a name.
    fn hostile() -> Vec<ByteText> {
        let mut words: Vec<ByteText> = [
            &b"\x1b[2J\x1b]0;title\x07"[..],
            b"a\nb\r\nc",
            "\u{202e}gnp.exe\u{2066}".as_bytes(),
            "\u{2028}\u{2029}\u{85}\u{9b}31m".as_bytes(),
            b"\xff\xfe\xed\xa0\x80",
            b"",
            "\u{200b}\u{feff}\u{e0041}".as_bytes(),
        ]
        .map(ByteText::from)
        .to_vec();
        words.push(ByteText(b"\x1b\n x'\\".repeat(17_000)));
        words
    }

    #[test]
    fn nothing_an_agent_chose_breaks_a_line_or_moves_the_cursor() {
        let mut events = Vec::new();
        for (number, word) in (1..).zip(hostile()) {
            let text = String::from_utf8_lossy(word.as_bytes()).into_owned();
            let mut list = vec![word.clone()];
            list.extend(hostile());
            events.extend([
                Event::Task {
                    run: text.clone(),
                    argv: list.clone(),
                    folder: word.clone(),
                    version: text.clone(),
                },
                Event::Command { argv: list.clone() },
                Event::Exec(Exec {
                    exe: word.clone(),
                    asked: Some(word.clone()),
                    ..exec(number, list.clone())
                }),
                Event::ExecFailed(ExecFailed {
                    by: Some(number),
                    pid: 1,
                    asked: word.clone(),
                    argv: list.clone(),
                    argv_cut: None,
                    cwd: word.clone(),
                    errno: 99,
                }),
                Event::Write(Write {
                    exec: Some(number),
                    pid: 1,
                    path: word.clone(),
                    what: Wrote::Linked { to: word.clone() },
                }),
                Event::Denial(Refused {
                    pid: 1,
                    operation: text.clone(),
                    reason: text.clone(),
                }),
                Event::Limit {
                    limit: Limit::Disk,
                    detail: text,
                },
            ]);
        }
        let story = story(events);
        let mut writes = Filter::matching("").unwrap();
        writes.writes = true;
        for width in [1, 20, 80, 4096] {
            let page = Page {
                story: &story,
                width,
            };
            let mut rows = table(&page, &Filter::default());
            rows.extend(table(&page, &writes));
            rows.extend(tree(&page, &Filter::default()));
            rows.extend(tree(&page, &writes));
            assert!(rows.len() > 80);
            for row in rows {
                assert!(!row.chars().any(misleads), "{row:?}");
                assert!(row.chars().count() <= width, "{width}: {row:?}");
            }
        }
    }

    #[test]
    fn a_deep_tree_is_not_drawn_off_the_page() {
        let deep = 2000;
        let events = (1..=deep).map(|number| Event::Exec(exec(number, vec!["dash".into()])));
        let story = story(events.collect());
        let page = Page {
            story: &story,
            width: 120,
        };
        let drawn = tree(&page, &Filter::default());
        assert_eq!(drawn.len(), deep as usize);
        assert!(
            drawn[24].ends_with("└─ 25 (no end seen) dash"),
            "{}",
            drawn[24]
        );
        assert_eq!(drawn[25], "[25 levels down] 26 (no end seen) dash");
    }
}
