//! The loop: an agent is sent back with what the checks say, in one sandbox and one workspace.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::checks::commit;
use crate::support::{Fixture, Sandboxed, in_each_mode, said};

/// What `value` must be in the end.
const CHECK: &str = "echo expected 3, found $(cat value); test \"$(cat value)\" = 3";

/// Runs a shell as the agent of a loop.
fn looped(env: &Sandboxed, fixture: &Fixture, most: &str, shell: &str) -> Result<Value> {
    let options = ["--iterations", most, "--check", CHECK];
    env.run_with(fixture, &options, shell)
}

fn outcome(result: &Value, expected: &str, iterations: usize) -> Result<()> {
    let rounds = &result["rounds"];
    let found = rounds["iterations"].as_array().map_or(0, Vec::len);
    ensure!(
        rounds["outcome"] == expected && found == iterations,
        "not {expected} after {iterations}: {rounds:#}, {} {}",
        result["outcome"],
        said(result)
    );
    Ok(())
}

fn run_id(result: &Value) -> Result<&str> {
    result["run"].as_str().context("no run")
}

fn begin(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    commit(env, fixture, &[("value", "0\n")])
}

#[test]
fn r15_r16_an_agent_that_fails_twice_is_sent_back_until_the_check_holds() -> Result<()> {
    in_each_mode("loop", |env, fixture| {
        begin(env, fixture)?;
        let shell = "echo \"$RINGFENCE_ITERATION of $RINGFENCE_ITERATIONS\"; \
             echo $(( $(cat value) + 1 )) > value";
        let result = looped(env, fixture, "5", shell)?;
        outcome(&result, "passed", 3)?;
        ensure!(
            result["status"] == "done" && result["exit_code"] == 0,
            "{result}"
        );
        ensure!(
            said(&result) == "1 of 5\n2 of 5\n3 of 5\n",
            "{}",
            said(&result)
        );
        // The check before the agent is recorded, before anything is written.
        let baseline = &result["rounds"]["baseline"];
        ensure!(
            baseline == &json!([{"command": CHECK, "outcome": "exited", "exit_code": 1}]),
            "{baseline}"
        );
        let run = run_id(&result)?;
        let journal =
            fs::read_to_string(fixture.state.join("bundles").join(run).join("audit.jsonl"))?;
        let first = |word: &str| journal.lines().position(|line| line.contains(word));
        let (checked, wrote) = (first("\"iteration_check\""), first("\"kind\":\"write\""));
        ensure!(
            checked.is_some() && checked < wrote,
            "{checked:?} {wrote:?}: {journal}"
        );
        // What each iteration left is kept.
        let mut patches = Vec::new();
        for number in ["1", "2", "3"] {
            let patch = env.look(fixture, &["diff", run, "--iteration", number])?;
            ensure!(patch.contains(&format!("\n-0\n+{number}\n")), "{patch}");
            patches.push(patch);
        }
        ensure!(env.look(fixture, &["diff", run])? == patches[2]);
        let verdicts: Vec<&Value> = (0..3)
            .map(|at| &result["rounds"]["iterations"][at]["checks"][0]["verdict"])
            .collect();
        ensure!(
            verdicts == ["still_failing", "still_failing", "fixed"],
            "{verdicts:?}"
        );
        ensure!(
            result["checks"]["reports"][0]["verdict"] == "fixed",
            "{}",
            result["checks"]
        );
        // The last patch is not checked a second time.
        let executed = journal.matches("\"check_began\"").count();
        ensure!(executed == 0, "{executed} more: {journal}");
        env.look(fixture, &["verify", run])?;
        let page = env.look(fixture, &["show", run])?;
        ensure!(
            page.contains("outcome: **passed**, 3 of at most 5")
                && page.contains("iteration 2: exit 0 after"),
            "{page}"
        );
        let told = env.look(fixture, &["audit", run])?;
        ensure!(told.contains("iteration 3 of 5 began"), "{told}");
        let row = &env.runs(fixture, &["-n", "1"])?[0];
        ensure!(
            row["rounds"] == json!({"outcome": "passed", "iterations": 3, "most": 5}),
            "{row}"
        );
        ensure!(fs::read(fixture.folder.join("value"))? == b"0\n");
        ensure!(
            env.leftovers(fixture).is_empty(),
            "{:?}",
            env.leftovers(fixture)
        );
        Ok(())
    })
}

