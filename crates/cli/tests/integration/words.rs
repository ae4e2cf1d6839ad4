//! Requests that are wrong, hosts that lack something, and the words in which that is said: what,
//! why, what to do next, and the exit code that goes with it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{
    Fixture, Mode, NOBODY, Output, Sandboxed, expect, fingerprint, in_each_mode, is_root, said,
};

/// The words are refused with this exit code, and the message holds all of these.
fn refused(
    env: &Sandboxed,
    fixture: &Fixture,
    words: &[&str],
    code: i32,
    parts: &[&str],
) -> Result<()> {
    let output = env.call(fixture).finish(words)?;
    told(&output, code, parts).with_context(|| format!("{words:?}"))
}

fn told(output: &Output, code: i32, parts: &[&str]) -> Result<()> {
    output.exits(code)?;
    for part in parts {
        ensure!(
            output.stderr.contains(part),
            "no {part:?} in {:?}",
            output.stderr
        );
    }
    ensure!(!output.stderr.contains("panicked"), "{}", output.stderr);
    Ok(())
}

#[test]
fn a_missing_program_is_named() -> Result<()> {
    in_each_mode("program", |env, fixture| {
        let before = fingerprint(&fixture.folder)?;
        env.put(fixture, "text.txt", "not a program\n")?;
        env.put(fixture, "lost.sh", "#!/no/such/interpreter\n")?;
        env.as_owner(fixture, &fixture.folder, &["chmod", "755", "lost.sh"])?;
        for program in [
            "no-such-program",
            "./no-such-program",
            "/workspace/text.txt",
            "./lost.sh",
            "/",
        ] {
            let output = env
                .call(fixture)
                .finish(&["run", "--json", "--", program])?;
            output.exits(1)?;
            let result = output.json.clone().context("no result")?;
            expect(&result, "outcome", "not_started")?;
            expect(&result, "status", "failed")?;
            // As a shell says it: not found, or not to be executed.
            let code = result["exit_code"].as_i64();
            ensure!(matches!(code, None | Some(126 | 127)), "{result}");
            expect(&result, "leftovers", Vec::<String>::new())?;
            refused(env, fixture, &["run", "--", program], 1, &[program])?;
        }
        let after = fingerprint(&fixture.folder)?;
        ensure!(after.len() == before.len() + 2);
        Ok(())
    })
}

#[test]
fn a_wrong_folder_is_named() -> Result<()> {
    in_each_mode("folder", |env, fixture| {
        let inside = fixture.folder.join("state");
        env.as_owner(
            fixture,
            &fixture.folder,
            &["ln", "-s", "nowhere", "dangling"],
        )?;
        for (folder, parts) in [
            ("no/such/folder", &["`no/such/folder`", "hint:"][..]),
            ("dangling", &["dangling", "hint:"]),
            ("a.txt", &["a.txt", "because:"]),
            ("a.txt/below", &["a.txt/below"]),
        ] {
            refused(
                env,
                fixture,
                &["run", "--repo", folder, "--", "true"],
                2,
                parts,
            )?;
            refused(
                env,
                fixture,
                &["run", "--same-path", "--repo", folder, "--", "true"],
                2,
                parts,
            )?;
        }
        let call = env
            .call(fixture)
            .variable("RINGFENCE_HOME", inside.to_str().unwrap_or_default());
        told(
            &call.finish(&["run", "--", "true"])?,
            2,
            &["holds Ringfence's own state", "hint:", "`RINGFENCE_HOME`"],
        )?;
        if fixture.mode == Mode::Rootless && is_root() {
            let closed = fixture.folder.with_file_name("closed");
            fs::create_dir(&closed)?;
            fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
            let folder = closed.to_str().unwrap_or_default();
            refused(
                env,
                fixture,
                &["run", "--repo", folder, "--", "true"],
                2,
                &[folder, "Permission denied"],
            )?;
        }
        Ok(())
    })
}

/// Gives a run another number in the store.
const RENUMBER: &str = "import sqlite3, sys
store = sqlite3.connect('store.db')
store.execute('UPDATE runs SET id = ? WHERE id = ?', (sys.argv[2], sys.argv[1]))
store.commit()";

