//! The caller's terminal while a command runs: output passed on, input and signals taken, and a
//! spinner while there is nothing else to see.

use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::Instant;

use ringfence_engine::attend::Console;
use ringfence_engine::client::Stream;
use ringfence_jail::terminal;
use ringfence_model::wire::WindowSize;

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
pub struct Live {
    passing: Passing,
    began: Instant,
    /// The status line is on the screen and must be wiped before anything else is written.
    spinning: bool,
    spins: bool,
}

impl Live {
    pub fn new(passing: Passing, has_terminal: bool) -> Self {
        Self {
            passing,
            began: Instant::now(),
            spinning: false,
            // With a terminal of its own the command owns the screen, and a program that reads the
            // result may have both streams on one.
            spins: !has_terminal && passing == Passing::Through && std::io::stderr().is_terminal(),
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

impl Console for Live {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        self.quiet();
        // A reader that went away does not stop the run; all output is in the log.
        let _ = match (stream, self.passing) {
            (Stream::Stdout, Passing::Through) => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            _ => std::io::stderr().write_all(bytes),
        };
    }

    fn size(&self) -> Option<WindowSize> {
        window_size()
    }

    fn step(&mut self, step: &str) {
        if self.spins {
            let seconds = self.began.elapsed().as_secs();
            let _ = write!(std::io::stderr(), "\r\x1b[2K⠿ {step} ({seconds} s)");
            self.spinning = true;
        }
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
