//! A run on a real terminal: the command has one of its own of the same size, keys reach it, and
//! the caller's terminal is afterwards as it was.

mod campaign;
mod init;
mod review;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringfence_jail::terminal::{open_pair, resize};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{Termios, tcgetattr};
use serde_json::Value;

use crate::support::{Call, Fixture, RUN_SECONDS, Sandboxed, expect, in_each_mode};

/// A `ringfence` that has a terminal as its own.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    part: Vec<u8>,
    /// The side that the program has; kept open, so that it can be looked at afterwards.
    theirs: File,
    before: Termios,
}

impl OnTerminal {
    fn start(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Self> {
        let call = env.call(fixture).variable("TERM", "xterm");
        Self::start_with(&call, "", words)
    }

    /// With keys that are typed before the program is there.
    fn start_with(call: &Call<'_>, typed: &str, words: &[&str]) -> Result<Self> {
        let (ours, theirs) = open_pair(91, 37)?;
        let theirs = File::from(theirs);
        let before = tcgetattr(&theirs)?;
        let mut keys = File::from(ours);
        keys.write_all(typed.as_bytes())?;
        // `setsid` makes the terminal the controlling one, and then becomes the program.
        let mut command = call.command(&["setsid", "--ctty"], words);
        let child = command
            .stdin(theirs.try_clone()?)
            .stdout(theirs.try_clone()?)
            .stderr(theirs.try_clone()?)
            .spawn()
            .context("cannot start")?;
        let mut reader = keys.try_clone()?;
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            keys,
            screen,
            seen: String::new(),
            part: Vec::new(),
            theirs,
            before,
        })
    }

    /// A run of a shell command.
    fn run(env: &Sandboxed, fixture: &Fixture, shell: &str) -> Result<Self> {
        Self::start(env, fixture, &["run", "--", "sh", "-c", shell])
    }

    /// Waits until this is on the screen.
    fn until(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(RUN_SECONDS.into());
        while !self.seen.contains(text) {
            match self
                .screen
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.take(&bytes),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no `{text}` on the screen: {:?}", self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the terminal is gone: {:?}", self.seen)
                }
            }
        }
        Ok(())
    }

    /// A character may come in two parts.
    fn take(&mut self, bytes: &[u8]) {
        self.part.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.part) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.part.len(),
        };
        let rest = self.part.split_off(whole);
        self.seen.push_str(&String::from_utf8_lossy(&self.part));
        self.part = rest;
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        Ok(resize(self.keys.as_fd(), columns, rows)?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("no pid")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for the summary and the end, and looks whether the terminal is as it was.
    fn finish(self) -> Result<(ExitStatus, String)> {
        self.finish_with("\nrun ")
    }

    /// The same, with other last words.
    fn finish_with(mut self, last: &str) -> Result<(ExitStatus, String)> {
        self.until(last)?;
        let status = self.child.wait()?;
        let after = tcgetattr(&self.theirs)?;
        ensure!(
            format!("{after:?}") == format!("{:?}", self.before),
            "the terminal was {:?} and is {after:?}",
            self.before
        );
        Ok((status, std::mem::take(&mut self.seen)))
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is known of the only run.
fn result(env: &Sandboxed, fixture: &Fixture) -> Result<Value> {
    Ok(serde_json::from_str(
        &env.look(fixture, &["show", "--json"])?,
    )?)
}

#[test]
fn the_command_has_a_terminal_of_the_same_size() -> Result<()> {
    in_each_mode("size", |env, fixture| {
        let shell = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && echo $TERM && \
            echo x > /dev/tty && ps -o tpgid= -p $$ | tr -d ' ' > /tmp/t && echo fg $(test $(cat /tmp/t) = $$ && echo yes)";
        let run = OnTerminal::run(env, fixture, shell)?;
        let (status, seen) = run.finish()?;
        ensure!(status.success(), "{seen:?}");
        ensure!(
            seen.starts_with("37 91\r\n/dev/pts/0\r\nxterm\r\nx\r\nfg yes\r\n"),
            "{seen:?}"
        );
        Ok(())
    })
}

#[test]
fn a_full_screen_program_works() -> Result<()> {
    in_each_mode("screen", |env, fixture| {
        let program = "python3 -c 'import curses
def main(screen):
    screen.addstr(0, 0, \"size %dx%d\" % screen.getmaxyx())
    screen.refresh()
    key = screen.getch()
    open(\"key.txt\", \"w\").write(chr(key))
curses.wrapper(main)'";
        let mut run = OnTerminal::run(env, fixture, program)?;
        run.until("size 37x91")?;
        run.press("k")?;
        let (status, seen) = run.finish()?;
        ensure!(status.success(), "{seen:?}");
        // It went to the other screen and came back.
        ensure!(seen.contains("\x1b[?1049h") && seen.contains("\x1b[?1049l"));
        expect(&result(env, fixture)?, "changed_files", vec!["key.txt"])
    })
}

/// Python that waits for a signal without a moment in which it is missed.
fn wait_for(signal: &str, then: &str) -> String {
    format!(
        "python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{signal}])
print(\"READY\", flush=True)
signal.sigwait([signal.{signal}])
{then}'"
    )
}

#[test]
fn a_new_size_reaches_the_command() -> Result<()> {
    in_each_mode("resize", |env, fixture| {
        let shell = wait_for("SIGWINCH", "print(*os.get_terminal_size(), flush=True)");
        let mut run = OnTerminal::run(env, fixture, &format!("{shell}; stty size"))?;
        run.until("READY")?;
        run.resize(123, 45)?;
        let (status, seen) = run.finish()?;
        ensure!(status.success(), "{seen:?}");
        ensure!(seen.contains("123 45\r\n45 123\r\n"), "{seen:?}");
        Ok(())
    })
}

#[test]
fn ctrl_c_reaches_the_command_and_nothing_else() -> Result<()> {
    in_each_mode("ctrl-c", |env, fixture| {
        let shell = wait_for("SIGINT", "print(\"caught\", flush=True)");
        let mut run = OnTerminal::run(
            env,
            fixture,
            &format!("trap : INT; {shell}; echo x > new.txt; exit 5"),
        )?;
        run.until("READY")?;
        run.press("\x03")?;
        let (status, seen) = run.finish()?;
        ensure!(status.code() == Some(1), "{status:?} {seen:?}");
        ensure!(seen.contains("caught"), "{seen:?}");
        let result = result(env, fixture)?;
        expect(&result, "outcome", "exited")?;
        expect(&result, "exit_code", 5)?;
        expect(&result, "changed_files", vec!["new.txt"])?;

        // One that does nothing about it dies of it.
        let mut run = OnTerminal::run(env, fixture, "echo READY; exec sleep 1000")?;
        run.until("READY")?;
        run.press("\x03")?;
        run.finish()?;
        let result = self::result(env, fixture)?;
        expect(&result, "outcome", "signaled")?;
        expect(&result, "signal", 2)
    })
}

#[test]
fn keys_of_a_shell_session_work() -> Result<()> {
    in_each_mode("session", |env, fixture| {
        let mut run = OnTerminal::start(env, fixture, &["run", "--shell"])?;
        run.press("echo a$((40 + 2))b\r")?;
        run.until("a42b")?;
        // Job control: a job can be stopped, and the shell knows of it.
        run.press("sh -c 'echo b$((40 + 2))c; exec sleep 1000'\r")?;
        run.until("b42c")?;
        run.press("\x1a")?;
        run.until("Stopped")?;
        run.press("echo session > s.txt; exit\r")?;
        run.until("There are stopped jobs")?;
        run.press("exit\r")?;
        let (_, seen) = run.finish()?;
        ensure!(!seen.contains("no job control"), "{seen:?}");
        expect(&result(env, fixture)?, "changed_files", vec!["s.txt"])
    })
}

#[test]
fn the_terminal_is_as_it_was_however_the_command_ends() -> Result<()> {
    in_each_mode("mode", |env, fixture| {
        for (shell, outcome) in [
            ("stty raw -echo; exit 3", "exited"),
            ("stty -echo; kill -9 $$", "signaled"),
            ("sh -c 'kill -9 $PPID'; sleep 1000", "signaled"),
        ] {
            let (status, seen) = OnTerminal::run(env, fixture, shell)?.finish()?;
            ensure!(status.code() == Some(1), "`{shell}`: {status:?} {seen:?}");
            expect(&result(env, fixture)?, "outcome", outcome)?;
        }
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let mut run = OnTerminal::run(
                env,
                fixture,
                "echo x > new.txt; echo READY; exec sleep 1000",
            )?;
            run.until("READY")?;
            run.signal(signal)?;
            run.finish()?;
            let result = result(env, fixture)?;
            expect(&result, "outcome", "cancelled")?;
            expect(&result, "changed_files", vec!["new.txt"])?;
        }
        // Not even begun: a program that is not there, and a request that is refused.
        let run = OnTerminal::start(env, fixture, &["run", "--", "no-such-program"])?;
        run.finish()?;
        expect(&result(env, fixture)?, "outcome", "not_started")
    })
}

#[test]
fn a_refused_request_leaves_the_terminal_alone() -> Result<()> {
    in_each_mode("refused", |env, fixture| {
        let words = ["run", "--require-hard", "--", "true"];
        let mut run = OnTerminal::start(env, fixture, &words)?;
        run.until("hint:")?;
        let status = run.child.wait()?;
        ensure!(status.code() == Some(3), "{status:?} {:?}", run.seen);
        let after = tcgetattr(&run.theirs)?;
        ensure!(
            format!("{after:?}") == format!("{:?}", run.before),
            "{after:?}"
        );
        Ok(())
    })
}

#[test]
fn a_diff_on_a_terminal_has_no_control_characters() -> Result<()> {
    in_each_mode("quoted", |env, fixture| {
        env.run_with(
            fixture,
            &[],
            "printf 'a\\033[2Jb\\n' > new.txt; printf 'log\\033]0;t\\007\\n'",
        )?;
        for (words, marker) in [
            (&["diff"][..], "+a"),
            (&["logs"], "log"),
            (&["show"], "new.txt"),
        ] {
            let mut run = OnTerminal::start(env, fixture, words)?;
            run.until(marker)?;
            run.child.wait()?;
            run.until("\n")?;
            ensure!(
                !run.seen.contains('\x1b') && !run.seen.contains('\x07'),
                "{words:?}: {:?}",
                run.seen
            );
        }
        Ok(())
    })
}
