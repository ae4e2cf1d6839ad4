//! The caller's terminal while a command runs: output passed on, input and signals taken, and a
//! spinner while there is nothing else to see.

use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use ringfence_engine::attend::Console;
use ringfence_engine::client::Stream;
use ringfence_engine::environment::WAITS;
use ringfence_jail::terminal::{self, RawMode};
use ringfence_model::check::{Ran, Tree};
use ringfence_model::wire::WindowSize;

use crate::text::clean;

/// Where output of the command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Each stream to its own.
    Through,
    /// Both to standard error: standard output is for the result.
    ToStderr,
}

/// The console of one run.
#[derive(Debug)]
pub struct Live<'a> {
    began: Instant,
    /// The status line is on the screen and must be wiped before anything else is written.
    spinning: bool,
    spins: bool,
    /// What was said of a setup, where nothing spins.
    said: String,
    writer: Option<Writer>,
    /// The caller's terminal is the command's, for as long as that runs.
    raw: Option<RawMode<'a>>,
}

/// Writes in a thread of its own: a reader that does not read holds up nothing but its output.
#[derive(Debug)]
struct Writer {
    queue: SyncSender<(Stream, Vec<u8>)>,
    waiting: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// BOUND: chunks of at most 64 KiB each that wait for the reader.
const QUEUED: usize = 64;

impl Writer {
    fn start(passing: Passing) -> Self {
        let (queue, chunks) = sync_channel::<(Stream, Vec<u8>)>(QUEUED);
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let thread = std::thread::spawn(move || {
            for (stream, bytes) in chunks {
                // A reader that went away does not stop the run; all output is in the log.
                let _ = match (stream, passing) {
                    (Stream::Stdout, Passing::Through) => {
                        let mut out = std::io::stdout().lock();
                        out.write_all(&bytes).and_then(|()| out.flush())
                    }
                    _ => std::io::stderr().write_all(&bytes),
                };
                written.fetch_sub(1, Ordering::AcqRel);
            }
        });
        Self {
            queue,
            waiting,
            thread,
        }
    }
}

impl<'a> Live<'a> {
    pub fn new(passing: Passing, has_terminal: bool) -> Self {
        Self {
            began: Instant::now(),
            spinning: false,
            said: String::new(),
            // With a terminal of its own the command owns the screen, and a program that reads the
            // result may have both streams on one.
            writer: Some(Writer::start(passing)),
            spins: !has_terminal && passing == Passing::Through && std::io::stderr().is_terminal(),
            raw: None,
        }
    }

    /// The caller's terminal is the command's until that is over.
    pub fn holding(self, raw: Option<RawMode<'a>>) -> Self {
        Self { raw, ..self }
    }

    /// Gives the terminal back to the caller.
    pub fn leave(&mut self) {
        if self.raw.take().is_some() {
            // What a full-screen program that was ended leaves: other screen, mouse, no cursor.
            let reset = "\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m";
            let mut out = std::io::stdout();
            let _ = out.write_all(reset.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// Waits until all output is written.
    pub fn finish(&mut self) {
        self.quiet();
        if let Some(writer) = self.writer.take() {
            drop(writer.queue);
            // It cannot fail; a reader that does not read is waited for, as by any program.
            let _ = writer.thread.join();
        }
    }

    /// Wipes the status line.
    pub fn quiet(&mut self) {
        if self.spinning {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
            self.spinning = false;
        }
    }
}

impl Console for Live<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        self.quiet();
        if let Some(writer) = &self.writer {
            writer.waiting.fetch_add(1, Ordering::AcqRel);
            // Full only where nobody asked whether there is room; the log has it.
            if writer.queue.try_send((stream, bytes.to_vec())).is_err() {
                writer.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn has_room(&self) -> bool {
        let waiting = |writer: &Writer| writer.waiting.load(Ordering::Acquire);
        self.writer
            .as_ref()
            .is_none_or(|writer| waiting(writer) < QUEUED)
    }

    fn size(&self) -> Option<WindowSize> {
        window_size()
    }

    fn step(&mut self, step: &str) {
        if step == "validate" {
            // The command is over: from here on, keys of the terminal are signals again.
            self.leave();
        }
        if self.spins {
            let seconds = self.began.elapsed().as_secs();
            let _ = write!(std::io::stderr(), "\r\x1b[2K⠿ {step} ({seconds} s)");
            self.spinning = true;
        } else if let Some(rest) = step.strip_prefix("setup") {
            // A setup takes minutes: that it runs, and whom it waits for, is said in any case.
            let said = if rest.contains(WAITS) { step } else { "setup" };
            if self.said != said && (self.said.is_empty() || said != "setup") {
                let _ = writeln!(std::io::stderr(), "{said} …");
                self.said = said.to_owned();
            }
        }
    }

    fn iteration(&mut self, number: u32, most: u32) {
        if most > 1 {
            self.quiet();
            let _ = writeln!(std::io::stderr(), "iteration {number} of {most}");
        }
    }

    fn check(&mut self, command: &str, tree: Tree, ran: Option<&Ran>) {
        if ran.is_none() && std::io::stderr().is_terminal() {
            self.quiet();
            let (command, tree) = (clean(command), tree.as_str());
            let _ = writeln!(std::io::stderr(), "checking the {tree} tree: {command}");
        }
    }

    fn note(&mut self, said: &str) {
        self.quiet();
        let _ = writeln!(std::io::stderr(), "note: {said}");
    }

    fn idle(&mut self) {
        const FRAMES: [char; 8] = ['⠇', '⠋', '⠙', '⠸', '⠴', '⠦', '⠧', '⠏'];
        if self.spins && self.spinning {
            let tenths = self.began.elapsed().as_millis() / 100;
            let frame = FRAMES[(tenths % 8) as usize];
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[2K{frame} agent ({}.{} s)",
                tenths / 10,
                tenths % 10
            );
        }
    }
}

/// The size of the caller's terminal.
pub fn window_size() -> Option<WindowSize> {
    terminal::size(std::io::stdin().as_fd())
        .or_else(|| terminal::size(std::io::stdout().as_fd()))
        .map(|(columns, rows)| WindowSize { columns, rows })
}