#[test]
fn a_wrong_run_is_named() -> Result<()> {
    in_each_mode("runs", |env, fixture| {
        for verb in ["show", "diff", "logs"] {
            refused(env, fixture, &[verb], 2, &["error:"])?;
            refused(env, fixture, &[verb, "nonesuch"], 2, &["`nonesuch`"])?;
        }
        refused(env, fixture, &["rm", "nonesuch"], 2, &["`nonesuch`"])?;
        refused(env, fixture, &["rm"], 2, &["RUN"])?;
        let mut runs = Vec::new();
        for _ in 0..2 {
            let result = env.run_with(fixture, &[], "true")?;
            runs.push(result["run"].as_str().context("no run")?.to_owned());
        }
        // Two that begin alike are too rare to wait for: the second gets another number.
        let alike = format!(
            "{}{}",
            &runs[0][..11],
            if runs[0].ends_with('0') { 1 } else { 0 }
        );
        env.as_owner(
            fixture,
            &fixture.state,
            &["python3", "-c", RENUMBER, &runs[1], &alike],
        )?;
        let letter = runs[0][..6].to_owned();
        for verb in ["show", "diff", "logs", "rm"] {
            let parts = [&format!("`{letter}`")[..], &runs[0], &alike];
            refused(env, fixture, &[verb, &letter], 2, &parts)?;
        }
        env.look(fixture, &["rm", &runs[0]])?;
        env.look(fixture, &["show", &letter]).map(|_| ())
    })
}

#[test]
fn a_wrong_option_is_named() -> Result<()> {
    in_each_mode("options", |env, fixture| {
        for (option, value) in [
            ("--memory", "lots"),
            ("--memory", "0"),
            ("--memory", "-5M"),
            ("--timeout", "5y"),
            ("--timeout", "0"),
            ("--disk", "1.2.3G"),
            ("--pids", "2"),
            ("--pids", "many"),
            ("--inodes", "x"),
            ("--cpu-time", "soon"),
            ("--open-files", "3"),
            ("--file-size", "big"),
            ("--output", "1Q"),
            ("--env", "=x"),
            ("--env", "novalue"),
        ] {
            let word = format!("{option}={value}");
            refused(
                env,
                fixture,
                &["run", &word, "--", "true"],
                2,
                &[value, option],
            )?;
        }
        refused(env, fixture, &["run"], 2, &["nothing to run"])?;
        refused(env, fixture, &["run", "--", ""], 2, &["nothing to run"])?;
        for name in [
            "",
            "../up",
            "a/b",
            "with space",
            "-x",
            "last",
            "\u{1b}[2J",
            &"n".repeat(300),
        ] {
            let word = format!("--name={name}");
            refused(env, fixture, &["run", &word, "--", "true"], 2, &["name"])?;
        }
        refused(env, fixture, &["runn"], 2, &["runn"])?;
        // A refused request leaves no run.
        ensure!(env.look(fixture, &["list"])?.contains("no runs yet"));
        Ok(())
    })
}

#[test]
fn a_wrong_pattern_is_named_and_leaves_no_run() -> Result<()> {
    in_each_mode("pattern", |env, fixture| {
        refused(
            env,
            fixture,
            &["run", "--hide", "a[", "--", "true"],
            2,
            &["`a[`"],
        )?;
        let list = env.look(fixture, &["list"])?;
        ensure!(list.contains("no runs yet"), "{list}");
        Ok(())
    })
}

