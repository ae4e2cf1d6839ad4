//! Plans, commands and names that mean harm, or are only wrong: a clear word, and nothing runs.

use std::fs;

use anyhow::{Result, ensure};

use crate::campaign::{files, left_out, plan, planned, refused, tree};
use crate::support::in_each_mode;

const WORDS: [&str; 3] = ["campaign", "plan", "plan.toml"];

#[test]
fn a_plan_that_comes_to_nothing_says_why_and_what_to_do() -> Result<()> {
    in_each_mode("wrong", |env, fixture| {
        tree(
            env,
            fixture,
            &[("src/a.py", "x\n"), ("src/b.py", "y\n"), ("lib/a.rs", "")],
        )?;
        for (split, parts) in [
            (
                "[split]\nfiles = 'scr/*.py'\n",
                &["the split is empty", "`scr/*.py`", "hint: "][..],
            ),
            (
                "[split]\nfiles = 'src/*.py'\nmatching = 'absent'\n",
                &["the split is empty", "(2 without a match)"],
            ),
            (
                "[split]\nfile = 'src/*.py'\n",
                &["plan.toml:5:1: `file` is not known here", "^^^^"],
            ),
            (
                "[split]\nfiles = 'src/*.py'\nper_task = 0\n",
                &["plan.toml:6:12: a number from 1"],
            ),
            (
                "[split]\nfirst = 'src/*'\nlast = 'src/a.py'\n",
                &["`src/a.py` is to be both first and last", "hint: "],
            ),
            (
                "[split]\ncommand = 'echo src/a.py; echo; echo src/a.py'\n",
                &["groups", "`src/a.py` is in group 1 and in group 2"],
            ),
            (
                "[split]\ncommand = 'echo ../../etc/passwd'\n",
                &["`../../etc/passwd` of group 1 leads out of the tree"],
            ),
            (
                "[split]\ncommand = 'echo none.py'\n",
                &["`none.py` of group 1 is no file"],
            ),
            ("[split]\ncommand = 'true'\n", &["it printed no path"]),
            (
                "[split]\ncommand = 'echo no such thing >&2; exit 3'\n",
                &["failed with exit code 3", "no such thing", "hint: "],
            ),
        ] {
            plan(env, fixture, split)?;
            let output = refused(env, fixture, &WORDS, 2)?;
            for part in parts {
                ensure!(
                    output.stderr.contains(part),
                    "{split}: {part}: {}",
                    output.stderr
                );
            }
        }
        plan(env, fixture, "[split]\nfiles = 'src'\n")?;
        fs::remove_file(fixture.folder.join("BRIEF.md"))?;
        let output = refused(env, fixture, &WORDS, 2)?;
        ensure!(
            output.stderr.contains("names the brief `BRIEF.md`"),
            "{}",
            output.stderr
        );
        // HOSTILE: a brief that is a link would show any file of the host to the agent.
        env.as_owner(
            fixture,
            &fixture.folder,
            &["ln", "-s", "/etc/passwd", "BRIEF.md"],
        )?;
        let output = refused(env, fixture, &WORDS, 2)?;
        ensure!(
            output.stderr.contains("not a regular file"),
            "{}",
            output.stderr
        );
        ensure!(!output.stderr.contains("root:"), "{}", output.stderr);
        Ok(())
    })
}

#[test]
fn a_command_of_a_plan_is_in_a_sandbox() -> Result<()> {
    in_each_mode("command", |env, fixture| {
        tree(
            env,
            fixture,
            &[
                ("app/a.py", "x\n"),
                ("app/b.py", "y\n"),
                ("app/c.py", "z\n"),
                (".env", "K=1\n"),
            ],
        )?;
        let command = "test ! -e .env || exit 9; rm -rf app/*; echo boo > app/new.py; \
             (exec 3<>/dev/tcp/127.0.0.1/1) 2>/dev/null && exit 8; \
             printf '[[\"app/b.py\",\"./app/a.py\"],[\"/workspace/app/c.py\"]]'";
        let text = format!(
            "[split]\nfiles = 'app'\ncommand = '''{command}'''\n[run]\npolicy = 'standard'\n"
        );
        plan(env, fixture, &text)?;
        let value = planned(env, fixture, &[])?;
        let expected: [&[&str]; 2] = [&["app/a.py", "app/b.py"], &["app/c.py"]];
        ensure!(files(&value) == expected, "{value}");
        let there = fs::read_dir(fixture.folder.join("app"))?.count();
        ensure!(there == 3, "{there} files are left");
        // What it leaves out is told; a bound holds for its groups as well.
        let text = "[split]\nfiles = 'app'\nper_task = 1\ncommand = 'ls app/a.py app/b.py'\n";
        plan(env, fixture, text)?;
        let value = planned(env, fixture, &[])?;
        ensure!(files(&value) == [["app/a.py"], ["app/b.py"]], "{value}");
        ensure!(left_out(&value, "no_group").is_some(), "{value}");
        // HOSTILE: more than anybody reads.
        plan(
            env,
            fixture,
            "[split]\ncommand = 'yes app/a.py | head -c 40000000'\n",
        )?;
        let output = refused(env, fixture, &WORDS, 2)?;
        ensure!(
            output.stderr.contains("printed more than"),
            "{}",
            output.stderr
        );
        Ok(())
    })
}

#[test]
fn names_do_not_reach_the_terminal_raw() -> Result<()> {
    in_each_mode("names", |env, fixture| {
        let make = "mkdir -p s; : > \"s/$(printf 'a\\033[2Jb.x')\"; : > \"s/$(printf 'n\\nl.x')\"; \
             : > \"s/$(printf '\\377.x')\"; : > \"s/$(printf '\\342\\200\\256e.x')\"";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        plan(env, fixture, "[split]\nfiles = 's'\nper_task = 1\n")?;
        for words in [&WORDS[..], &["campaign", "plan", "plan.toml", "--json"]] {
            let text = env.look(fixture, words)?;
            let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            ensure!(!text.contains(raw), "{text:?}");
        }
        let value = planned(env, fixture, &[])?;
        ensure!(files(&value).len() == 4, "{value}");
        ensure!(value.to_string().contains(r#""\"s/\\377.x\"""#), "{value}");
        Ok(())
    })
}
