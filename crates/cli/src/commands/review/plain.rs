//! The review as one document: for pipes, pagers and terminals that can do nothing else.

use std::io::{self, IsTerminal as _, Write};
use std::process::{Command, Stdio};

use super::page::{Page, Row, Style};

/// Writes all of a run, nothing folded, one line of the patch in one line.
pub fn write(page: &Page<'_>, colour: bool, out: &mut dyn Write) -> io::Result<()> {
    for &block in &page.blocks {
        let whole = page.whole(block);
        for row in whole {
            writeln!(out, "{}", paint(&row, colour))?;
        }
    }
    Ok(())
}

/// A row with its colours.
pub fn paint(row: &Row, colour: bool) -> String {
    let mut text = String::new();
    for piece in &row.0 {
        let sequence = sequence(piece.style);
        let mut odd = false;
        if colour {
            text.push_str(sequence);
        }
        for cell in &piece.cells {
            if colour && cell.odd != odd {
                odd = cell.odd;
                // What stands for something else is seen not to be it.
                text.push_str(if odd { "\x1b[7m" } else { "\x1b[27m" });
            }
            text.push(cell.c);
        }
        if colour {
            text.push_str("\x1b[0m");
        }
    }
    text
}

fn sequence(style: Style) -> &'static str {
    match style {
        Style::Plain => "",
        Style::Title => "\x1b[1m",
        Style::Faint => "\x1b[2m",
        Style::Removed => "\x1b[31m",
        Style::Added => "\x1b[32m",
        Style::Hunk => "\x1b[36m",
        Style::File => "\x1b[1;34m",
        Style::Serious => "\x1b[1;31m",
        Style::Warning => "\x1b[33m",
    }
}

/// Gives what is written to the user's pager, where one is asked for, and else to standard output.
pub fn print(
    paged: bool,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let pager = std::env::var("PAGER").unwrap_or_default();
    if !paged || pager.trim().is_empty() || !io::stdout().is_terminal() {
        let mut out = io::BufWriter::new(io::stdout().lock());
        write(&mut out)?;
        return Ok(out.flush()?);
    }
    let mut command = Command::new("sh");
    command.arg("-c").arg(&pager).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    let mut child = command.spawn()?;
    let written = match child.stdin.take() {
        Some(stdin) => {
            let mut out = io::BufWriter::new(stdin);
            write(&mut out).and_then(|()| Ok(out.flush()?))
        }
        None => Ok(()),
    };
    child.wait()?;
    written
}