#[test]
fn a_home_that_cannot_be_used_is_named() -> Result<()> {
    in_each_mode("home", |env, fixture| {
        let at = |path: &str, code: i32, parts: &[&str]| -> Result<()> {
            let call = env.call(fixture).variable("RINGFENCE_HOME", path);
            for words in [&["run", "--", "true"][..], &["list"], &["doctor"]] {
                told(&call.finish(words)?, code, parts)
                    .with_context(|| format!("{path}: {words:?}"))?;
            }
            Ok(())
        };
        at("/proc/nowhere", 4, &["`/proc/nowhere`"])?;
        let file = env.put(fixture, "file", "")?;
        let file = file.to_str().unwrap_or_default();
        at(file, 4, &[file])?;
        let wide = fixture.folder.with_file_name("wide");
        let wide = wide.to_str().unwrap_or_default();
        env.as_owner(fixture, Path::new("/"), &["mkdir", "-m", "777", wide])?;
        at(wide, 4, &[wide, "others"])?;
        if is_root() && fixture.mode == Mode::Rootless {
            let foreign = fixture.folder.with_file_name("foreign");
            fs::create_dir(&foreign)?;
            let foreign = foreign.to_str().unwrap_or_default();
            at(foreign, 4, &[foreign])?;
        }
        Ok(())
    })
}

/// Mounts a small file system on the first word, owned by the second, and goes on with the rest.
const SMALL: &str =
    "mount -t tmpfs -o size=$3,mode=0700,uid=$2,gid=$2 tmpfs \"$1\" && shift 3 && exec \"$@\"";
/// Calls the program with the words of each line in turn, and says how each ended.
const IN_TURN: &str = "program=$0; for line; do \"$program\" $line; echo \"exit $?\"; done";

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() -> Result<()> {
    if !is_root() {
        println!(
            "SKIPPED a_full_disk_is_named_and_nothing_is_lost: only root can mount a small one"
        );
        return Ok(());
    }
    in_each_mode("full", |env, fixture| {
        let state = fixture.state.to_str().unwrap_or_default();
        env.as_owner(fixture, Path::new("/"), &["mkdir", "-p", state])?;
        let owner = if fixture.mode == Mode::Root {
            0
        } else {
            NOBODY
        }
        .to_string();
        let small = |size: &str| {
            env.call(fixture).before(&[
                "unshare", "--mount", "sh", "-c", SMALL, "sh", state, &owner, size,
            ])
        };
        // Full before it begins.
        let output = small("64k").finish(&["run", "--", "true"])?;
        told(&output, 4, &["error:", state])?;

        // Filled by the agent: it is told inside, the run says so, and its work can be had.
        let script = "echo kept > kept.txt; head -c 50M /dev/urandom > big.bin\n";
        env.put(fixture, "fill.sh", script)?;
        let lines = [
            "run --json -- sh fill.sh",
            "list --json",
            "diff",
            "rm last",
            "run --json -- true",
        ];
        let output = small("6M").within(&["sh", "-c", IN_TURN]).finish(&lines)?;
        let (said, errors) = (&output.stdout, &output.stderr);
        let exits: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("exit "))
            .collect();
        ensure!(!errors.contains("panicked"), "{errors}");
        ensure!(
            said.contains("\"outcome\":\"disk_full\"") || errors.contains("the disk is full"),
            "nobody says that the disk is full: {said}\n{errors}"
        );
        ensure!(exits.len() == 5, "{said}\n{errors}");
        ensure!(
            matches!(exits[0], "exit 1" | "exit 4"),
            "the run: {said}\n{errors}"
        );
        ensure!(exits[1] == "exit 0", "the list: {said}\n{errors}");
        ensure!(
            exits[2] == "exit 0" && said.contains("+kept"),
            "what the agent did is lost: {said}\n{errors}"
        );
        ensure!(
            exits[3] == "exit 0",
            "nothing can be removed: {said}\n{errors}"
        );
        ensure!(exits[4] == "exit 0", "no run after `rm`: {said}\n{errors}");
        Ok(())
    })
}

/// Goes on in a user namespace that may not make another, as nobody special there.
const NO_NAMESPACES: &str = "echo 1 > /proc/sys/user/max_user_namespaces && \
    exec unshare --user --map-user=1000 --map-group=1000 -- \"$@\"";

