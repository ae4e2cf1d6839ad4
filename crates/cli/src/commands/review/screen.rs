//! The terminal while somebody reads: plain ANSI, the alternate screen, and afterwards everything
//! as it was, however it ends.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::rc::Rc;

use ringfence_jail::signals::{Signal, Signals};
use ringfence_jail::terminal::RawMode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{getpid, kill_process};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

use super::keys::{self, Key};
use super::page::{Block, Page, Row, Style, plain};
use super::plain::paint;
use crate::console::window_size;

/// Alternate screen, no cursor, no wrapping by the terminal: rows are as wide as we say.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// BOUND: blocks whose rows are kept.
const KEPT: usize = 32;

const HELP: &[&str] = &[
    "a        approve                 r        reject (asks why)",
    "s        skip, next run          q        quit, nothing more is decided",
    "n  p     next, previous hunk     N  P     next, previous file",
    "u  U     unfold this, all        b        who made this hunk",
    "f        flags                   /        search (Enter alone: again)",
    "j  k     a line down, up         space    a page down (Ctrl-B: up)",
    "g  G     beginning, end          Ctrl-Z   suspend",
    "",
    "What is reversed stands for something that cannot be shown as it is: escapes, tabs, blanks at",
    "the end of a line, invisible and combining characters, bytes that are no text.",
];

/// What the reader wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    Approve {
        shown: Option<String>,
    },
    Reject {
        why: String,
        shown: Option<String>,
    },
    Skip,
    Quit,
    /// By Ctrl-C, a signal, or a terminal that went away.
    Interrupted,
}

/// The terminal, taken.
pub struct Screen {
    raw: Option<RawMode<'static>>,
    signals: Signals,
    colour: bool,
    input: Vec<u8>,
}