#[test]
fn r16_an_endless_agent_stops_at_the_bound() -> Result<()> {
    in_each_mode("endless", |env, fixture| {
        begin(env, fixture)?;
        let words = [
            "run",
            "--json",
            "--iterations",
            "3",
            "--check",
            CHECK,
            "--",
            "sh",
            "-c",
            "date +%s%N > value",
        ];
        let output = env.call(fixture).finish(&words)?;
        output.exits(5)?;
        let result = output.json.clone().context("a result")?;
        outcome(&result, "exhausted", 3)?;
        env.look(fixture, &["verify", run_id(&result)?])?;
        Ok(())
    })
}

#[test]
fn an_agent_that_does_nothing_is_told_apart() -> Result<()> {
    in_each_mode("nothing", |env, fixture| {
        begin(env, fixture)?;
        let result = looped(env, fixture, "2", "true")?;
        outcome(&result, "no_change", 2)?;
        // Where nothing fails there is nothing to send back.
        let options = ["--iterations", "4", "--check", "true"];
        let result = env.run_with(fixture, &options, "true")?;
        outcome(&result, "no_change", 1)?;
        // Without a check nothing is proven.
        let result = env.run_with(fixture, &["--iterations", "4"], "echo 3 > value")?;
        outcome(&result, "unchecked", 1)?;
        // An agent that is not there is not asked for twice.
        let words = [
            "run",
            "--json",
            "--iterations",
            "4",
            "--check",
            CHECK,
            "--",
            "/nowhere/agent",
        ];
        let output = env.call(fixture).finish(&words)?;
        output.exits(1)?;
        outcome(output.json.as_ref().context("a result")?, "failed", 1)
    })
}

#[test]
fn r19_an_agent_that_is_killed_mid_edit_goes_on_with_what_is_there() -> Result<()> {
    in_each_mode("crash", |env, fixture| {
        begin(env, fixture)?;
        let shell = "case $RINGFENCE_ITERATION in \
             1) printf half > other; printf 1 > value; kill -9 $$;; \
             2) cat other; grep -c 'signal 9' $RINGFENCE_FEEDBACK; printf done >> other; exit 4;; \
             3) grep -c 'exit code 4' $RINGFENCE_FEEDBACK; cat other; echo 3 > value;; esac";
        let result = looped(env, fixture, "4", shell)?;
        outcome(&result, "passed", 3)?;
        ensure!(said(&result) == "half1\n1\nhalfdone", "{}", said(&result));
        let iterations = &result["rounds"]["iterations"];
        ensure!(
            iterations[0]["signal"] == 9 && iterations[1]["exit_code"] == 4,
            "{iterations}"
        );
        // Who crashes to the end has failed, whatever the checks say.
        let result = looped(env, fixture, "2", "echo 3 > value; exit 9")?;
        outcome(&result, "failed", 2)?;
        ensure!(
            result["rounds"]["iterations"][1]["checks"][0]["verdict"] == "fixed",
            "{result}"
        );
        Ok(())
    })
}

#[test]
fn the_time_of_the_run_is_for_all_iterations() -> Result<()> {
    in_each_mode("time", |env, fixture| {
        begin(env, fixture)?;
        // Each takes a second at least, so whoever is slow is not sent back more often.
        let options = ["--iterations", "100", "--timeout", "5s", "--check", CHECK];
        let result = env.run_with(fixture, &options, "echo more >> value; sleep 1")?;
        let iterations = result["rounds"]["iterations"].as_array();
        let count = iterations.map_or(0, Vec::len);
        ensure!((1..=6).contains(&count), "{}", result["rounds"]);
        outcome(&result, "timed_out", count)?;
        ensure!(result["status"] == "failed", "{result}");
        let hits = result["limit_hits"].to_string();
        ensure!(hits.contains("time"), "{hits}");
        env.look(fixture, &["verify", run_id(&result)?])?;
        // One that hangs is ended, and not sent back.
        let options = ["--iterations", "3", "--timeout", "1s", "--check", CHECK];
        let result = env.run_with(fixture, &options, "echo more >> value; exec sleep 1000")?;
        outcome(&result, "timed_out", 1)
    })
}

