//! `review` on a real terminal: what is on the screen, what keys do, and what is left behind.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::OnTerminal;
use crate::support::{Fixture, Sandboxed, in_each_mode};

/// What the shell inside leaves: hostile names and lines, a long hunk, a line as wide as the screen.
const CHANGES: &str = r#"
printf 'new\n' >> README
python3 - <<'END'
import os
with open(b"evil\x1b[2J\xe2\x80\xae.txt", "wb") as out:
    out.write(b"\x1b]0;title\x07\x1b[?1049l\x1b[2Jhostile\n")
    out.write("e\u0301 a\u200bb \u202etxt\n".encode())
    out.write("x\u2800y\u3164z\u115f\u00ad\u180e\ufeff\U000e0041\n".encode())
    out.write(b"\ttab and bytes \xff\xfe \n")
    out.write(b"x" * 89 + b"E\n")
with open("long.txt", "w") as out:
    out.writelines("line %d\n" % n for n in range(1000))
END
"#;

impl OnTerminal {
    fn review(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Self> {
        let mut all = vec!["review"];
        all.extend(words);
        let mut screen = Self::start(env, fixture, &all)?;
        screen.until("? keys  q quit")?;
        Ok(screen)
    }

    /// Presses keys, and waits for what then comes.
    fn see(&mut self, keys: &str, text: &str) -> Result<()> {
        self.seen.clear();
        self.press(keys)?;
        self.until(text)
    }
}

fn held(env: &Sandboxed, fixture: &Fixture) -> Result<usize> {
    Ok(env.runs(fixture, &["--held"])?.len())
}

/// The newest verdict of the only run.
fn verdict(env: &Sandboxed, fixture: &Fixture) -> Result<Value> {
    Ok(env.runs(fixture, &[])?[0]["review"]["verdict"].clone())
}

/// Nothing but what a screen of ours writes.
fn harmless(seen: &str) -> Result<()> {
    for bad in [
        "\x1b]", "\x07", "\u{202e}", "\u{301}", "\u{200b}", "\x1b[2J",
    ] {
        ensure!(!seen.contains(bad), "{bad:?} is on the screen: {seen:?}");
    }
    // The alternate screen is left once: by us.
    ensure!(seen.matches("\x1b[?1049l").count() <= 1, "{seen:?}");
    Ok(())
}

#[test]
fn what_is_hostile_is_seen_and_does_nothing() -> Result<()> {
    in_each_mode("review-hostile", |env, fixture| {
        env.run_with(fixture, &[], CHANGES)?;
        let mut screen = OnTerminal::review(env, fixture, &["--color=never"])?;
        harmless(&screen.seen)?;
        // The file of that name, and its one hunk.
        screen.see(
            "/2Jhostile\r",
            "\\u{1b}]0;title\\u{7}\\u{1b}[?1049l\\u{1b}[2Jhostile",
        )?;
        screen.until("+e\\u{301} a\\u{200b}b \\u{202e}txt")?;
        screen.until("+x\\u{2800}y\\u{3164}z\\u{115f}\\u{ad}\\u{180e}\\u{feff}\\u{e0041}")?;
        screen.until("+→       tab and bytes \\xff\\xfe·")?;
        // As wide as the screen: the last cell is there.
        screen.until(&format!("+{}E", "x".repeat(89)))?;
        harmless(&screen.seen)?;
        screen.see("P", "evil")?;
        harmless(&screen.seen)?;
        screen.see("b", "by ")?;
        screen.until("any key goes back")?;
        screen.press("x")?;
        screen.seen.clear();
        screen.press("q")?;
        let (status, seen) = screen.finish_with("nothing was decided")?;
        ensure!(status.success() && seen.contains("\x1b[?1049l"), "{seen:?}");
        harmless(&seen)?;
        ensure!(held(env, fixture)? == 1);
        // The same as a document.
        let plain = env.look(fixture, &["review"])?;
        ensure!(
            !plain.contains('\x1b') && !plain.contains('\u{202e}'),
            "{plain:?}"
        );
        ensure!(plain.contains("+line 999\n"), "nothing is folded");
        Ok(())
    })
}

#[test]
fn a_key_approves_what_was_shown_and_says_what_was_not() -> Result<()> {
    in_each_mode("review-approve", |env, fixture| {
        env.run_with(fixture, &[], CHANGES)?;
        let mut screen = OnTerminal::review(env, fixture, &["--as", "Ada"])?;
        screen.see("/line 5\r", "line 5")?;
        screen.see("G", "folded: 900 more lines")?;
        screen.see(
            "a",
            "hunks were folded and not shown whole; approve all the same?",
        )?;
        screen.see("n\r", "not approved")?;
        ensure!(held(env, fixture)? == 1);
        screen.see("UG", "line 999")?;
        // Serious flags and the like are still asked about.
        screen.press("ay\r")?;
        let (status, seen) = screen.finish_with(" approved by Ada (")?;
        ensure!(status.success(), "{seen:?}");
        let verdict = verdict(env, fixture)?;
        ensure!(verdict["decision"] == "approved", "{verdict}");
        ensure!(verdict["by"]["name"] == "Ada", "{verdict}");
        ensure!(
            verdict.get("shown").is_none(),
            "all was unfolded: {verdict}"
        );
        ensure!(held(env, fixture)? == 0);
        Ok(())
    })
}

#[test]
fn a_rejection_asks_why() -> Result<()> {
    in_each_mode("review-reject", |env, fixture| {
        env.run_with(fixture, &[], "echo two >> README")?;
        let mut screen = OnTerminal::review(env, fixture, &["--all-held"])?;
        screen.see("r", "reject, because: ")?;
        screen.see("\r", "a rejection needs a reason")?;
        screen.see("r", "reject, because: ")?;
        screen.see("nä", "because: nä_")?;
        screen.see("\x7fo good\x1b", "a rejection needs a reason")?;
        screen.press("rno good\r")?;
        let (status, seen) = screen.finish_with(" rejected by ")?;
        ensure!(status.success(), "{seen:?}");
        let verdict = verdict(env, fixture)?;
        ensure!(verdict["why"] == "no good", "{verdict}");
        ensure!(
            env.look(fixture, &["review", "--all-held"])?
                .contains("nothing is held")
        );
        Ok(())
    })
}

#[test]
fn the_terminal_is_as_it_was_however_it_ends() -> Result<()> {
    in_each_mode("review-ends", |env, fixture| {
        env.run_with(fixture, &[], "seq 300 > numbers.txt; echo two >> README")?;
        for (keys, signal, code) in [
            ("\x03", None, 130),
            ("", Some(Signal::TERM), 130),
            ("", Some(Signal::HUP), 130),
            ("q", None, 0),
            ("s", None, 0),
        ] {
            let mut screen = OnTerminal::review(env, fixture, &[])?;
            screen.resize(170, 12)?;
            screen.see("n", "│")?;
            screen.seen.clear();
            screen.press(keys)?;
            if let Some(signal) = signal {
                screen.signal(signal)?;
            }
            let (status, seen) = screen.finish_with("nothing was decided")?;
            ensure!(status.code() == Some(code), "{keys:?} {signal:?}: {status}");
            let left = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
            ensure!(seen.contains(left), "{keys:?} {signal:?}: {seen:?}");
        }
        Ok(())
    })
}

#[test]
fn what_was_typed_before_it_was_seen_decides_nothing() -> Result<()> {
    in_each_mode("review-ahead", |env, fixture| {
        env.run_with(fixture, &[], "echo two >> README")?;
        env.run_with(fixture, &[], "echo three >> README")?;
        let call = env.call(fixture).variable("TERM", "xterm");
        // Two runs wait. Approvals that were typed ahead are of neither.
        let mut screen = OnTerminal::start_with(&call, "aaay\rrno\r", &["review", "--all-held"])?;
        screen.until("(1 of 2)")?;
        screen.until("? keys  q quit")?;
        ensure!(held(env, fixture)? == 2);
        // A key that is held down: the first is of this run, and none of the next.
        screen.see("aaaaaaaa", "(2 of 2)")?;
        ensure!(held(env, fixture)? == 1);
        screen.press("q")?;
        let (status, seen) = screen.finish_with(" approved by ")?;
        ensure!(status.success(), "{seen:?}");
        ensure!(held(env, fixture)? == 1);
        // The question of `apply` is one, too.
        let call = env.call(fixture).variable("TERM", "xterm");
        let mut asked = OnTerminal::start_with(&call, "y\n", &["apply", "last"])?;
        asked.until("Approve and apply this? [y/N] ")?;
        asked.press("n\n")?;
        asked.until("nothing was applied")?;
        ensure!(asked.child.wait()?.code() == Some(3), "{:?}", asked.seen);
        ensure!(held(env, fixture)? == 1);
        ensure!(!fixture.folder.join("README").exists());
        Ok(())
    })
}

#[test]
fn it_comes_back_after_it_was_suspended_and_after_others_had_the_terminal() -> Result<()> {
    in_each_mode("review-suspended", |env, fixture| {
        env.run_with(fixture, &[], "seq 300 > numbers.txt; echo two >> README")?;
        let mut screen = OnTerminal::review(env, fixture, &[])?;
        let (left, entered) = ("\x1b[?1049l", "\x1b[?1049h");
        // Nobody could continue it here, so that it goes on at once; between, all is as it was.
        for suspends in ["\x1a", ""] {
            screen.seen.clear();
            screen.press(suspends)?;
            if suspends.is_empty() {
                screen.signal(Signal::TSTP)?;
            }
            screen.until(left)?;
            screen.until(entered)?;
            screen.until("? keys  q quit")?;
            let at = |text: &str| screen.seen.find(text);
            ensure!(at(left) < at(entered), "{:?}", screen.seen);
        }
        // Stopped without being asked; a shell then puts the terminal into another mode.
        screen.signal(Signal::STOP)?;
        rustix::termios::tcsetattr(
            &screen.theirs,
            rustix::termios::OptionalActions::Now,
            &screen.before,
        )?;
        screen.seen.clear();
        screen.signal(Signal::CONT)?;
        screen.until(entered)?;
        screen.until("? keys  q quit")?;
        // Keys are heard one by one again, and not shown.
        screen.see("G", "300")?;
        screen.resize(60, 10)?;
        screen.see("g", "run ")?;
        screen.seen.clear();
        screen.press("q")?;
        let (status, seen) = screen.finish_with("nothing was decided")?;
        ensure!(status.success(), "{seen:?}");
        Ok(())
    })
}

#[test]
fn terminals_that_can_do_less_get_less() -> Result<()> {
    in_each_mode("review-plain", |env, fixture| {
        env.run_with(fixture, &[], "echo two >> README")?;
        // A terminal that can do nothing: one document, without a sequence, and nobody is asked.
        let dumb = env.call(fixture).variable("TERM", "dumb");
        let mut screen = OnTerminal::start_with(&dumb, "", &["review"])?;
        screen.until("+two")?;
        ensure!(screen.child.wait()?.success());
        ensure!(!screen.seen.contains('\x1b'), "{:?}", screen.seen);
        // No colours, and the screen all the same.
        let plain = env.call(fixture).variable("TERM", "xterm");
        let plain = plain.variable("NO_COLOR", "1");
        let mut screen = OnTerminal::start_with(&plain, "", &["review"])?;
        screen.until("? keys  q quit")?;
        screen.see("n", "+two")?;
        for colour in ["\x1b[3", "\x1b[1m", "\x1b[7m"] {
            ensure!(!screen.seen.contains(colour), "{:?}", screen.seen);
        }
        screen.seen.clear();
        screen.press("q")?;
        screen.finish_with("nothing was decided")?;
        // The pager of the user gets all of it, in colour.
        let paged = env.call(fixture).variable("TERM", "xterm");
        let paged = paged.variable("PAGER", "sed 's/^/paged: /'");
        let mut screen = OnTerminal::start_with(&paged, "", &["review", "--plain"])?;
        screen.until("paged: \x1b[32m+two")?;
        ensure!(screen.child.wait()?.success());
        Ok(())
    })
}