impl Screen {
    pub fn open(colour: bool) -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let usual = std::panic::take_hook();
        // A panic may end the process at once, and nothing is dropped then.
        std::panic::set_hook(Box::new(move |panic| {
            let _ = io::stdout().write_all(LEAVE.as_bytes());
            let _ = io::stdout().flush();
            let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
            usual(panic);
        }));
        let mut screen = Self {
            raw: None,
            signals: Signals::hold()?,
            colour,
            input: Vec::new(),
        };
        screen.enter()?;
        // What was typed before anything is to be seen is no answer to it.
        tcflush(stdin(), QueueSelector::IFlush)?;
        Ok(screen)
    }

    fn enter(&mut self) -> io::Result<()> {
        self.raw = Some(RawMode::enter(stdin())?);
        write(ENTER)
    }

    fn leave(&mut self) {
        if self.raw.take().is_some() {
            // A terminal that went away needs no mode.
            let _ = write(LEAVE);
        }
    }

    /// Lets somebody read a run and decide.
    pub fn read(&mut self, page: Page<'_>, title: &str, doubts: &[String]) -> anyhow::Result<Wish> {
        let mut view = View::new(page, title);
        loop {
            view.resize();
            self.draw(&view.screen(self.colour))?;
            let key = match self.key()? {
                Input::Key(key) => key,
                Input::Resized => continue,
                Input::Gone => return Ok(Wish::Interrupted),
            };
            view.message.clear();
            match key {
                Key::Interrupt => return Ok(Wish::Interrupted),
                Key::Suspend => self.suspend()?,
                Key::Char('q') => return Ok(Wish::Quit),
                Key::Char('s') => return Ok(Wish::Skip),
                Key::Char('a') => {
                    let mut doubts = doubts.to_vec();
                    doubts.extend(view.folded());
                    if doubts.is_empty() {
                        return Ok(Wish::Approve { shown: None });
                    }
                    let question = format!("{}; approve all the same? [y/N] ", doubts.join("; "));
                    match self.ask(&mut view, &question)? {
                        Some(answer) if matches!(answer.trim(), "y" | "Y" | "yes") => {
                            let shown = view.folded();
                            return Ok(Wish::Approve { shown });
                        }
                        _ => view.message = "not approved".to_owned(),
                    }
                }
                Key::Char('r') => match self.ask(&mut view, "reject, because: ")? {
                    Some(why) if !why.trim().is_empty() => {
                        let shown = view.folded();
                        return Ok(Wish::Reject { why, shown });
                    }
                    _ => view.message = "not rejected: a rejection needs a reason".to_owned(),
                },
                Key::Char('/') => {
                    if let Some(text) = self.ask(&mut view, "/")? {
                        view.search(&text);
                    }
                }
                Key::Char('b') => {
                    let lines = view.page.writers(view.current());
                    self.overlay(&mut view, lines)?;
                }
                Key::Char('?' | 'h') => {
                    let lines = HELP.iter().map(|line| (*line).to_owned()).collect();
                    self.overlay(&mut view, lines)?;
                }
                key => view.step(key),
            }
        }
    }

    fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        kill_process(getpid(), rustix::process::Signal::TSTP)?;
        // Here again when somebody wants it.
        self.enter()
    }

    /// Asks for a line at the bottom of the screen; `None` where it is taken back.
    fn ask(&mut self, view: &mut View<'_>, question: &str) -> anyhow::Result<Option<String>> {
        let mut answer = String::new();
        let given = loop {
            view.message = format!("{question}{answer}_");
            view.resize();
            self.draw(&view.screen(self.colour))?;
            match self.key()? {
                Input::Resized => {}
                Input::Gone | Input::Key(Key::Interrupt | Key::Escape) => break None,
                Input::Key(Key::Enter) => break Some(answer),
                Input::Key(Key::Backspace) => {
                    answer.pop();
                }
                // BOUND: a reason has no more than this either.
                Input::Key(Key::Char(c)) if answer.chars().count() < 2000 => answer.push(c),
                Input::Key(_) => {}
            }
        };
        view.message.clear();
        Ok(given)
    }

    /// Shows some lines until a key is pressed.
    fn overlay(&mut self, view: &mut View<'_>, lines: Vec<String>) -> anyhow::Result<()> {
        loop {
            view.resize();
            let mut rows: Vec<String> = Vec::new();
            for line in &lines {
                let wrapped = plain(Style::Plain, line, view.columns);
                rows.extend(wrapped.iter().map(|row| paint(row, self.colour)));
            }
            rows.truncate(view.height);
            rows.resize(view.height, String::new());
            rows.push(paint(
                &Row::of(Style::Faint, cells("any key goes back")),
                self.colour,
            ));
            self.draw(&rows)?;
            match self.key()? {
                Input::Resized => {}
                Input::Gone | Input::Key(_) => return Ok(()),
            }
        }
    }

    fn draw(&mut self, rows: &[String]) -> io::Result<()> {
        let mut frame = String::from("\x1b[H");
        for (at, row) in rows.iter().enumerate() {
            if at > 0 {
                frame.push_str("\r\n");
            }
            // Before, not after: a full row leaves the cursor on its last cell.
            frame.push_str("\x1b[0m\x1b[2K");
            frame.push_str(row);
        }
        write(&frame)
    }

    /// Waits for a key, or for something else that matters.
    fn key(&mut self) -> io::Result<Input> {
        loop {
            if let Some(key) = keys::take(&mut self.input) {
                return Ok(Input::Key(key));
            }
            let terminal = stdin();
            let mut ready = [
                PollFd::new(&terminal, PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let typed = !ready[0].revents().is_empty();
            match self.signals.take() {
                Some(Signal::WINDOW) => return Ok(Input::Resized),
                Some(_) => return Ok(Input::Gone),
                None => {}
            }
            if typed {
                let mut chunk = [0; 256];
                match rustix::io::read(stdin(), &mut chunk) {
                    Ok(0) => return Ok(Input::Gone),
                    Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(_) => return Ok(Input::Gone),
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
        self.signals.release();
        let _ = std::panic::take_hook();
    }
}

enum Input {
    Key(Key),
    Resized,
    Gone,
}

fn write(text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(stdout(), rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn cells(text: &str) -> Vec<super::glyphs::Cell> {
    super::glyphs::cells(text.as_bytes())
}

/// What is on the screen: a place in the blocks of a page.
struct View<'p> {
    page: Page<'p>,
    title: String,
    /// The block at the top of the screen, and the row of it.
    block: usize,
    row: usize,
    columns: usize,
    /// Without the line of state.
    height: usize,
    message: String,
    sought: String,
    kept: HashMap<usize, Rc<Vec<Row>>>,
}

impl<'p> View<'p> {
    fn new(page: Page<'p>, title: &str) -> Self {
        Self {
            page,
            title: title.to_owned(),
            block: 0,
            row: 0,
            columns: 0,
            height: 0,
            message: String::new(),
            sought: String::new(),
            kept: HashMap::new(),
        }
    }

    fn resize(&mut self) {
        let (columns, rows) = window_size().map_or((80, 24), |size| {
            (usize::from(size.columns), usize::from(size.rows))
        });
        if columns != self.columns {
            self.kept.clear();
            self.columns = columns;
        }
        self.height = rows.saturating_sub(1).max(1);
        let last = self.rows(self.block).len().saturating_sub(1);
        self.row = self.row.min(last);
    }

    fn current(&self) -> Block {
        self.page.blocks[self.block]
    }

    fn folded(&self) -> Option<String> {
        let (folded, all) = (self.page.folded(), self.page.hunks());
        (folded > 0).then(|| format!("{folded} of {all} hunks were folded and not shown whole"))
    }

    fn rows(&mut self, block: usize) -> Rc<Vec<Row>> {
        if let Some(rows) = self.kept.get(&block) {
            return Rc::clone(rows);
        }
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        let rows = Rc::new(self.page.rows(self.page.blocks[block], self.columns));
        self.kept.insert(block, Rc::clone(&rows));
        rows
    }

    /// As many rows as asked for, from the top of the screen on.
    fn visible(&mut self, most: usize) -> Vec<Row> {
        let mut out = Vec::new();
        let mut skip = self.row;
        for block in self.block..self.page.blocks.len() {
            let rows = self.rows(block);
            out.extend(rows.iter().skip(skip).take(most - out.len()).cloned());
            skip = 0;
            if out.len() >= most {
                break;
            }
        }
        out
    }

    fn screen(&mut self, colour: bool) -> Vec<String> {
        let rows = self.visible(self.height);
        let mut out: Vec<String> = rows.iter().map(|row| paint(row, colour)).collect();
        out.resize(self.height, String::new());
        out.push(self.state(colour));
        out
    }

    /// The last line: a question or a message, else where this is and what can be done.
    fn state(&self, colour: bool) -> String {
        let (mut hunk, mut hunks) = (0, 0);
        for (at, block) in self.page.blocks.iter().enumerate() {
            if matches!(block, Block::Hunk(..)) {
                hunks += 1;
                hunk += usize::from(at <= self.block);
            }
        }
        let text = match self.message.is_empty() {
            false => self.message.clone(),
            true => {
                let name = self.page.name(self.current());
                let name = name.map(|name| format!(" │ {name}")).unwrap_or_default();
                format!(
                    "{}{name} │ hunk {hunk}/{hunks} │ a approve  r reject  s skip  n next  ? keys  q quit",
                    self.title
                )
            }
        };
        let cells = cells(&text);
        // Of a long question the end is what is being typed.
        let mut used = 0;
        let fits = cells.iter().rev().take_while(|cell| {
            used += cell.columns;
            used <= self.columns
        });
        let from = match self.message.is_empty() {
            true => 0,
            false => cells.len() - fits.count(),
        };
        let shown = super::glyphs::wrap(&cells[from..], self.columns)[0];
        match colour {
            true => format!("\x1b[1m{}", paint(&Row::of(Style::Plain, shown), colour)),
            false => paint(&Row::of(Style::Plain, shown), colour),
        }
    }

    fn step(&mut self, key: Key) {
        let page = self.height.saturating_sub(1).max(1);
        match key {
            Key::Down | Key::Enter | Key::Char('j') => self.down(1),
            Key::Up | Key::Char('k') => self.up(1),
            Key::PageDown | Key::Char(' ' | 'd') => self.down(page),
            Key::PageUp => self.up(page),
            Key::Home | Key::Char('g') => (self.block, self.row) = (0, 0),
            Key::End | Key::Char('G') => {
                self.block = self.page.blocks.len() - 1;
                self.row = 0;
                self.up(page);
            }
            Key::Char('n') => self.next("hunk", |block| matches!(block, Block::Hunk(..))),
            Key::Char('p') => self.previous("hunk", |block| matches!(block, Block::Hunk(..))),
            Key::Char('N') => self.next("file", |block| matches!(block, Block::File(_))),
            Key::Char('P') => self.previous("file", |block| matches!(block, Block::File(_))),
            Key::Char('u') => {
                self.page.unfold(self.current());
                self.kept.clear();
            }
            Key::Char('U') => {
                self.page.unfold_all();
                self.kept.clear();
            }
            Key::Char('f') => {
                let rows = self.rows(0);
                let titles = ["## Flags", "## Will run on your machine"];
                let is_flags = |row: &Row| titles.contains(&row.text().as_str());
                match rows.iter().position(is_flags) {
                    Some(row) => (self.block, self.row) = (0, row),
                    None => self.message = "no flags".to_owned(),
                }
            }
            _ => {}
        }
    }

    fn down(&mut self, by: usize) {
        for _ in 0..by {
            // The end stays at the bottom of the screen.
            if self.visible(self.height + 1).len() <= self.height {
                return;
            }
            self.row += 1;
            if self.row >= self.rows(self.block).len() {
                (self.block, self.row) = (self.block + 1, 0);
            }
        }
    }

    fn up(&mut self, by: usize) {
        for _ in 0..by {
            if self.row > 0 {
                self.row -= 1;
            } else if self.block > 0 {
                self.block -= 1;
                self.row = self.rows(self.block).len().saturating_sub(1);
            }
        }
    }

    fn next(&mut self, what: &str, wanted: impl Fn(&Block) -> bool) {
        let after = self.page.blocks.iter().skip(self.block + 1);
        match after.clone().position(wanted) {
            Some(at) => (self.block, self.row) = (self.block + 1 + at, 0),
            None => self.message = format!("no {what} after this"),
        }
    }

    fn previous(&mut self, what: &str, wanted: impl Fn(&Block) -> bool) {
        match self.page.blocks[..self.block].iter().rposition(wanted) {
            Some(at) => (self.block, self.row) = (at, 0),
            None => self.message = format!("no {what} before this"),
        }
    }

    /// Goes to the next row that has this; nothing typed: what was sought before.
    fn search(&mut self, text: &str) {
        if !text.is_empty() {
            text.clone_into(&mut self.sought);
        }
        let sought = self.sought.to_lowercase();
        if sought.is_empty() {
            return;
        }
        for block in self.block..self.page.blocks.len() {
            let from = match block == self.block {
                true => self.row + 1,
                false => 0,
            };
            let rows = self.rows(block);
            let has = |row: &Row| row.text().to_lowercase().contains(&sought);
            if let Some(at) = rows.iter().skip(from).position(has) {
                (self.block, self.row) = (block, from + at);
                return;
            }
        }
        self.message = "not found after this".to_owned();
    }
}