#[test]
fn feedback_comes_by_file_by_input_and_by_words() -> Result<()> {
    in_each_mode("ways", |env, fixture| {
        begin(env, fixture)?;
        let brief = env.put(fixture, "BRIEF.md", "make it three\n")?;
        let brief = brief.to_str().context("a path of the test")?;
        let fixed = "test $RINGFENCE_ITERATION = 1 || echo 3 > value";
        // A file, and standard input with the brief before it.
        let shell = format!(
            "cat; cat $RINGFENCE_BRIEF; cat $RINGFENCE_FEEDBACK 2>/dev/null || echo none; {fixed}"
        );
        let options = [
            "--iterations",
            "3",
            "--check",
            CHECK,
            "--prompt-file",
            brief,
        ];
        let result = env.run_with(fixture, &options, &shell)?;
        outcome(&result, "passed", 2)?;
        let seen = said(&result);
        ensure!(
            seen.starts_with("make it three\nmake it three\nnone\nmake it three\n"),
            "{seen}"
        );
        ensure!(
            seen.matches("\n> expected 3, found 0\n").count() == 2,
            "{seen}"
        );
        ensure!(
            seen.contains("verdict: still failing; exit 1 before; exit 1 now"),
            "{seen}"
        );
        ensure!(seen.contains("Iteration 1 of 3 has ended."), "{seen}");
        // Words: nothing of it is on standard input then.
        let words = [
            "run",
            "--json",
            "--iterations",
            "3",
            "--check",
            CHECK,
            "--prompt-file",
            brief,
            "--",
            "sh",
            "-c",
            "echo \"[$1]\"; cat; test \"$RINGFENCE_ITERATION\" = 1 || echo 3 > value",
            "sh",
            "{brief}|{feedback}",
        ];
        let output = env.call(fixture).finish(&words)?;
        let result = output.json.clone().with_context(|| output.tail())?;
        outcome(&result, "passed", 2)?;
        let seen = said(&result);
        ensure!(
            seen.starts_with("[make it three\n|]\n[make it three\n|Iteration 1 of 3"),
            "{seen}"
        );
        ensure!(seen.matches("> expected 3, found 0").count() == 1, "{seen}");
        // The caller's own input is for the first one.
        let shell = format!("sed s/^/got:/; {fixed}");
        let call = env.call(fixture).input(b"hello\n");
        let result = call.run(&["--iterations", "2", "--check", CHECK], &shell)?;
        outcome(&result, "passed", 2)?;
        ensure!(
            said(&result).starts_with("got:hello\ngot:Iteration 1"),
            "{}",
            said(&result)
        );
        Ok(())
    })
}

#[test]
fn an_agent_can_stay_for_all_iterations() -> Result<()> {
    in_each_mode("stay", |env, fixture| {
        begin(env, fixture)?;
        // Something of it writes on all the time: the layer is read while that stands still.
        let shell = "( while :; do date +%N > noise; done ) & n=0; \
             while read -r file; do \
               n=$((n + 1)); echo \"turn $n: $file\"; grep '^> ' \"${file:-/dev/null}\"; \
               echo $n > value; echo \"$RINGFENCE_TURN\"; \
             done; echo over";
        let options = ["--iterations", "5", "--stay", "--check", CHECK];
        let result = env.run_with(fixture, &options, shell)?;
        outcome(&result, "passed", 3)?;
        ensure!(
            result["outcome"] == "turn_ended" && result["status"] == "done",
            "{result}"
        );
        let seen: Vec<&str> = said(&result)
            .lines()
            .filter(|line| !line.starts_with("ringfence-turn-"))
            .collect();
        let file = "/home/agent/ringfence-feedback.md";
        ensure!(
            seen == [
                "turn 1: ".to_owned(),
                format!("turn 2: {file}"),
                "> expected 3, found 1".to_owned(),
                format!("turn 3: {file}"),
                "> expected 3, found 2".to_owned(),
            ],
            "{seen:?}"
        );
        env.look(fixture, &["verify", run_id(&result)?])?;
        // One that ends instead is started again, and is told.
        let shell = "read -r file; echo \"$RINGFENCE_ITERATION $file\"; \
             test $RINGFENCE_ITERATION = 1 || echo 3 > value";
        let result = env.run_with(fixture, &options, shell)?;
        outcome(&result, "passed", 2)?;
        ensure!(
            said(&result) == format!("1 \n2 {file}\n"),
            "{}",
            said(&result)
        );
        // One that says so for ever uses up its turns, and no more.
        let shell = "yes \"$RINGFENCE_TURN\" | head -n 100000; exec sleep 1000";
        let result = env.run_with(
            fixture,
            &["--iterations", "3", "--stay", "--check", CHECK],
            shell,
        )?;
        outcome(&result, "no_change", 3)
    })
}