#[test]
fn a_host_without_user_namespaces_is_told_what_to_do() -> Result<()> {
    in_each_mode("namespaces", |env, fixture| {
        if fixture.mode == Mode::Root {
            return Ok(()); // Root inside such a namespace is nobody's root outside.
        }
        // The words before run as the tester: become the owner first.
        let mut before = vec![
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            NO_NAMESPACES,
            "sh",
        ];
        let lower = [
            "setpriv",
            "--clear-groups",
            "--reuid=65533",
            "--regid=65533",
            "--",
        ];
        ensure!(NOBODY == 65533);
        if is_root() {
            before.splice(0..0, lower);
        }
        let plain = Fixture {
            name: fixture.name.clone(),
            // Already somebody else by then, so that nothing more is to be done.
            mode: Mode::Root,
            folder: fixture.folder.clone(),
            state: fixture.state.clone(),
        };
        let possible = std::process::Command::new(before[0])
            .args(&before[1..])
            .arg("true")
            .output()?;
        if !possible.status.success() {
            println!(
                "SKIPPED a_host_without_user_namespaces: it cannot be arranged here: {possible:?}"
            );
            return Ok(());
        }
        let call = env.call(&plain).before(&before);
        told(
            &call.finish(&["run", "--", "true"])?,
            4,
            &["error:", "hint:", "doctor"],
        )?;
        let doctor = call.finish(&["doctor"])?;
        doctor.exits(4)?;
        ensure!(
            doctor.stdout.contains("MISSING  namespaces"),
            "{}",
            doctor.stdout
        );
        ensure!(doctor.stdout.contains("not ready"), "{}", doctor.stdout);
        let left = fs::read_dir(fixture.state.join("workspaces"))?.count();
        ensure!(left == 0, "{left} layers are left");
        Ok(())
    })
}

#[test]
fn a_command_that_dies_by_a_signal_is_told_so() -> Result<()> {
    in_each_mode("signal", |env, fixture| {
        for (signal, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("XCPU", 24)] {
            let shell = format!("kill -{signal} $$");
            let words = ["run", "--", "sh", "-c", &shell];
            refused(
                env,
                fixture,
                &words,
                1,
                &[&format!("died by signal {number}")],
            )?;
            let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "--json"])?)?;
            expect(&shown, "signal", number)?;
            expect(&shown, "outcome", "signaled")?;
        }
        // No core file, anywhere.
        let result = env.run_with(
            fixture,
            &[],
            "sh -c 'kill -SEGV $$'; ls -A | grep core; ulimit -c",
        )?;
        ensure!(said(&result) == "0\n", "{}", said(&result));
        Ok(())
    })
}

#[test]
fn what_is_for_machines_parses() -> Result<()> {
    in_each_mode("machines", |env, fixture| {
        let doctor: Value = serde_json::from_str(&env.look(fixture, &["doctor", "--json"])?)?;
        expect(&doctor, "ready", true)?;
        ensure!(
            doctor["checks"]
                .as_array()
                .is_some_and(|checks| checks.len() > 4)
        );
        ensure!(env.look(fixture, &["doctor"])?.contains("ready: sandboxes"));
        ensure!(env.look(fixture, &["list", "--json"])? == "[]\n");
        for name in ["one", "two"] {
            env.run_with(fixture, &["--name", name], "echo \"$HOME\" > new.txt")?;
        }
        let list = env.runs(fixture, &[])?;
        let names: Vec<&Value> = list.iter().map(|row| &row["name"]).collect();
        ensure!(names == ["two", "one"], "newest first: {names:?}");
        ensure!(env.runs(fixture, &["-n", "1"])?.len() == 1);
        let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "one", "--json"])?)?;
        expect(&shown, "name", "one")?;
        for shell in ["bash", "zsh", "fish"] {
            let script = env.look(fixture, &["completions", shell])?;
            ensure!(
                script.contains("ringfence") && script.contains("doctor"),
                "{shell}"
            );
        }
        refused(
            env,
            fixture,
            &["completions", "nosuchshell"],
            2,
            &["nosuchshell"],
        )?;
        for words in [&["--help"][..], &["run", "--help"], &["--version"]] {
            ensure!(!env.look(fixture, words)?.is_empty());
        }
        Ok(())
    })
}
