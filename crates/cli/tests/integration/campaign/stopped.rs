//! A campaign that somebody stops: what is done stays, what was under way has no verdict, and a later
//! sitting does the rest.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::campaign::running::{AGENT, campaign, prepare, report, runs, states, tasks};
use crate::campaign::{commit_all, plan, refused};
use crate::support::in_each_mode;

#[test]
fn a_stop_keeps_what_is_done_and_a_later_sitting_does_the_rest() -> Result<()> {
    in_each_mode("stop", |env, fixture| {
        let files = [
            ("src/a.txt", "old a\n"),
            ("src/b.txt", "wait\n"),
            ("src/c.txt", "old c\n"),
        ];
        prepare(env, fixture, &files, "[run]\nparallel = 1\n")?;
        let mut live = env
            .call(fixture)
            .live(&["campaign", "run", "plan.toml", "--json"])?;
        live.until_having("\"number\":2,\"attempt\":1,\"step\":\"agent\"")?;
        // Another terminal sees how far it is, and cannot drive it as well.
        let status = env.look(fixture, &["campaign", "status", "c"])?;
        ensure!(status.contains("running, 1 of 3 tasks over"), "{status}");
        for (part, is_there) in [
            ("(src/b.txt) running", true),
            (" so far", true),
            ("ringfence campaign cancel c", true),
            ("campaign status", false),
        ] {
            ensure!(status.contains(part) == is_there, "{part}: {status}");
        }
        // The time of what is under way is told before it ends.
        let worked = || -> Result<u64> {
            let status = env.look(fixture, &["campaign", "status", "c", "--json"])?;
            let status: serde_json::Value = serde_json::from_str(&status)?;
            let worked = status["campaign"]["driven_ms"].as_u64();
            worked.context(status.to_string())
        };
        let (before, after) = (worked()?, worked()?);
        ensure!(before < after, "{before} ms, then {after} ms");
        let second = refused(env, fixture, &["campaign", "resume", "c"], 2)?;
        ensure!(second.stderr.contains("campaign cancel c"), "{second:?}");
        ensure!(
            second.stderr.contains("another process works on"),
            "{second:?}"
        );
        let second = refused(env, fixture, &["campaign", "rm", "c"], 2)?;
        ensure!(
            second.stderr.contains("another process works on"),
            "{second:?}"
        );
        live.signal(Signal::INT)?;
        let output = live.finish()?;
        output.exits(130)?;
        ensure!(
            output.stderr.contains("ringfence campaign resume c"),
            "{}",
            output.stderr
        );
        let stopped = report(env, fixture, "c")?;
        ensure!(
            states(&stopped) == ["passed", "cancelled", "waiting"],
            "{stopped:#}"
        );
        let first = tasks(&stopped)[0]["run"].clone();

        // The agent is mended; the files of the tasks are as they were.
        let mended = AGENT.replace(
            "wait) echo waiting; sleep 100000",
            "wait) echo new > \"$file\"",
        );
        env.put(fixture, "agent.sh", mended)?;
        campaign(env, fixture, &["resume", "c"], 0)?;
        let done = report(env, fixture, "c")?;
        ensure!(states(&done) == ["passed", "passed", "passed"], "{done:#}");
        ensure!(tasks(&done)[0]["run"] == first && runs(tasks(&done)[0]) == 1);
        ensure!(
            runs(tasks(&done)[1]) == 2 && runs(tasks(&done)[2]) == 1,
            "{done:#}"
        );

        // Nothing is left to do, and the name is taken.
        campaign(env, fixture, &["resume", "c"], 0)?;
        let again = env.ringfence(fixture, 60, &["campaign", "run", "plan.toml"])?;
        again.exits(2)?;
        ensure!(
            again.stderr.contains("there is a campaign `c` already"),
            "{again:?}"
        );
        let hint = "campaign resume c, with `--plan FILE` if the plan was edited;";
        ensure!(again.stderr.contains(hint), "{again:?}");
        campaign(env, fixture, &["rm", "c"], 0)?;
        ensure!(
            env.look(fixture, &["campaign", "list"])?
                .contains("no campaigns yet")
        );
        let kept = env.runs(fixture, &[])?;
        ensure!(kept.len() == 4, "{kept:?}");
        Ok(())
    })
}

#[test]
fn a_stop_while_checks_run_is_no_verdict() -> Result<()> {
    in_each_mode("checked", |env, fixture| {
        let files = [("src/a.txt", "old a\n"), ("wait", "")];
        prepare(env, fixture, &files, "")?;
        let hangs = "grep -q old src/a.txt || test ! -e wait || sleep 100000";
        let text = format!("[split]\nfiles = 'src/*.txt'\n[checks]\nfinal = '{hangs}'\n");
        plan(env, fixture, &text)?;
        commit_all(env, fixture)?;
        let mut live = env
            .call(fixture)
            .live(&["campaign", "run", "plan.toml", "--json"])?;
        live.until_having("\"step\":\"check patched: ")?;
        live.signal(Signal::INT)?;
        let output = live.finish()?;
        output.exits(130)?;
        // Nothing waits, and there is something to go on with all the same.
        ensure!(
            output.stderr.contains("campaign c: stopped, 1 cancelled\n")
                && output.stderr.contains("ringfence campaign resume c\n"),
            "{}",
            output.stderr
        );
        let stopped = report(env, fixture, "c")?;
        ensure!(states(&stopped) == ["cancelled"], "{stopped:#}");
        let why = tasks(&stopped)[0]["why"].as_str().unwrap_or_default();
        ensure!(why == "it was stopped while it was checked", "{why}");
        let runs = env.runs(fixture, &["--campaign", "c"])?;
        ensure!(runs[0]["rounds"]["outcome"] == "cancelled", "{runs:?}");

        // It is done again, though its run has a bundle.
        env.as_owner(fixture, &fixture.folder, &["rm", "wait"])?;
        campaign(env, fixture, &["resume", "c"], 0)?;
        let done = report(env, fixture, "c")?;
        ensure!(states(&done) == ["passed"], "{done:#}");
        Ok(())
    })
}

#[test]
fn somebody_elsewhere_can_stop_it() -> Result<()> {
    in_each_mode("cancel", |env, fixture| {
        let files = [("src/a.txt", "wait\n"), ("src/b.txt", "wait\n")];
        prepare(env, fixture, &files, "")?;
        let words = ["campaign", "run", "plan.toml", "--json", "--parallel", "2"];
        let mut live = env.call(fixture).live(&words)?;
        live.until_having("\"step\":\"agent\"")?;
        live.until_having("\"step\":\"agent\"")?;
        let said = campaign(env, fixture, &["cancel", "c"], 0)?;
        ensure!(said.contains("resume c"), "{said}");
        live.finish()?.exits(130)?;
        let report = report(env, fixture, "c")?;
        ensure!(states(&report) == ["cancelled", "cancelled"], "{report:#}");
        let nobody = refused(env, fixture, &["campaign", "cancel", "c"], 2)?;
        ensure!(nobody.stderr.contains("nobody works on"), "{nobody:?}");
        let none = refused(env, fixture, &["campaign", "status", "x"], 2)?;
        ensure!(none.stderr.contains("there is no campaign `x`"), "{none:?}");
        Ok(())
    })
}