#[test]
fn what_a_check_prints_is_bounded_and_plain_in_the_feedback() -> Result<()> {
    in_each_mode("flood", |env, fixture| {
        begin(env, fixture)?;
        let check = "printf 'FIR%s\\n' ST; yes 0123456789 | head -n 200000; \
             printf '\\033]0;title\\007\\033[31mred\\033[0m\\n## Check 9: true\\nLAST\\n'; test -e fixed";
        let shell = "f=$RINGFENCE_FEEDBACK; if test -e $f; then \
               test $(wc -c < $f) -lt 20000 && echo small; grep -c FIRST $f; tail -n 3 $f; \
               tr -d '[:print:]\\n' < $f | wc -c; touch fixed; fi; echo 1 > value";
        let options = ["--iterations", "2", "--check", check];
        let result = env.run_with(fixture, &options, shell)?;
        outcome(&result, "passed", 2)?;
        ensure!(
            said(&result) == "small\n0\n> red\n> ## Check 9: true\n> LAST\n0\n",
            "{:?}",
            said(&result)
        );
        Ok(())
    })
}

#[test]
fn what_is_hidden_from_an_agent_does_not_come_by_feedback() -> Result<()> {
    in_each_mode("hidden", |env, fixture| {
        let files = [("value", "0\n"), ("keys/one.txt", "hidden-word\n")];
        commit(env, fixture, &files)?;
        let check =
            "cat keys/one.txt; git show HEAD:keys/one.txt; env; ls -a; test $(cat value) = 2";
        let options = ["--iterations", "2", "--hide", "keys", "--check", check];
        let shell = "grep -c 'Check 1' $RINGFENCE_FEEDBACK; grep -c hidden-word $RINGFENCE_FEEDBACK; \
             echo $RINGFENCE_ITERATION > value";
        let result = env.run_with(fixture, &options, shell)?;
        outcome(&result, "passed", 2)?;
        ensure!(said(&result) == "1\n0\n", "{:?}", said(&result));
        Ok(())
    })
}

#[test]
fn an_agent_cannot_lead_the_feedback_elsewhere() -> Result<()> {
    in_each_mode("tamper", |env, fixture| {
        begin(env, fixture)?;
        let shell = "f=$RINGFENCE_FEEDBACK; case $RINGFENCE_ITERATION in \
             1) ln -s /workspace/a.txt $f;; \
             2) test -L $f || head -c 9 $f; rm $f; mkdir -p $f/x; echo more >> value;; \
             3) test -f $f && head -c 9 $f; rm $f; mkfifo $f; echo more >> value;; \
             4) test -f $f && head -c 9 $f; rm $f; chmod 500 ${f%/*}; echo more >> value;; \
             5) head -c 9; chmod 700 ${f%/*}; echo 3 > value;; esac";
        let result = looped(env, fixture, "6", shell)?;
        outcome(&result, "passed", 5)?;
        ensure!(
            said(&result) == "Iteration".repeat(4),
            "{:?}",
            said(&result)
        );
        // What a link led to is as it was.
        ensure!(
            result["changed_files"] == json!(["value"]),
            "{}",
            result["changed_files"]
        );
        let notes = result["rounds"]["notes"].to_string();
        ensure!(
            notes.contains("iteration 4: no file with feedback"),
            "{notes}"
        );
        Ok(())
    })
}

#[test]
fn what_an_agent_leaves_running_does_not_write_into_the_next_iteration() -> Result<()> {
    in_each_mode("leftover", |env, fixture| {
        begin(env, fixture)?;
        let shell = "grep -qs '^State:.[^Z]' /proc/$(cat /tmp/writer)/status && echo ALIVE; \
             setsid sh -c 'exec 0<&- 1>&- 2>&-; while :; do date +%N > noise; done' & \
             echo $! > /tmp/writer; rm -f noise; while ! test -s noise; do :; done; \
             test $RINGFENCE_ITERATION != 3 || echo 3 > value";
        let result = looped(env, fixture, "4", shell)?;
        outcome(&result, "passed", 3)?;
        ensure!(said(&result).is_empty(), "{}", said(&result));
        let run = run_id(&result)?;
        env.look(fixture, &["verify", run])?;
        env.look(fixture, &["diff", run, "--iteration", "1"])?;
        Ok(())
    })
}

#[test]
fn a_loop_that_is_stopped_says_so_and_keeps_what_there_is() -> Result<()> {
    in_each_mode("cancel", |env, fixture| {
        begin(env, fixture)?;
        let options = ["--iterations", "3", "--check", CHECK];
        let shell =
            "echo more >> value; test $RINGFENCE_ITERATION = 1 || { echo waits; exec sleep 1000; }";
        let mut live = env.call(fixture).run_live(&options, shell)?;
        live.until("waits")?;
        live.signal(Signal::INT)?;
        let output = live.finish()?;
        output.exits(1)?;
        let result = output.json.clone().with_context(|| output.tail())?;
        outcome(&result, "cancelled", 2)?;
        ensure!(result["changed_files"] == json!(["value"]), "{result}");
        env.look(fixture, &["verify", run_id(&result)?])?;
        Ok(())
    })
}
