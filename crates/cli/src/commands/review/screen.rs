//! The terminal while somebody reads: plain ANSI, the alternate screen, and afterwards everything
//! as it was, however it ends.

use std::io::{self, Write as _};

use ringfence_jail::signals::{Signal, Signals};
use ringfence_jail::terminal::RawMode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

use super::keys::{self, Key};
use super::page::{Page, Row, Style, plain};
use super::plain::paint;
use super::view::View;

/// Alternate screen, no cursor, no wrapping by the terminal: rows are as wide as we say.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

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
            signals: Signals::hold_with_screen()?,
            colour,
            input: Vec::new(),
        };
        screen.enter()?;
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
        // Rows are made first: that may take its time, and somebody may type meanwhile.
        view.resize();
        view.screen(self.colour);
        if self.drop_typed()? == Typed::Interrupt {
            return Ok(Wish::Interrupted);
        }
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
                    self.overlay(&mut view, &lines)?;
                }
                Key::Char('?' | 'h') => {
                    let lines: Vec<String> = HELP.iter().map(|line| (*line).to_owned()).collect();
                    self.overlay(&mut view, &lines)?;
                }
                key => view.step(key),
            }
        }
    }

    fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        self.signals.suspend()?;
        // Here again when somebody wants it.
        self.enter()
    }

    /// Here again, and nobody has asked whether we are ready: a shell had the terminal meanwhile.
    fn regain(&mut self) -> io::Result<()> {
        match &self.raw {
            Some(raw) => raw.again()?,
            None => return Ok(()),
        }
        write(ENTER)
    }

    /// What was typed before a run is to be seen is no answer to it: neither a key that was held
    /// down nor the second of two.
    fn drop_typed(&mut self) -> io::Result<Typed> {
        let mut typed = std::mem::take(&mut self.input);
        let mut chunk = [0; 4096];
        // BOUND: what a terminal keeps for a reader, and then some.
        while typed.len() < 64 << 10 {
            let terminal = stdin();
            let mut ready = [PollFd::new(&terminal, PollFlags::IN)];
            let at_once = rustix::event::Timespec::default();
            match poll(&mut ready, Some(&at_once)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match rustix::io::read(stdin(), &mut chunk) {
                Ok(count @ 1..) => typed.extend_from_slice(&chunk[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // The end of it is told where a key is waited for.
                _ => break,
            }
        }
        tcflush(stdin(), QueueSelector::IFlush)?;
        Ok(if typed.contains(&0x03) {
            Typed::Interrupt
        } else {
            Typed::Nothing
        })
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
    fn overlay(&mut self, view: &mut View<'_>, lines: &[String]) -> anyhow::Result<()> {
        loop {
            view.resize();
            let mut rows: Vec<String> = Vec::new();
            for line in lines {
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
                Some(Signal::SUSPEND) => {
                    self.suspend()?;
                    return Ok(Input::Resized);
                }
                Some(Signal::CONTINUE) => {
                    self.regain()?;
                    return Ok(Input::Resized);
                }
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

/// What was typed that counts, whenever it was typed.
#[derive(PartialEq, Eq)]
enum Typed {
    Nothing,
    Interrupt,
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

pub fn cells(text: &str) -> Vec<super::glyphs::Cell> {
    super::glyphs::cells(text.as_bytes())
}
