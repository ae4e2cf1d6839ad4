//! `init --user` on a real terminal: it asks, and adds to the user's policy only on a yes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::OnTerminal;
use crate::support::in_each_mode_in_turn;

#[test]
fn init_asks_before_it_adds_to_the_policy() -> Result<()> {
    // Sandboxes have a `/tmp` of their own, so nothing below that of the host is proposed.
    let Ok(home) = tempfile::tempdir_in("/srv") else {
        println!("SKIPPED the question of init: no home can be made in /srv");
        return Ok(());
    };
    fs::set_permissions(home.path(), Permissions::from_mode(0o755))?;
    for place in [".cargo/bin", ".rustup/toolchains/stable-x/bin"] {
        fs::create_dir_all(home.path().join(place))?;
        let cargo = home.path().join(place).join("cargo");
        fs::write(&cargo, "#!/bin/sh\n")?;
        fs::set_permissions(&cargo, Permissions::from_mode(0o755))?;
    }
    let home = home.path().to_str().context("a path")?;
    in_each_mode_in_turn("init-asks", |env, fixture| {
        env.put(fixture, "rust-toolchain", "stable\n")?;
        let policy = fixture.state.join("policy.toml");
        let call = env.call(fixture).variable("TERM", "xterm");
        let call = call.variable("HOME", home);
        let ask = || -> Result<OnTerminal> {
            let mut screen = OnTerminal::start_with(&call, "", &["init", "--user"])?;
            screen.until("? [y/N] ")?;
            // What is asked about was shown before.
            ensure!(screen.seen.contains("[[files.mount]]"), "{:?}", screen.seen);
            ensure!(screen.seen.contains(&format!("{home}/.cargo/bin")));
            Ok(screen)
        };
        // All but a plain yes is a no; so is the end of what is typed.
        for answer in ["\n", "n\n", "nay\n", "yes please\n", "\u{4}"] {
            let mut screen = ask()?;
            screen.press(answer)?;
            let (status, seen) = screen.finish_with("not added")?;
            ensure!(status.success(), "{seen:?}");
            ensure!(!policy.exists(), "{answer:?} was taken for a yes");
        }
        let screen = ask()?;
        screen.signal(Signal::INT)?;
        drop(screen);
        ensure!(!policy.exists(), "an interrupt was taken for a yes");

        let mut screen = ask()?;
        screen.press("y\n")?;
        let (status, seen) = screen.finish_with("added to ")?;
        ensure!(status.success(), "{seen:?}");
        let text = fs::read_to_string(&policy)?;
        ensure!(
            text.contains(&format!("path = [\"{home}/.cargo/bin\"]")),
            "{text}"
        );

        let screen = OnTerminal::start_with(&call, "", &["init", "--user"])?;
        let (status, seen) = screen.finish_with("nothing to add to your policy")?;
        ensure!(status.success() && !seen.contains("[y/N]"), "{seen:?}");
        ensure!(fs::read_to_string(&policy)? == text, "it was added twice");
        Ok(())
    })
}
