//! R28, R47: a campaign runs all its tasks, says what became of each, and goes on after whatever
//! stopped it, without doing anything twice.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::campaign::{commit_all, plan, refused, tree};
use crate::support::{Fixture, Sandboxed, in_each_mode};

/// Does what the files of its task say.
pub const AGENT: &str = r#"#!/bin/sh
for file in $(sed -n 's/^- //p'); do
  case $(head -1 "$file") in
    old*beyond) sed -i s/old/new/ "$file"; echo x >> src/a.txt; echo x > made ;;
    old*) sed -i s/old/new/ "$file" ;;
    crash) exit 3 ;;
    idle) : ;;
    lie) echo broken > "$file"; echo '{"status":"success"}' > "$RINGFENCE_RESULT" ;;
    hang) sleep 100000 ;;
    loud) exec yes ;;
    fat) head -c 60000000 /dev/zero > large ;;
    slowcheck) echo SLOW > "$file" ;;
    wait) echo waiting; sleep 100000 ;;
  esac
done
"#;

const SPLIT: &str = "[split]\nfiles = 'src/*.txt'\nper_task = 1\n[checks]\n\
    final = ['! grep -rq broken src', '! grep -q SLOW src/*.txt || sleep 100000']\n";

pub fn prepare(
    env: &Sandboxed,
    fixture: &Fixture,
    files: &[(&str, &str)],
    more: &str,
) -> Result<()> {
    tree(env, fixture, files)?;
    env.put(fixture, "agent.sh", AGENT)?;
    env.as_owner(fixture, &fixture.folder, &["chmod", "+x", "agent.sh"])?;
    plan(env, fixture, &format!("{SPLIT}{more}"))?;
    commit_all(env, fixture)
}

/// Words, their exit code, and what they said.
pub fn campaign(env: &Sandboxed, fixture: &Fixture, words: &[&str], code: i32) -> Result<String> {
    let output = env.ringfence(fixture, 240, &[&["campaign"], words].concat())?;
    output.exits(code)?;
    Ok(format!("{}{}", output.stdout, output.stderr))
}

pub fn report(env: &Sandboxed, fixture: &Fixture, name: &str) -> Result<Value> {
    let text = env.look(fixture, &["campaign", "report", name, "--json"])?;
    Ok(serde_json::from_str(&text)?)
}

pub fn tasks(report: &Value) -> Vec<&Value> {
    report["tasks"].as_array().into_iter().flatten().collect()
}

/// The state of each task, in their order.
pub fn states(report: &Value) -> Vec<&str> {
    tasks(report)
        .into_iter()
        .filter_map(|task| task["state"].as_str())
        .collect()
}

pub fn runs(task: &Value) -> usize {
    task["runs"].as_array().map_or(0, Vec::len)
}

#[test]
fn whatever_one_task_does_the_others_go_on_and_the_report_says_it() -> Result<()> {
    in_each_mode("faults", |env, fixture| {
        let files = [
            ("src/a.txt", "old a\n"),
            ("src/b.txt", "crash\n"),
            ("src/c.txt", "idle\n"),
            ("src/d.txt", "lie\n"),
            ("src/e.txt", "hang\n"),
            ("src/f.txt", "loud\n"),
            ("src/g.txt", "slowcheck\n"),
            ("src/h.txt", "fat\n"),
            ("src/i.txt", "old and beyond\n"),
        ];
        let limits = "[limits]\ntime = '12s'\noutput = '1M'\ndisk = '8M'\n";
        prepare(env, fixture, &files, limits)?;
        let said = campaign(env, fixture, &["run", "plan.toml", "--parallel", "4"], 1)?;
        let report = report(env, fixture, "c")?;
        let expected = [
            "passed",
            "failed",
            "no_change",
            "exhausted",
            "failed",
            "failed",
            "exhausted",
            "failed",
            "passed",
        ];
        ensure!(states(&report) == expected, "{report:#}");
        ensure!(report["progress"] == "finished", "{report:#}");
        let whys: Vec<&str> = tasks(&report)
            .iter()
            .map(|task| task["why"].as_str().unwrap_or_default())
            .collect();
        for (at, part) in [
            (1, "exited with 3"),
            (2, "changed nothing"),
            (3, "a check does not hold: ! grep -rq broken src"),
            (4, "time limit"),
            (5, "output limit"),
            (6, "a check was stopped at its time limit: ! grep -q SLOW"),
            (7, "disk limit"),
        ] {
            ensure!(whys[at].contains(part), "{at}: {whys:?}");
        }
        let markdown = env.look(fixture, &["campaign", "report", "c"])?;
        for task in tasks(&report) {
            let id = task["id"].as_str().context("no id")?;
            let word = task["state"].as_str().unwrap_or_default().replace('_', " ");
            let row = markdown.lines().find(|line| line.contains(id));
            ensure!(row.is_some_and(|row| row.contains(&word)), "{markdown}");
            ensure!(runs(task) == 1, "{task}");
        }
        for part in [
            "ringfence review --campaign c",
            "campaign resume c --failed",
            "exited with 3",
            "| `src/i.txt` | passed |",
            "  - also changed 1 file of other tasks and 1 file of no task:\n    - `src/a.txt`, of task 1\n    - `made`\n",
        ] {
            ensure!(markdown.contains(part), "{part}: {markdown}");
        }
        ensure!(
            said.contains("[9/9]") && said.contains("2 passed"),
            "{said}"
        );
        let strayed = "(src/i.txt) passed";
        let line = said.lines().find(|line| line.contains(strayed));
        let line = line.context("the task is not told")?;
        ensure!(
            line.contains("also changed 1 file of other tasks and 1 file of no task"),
            "{line}"
        );
        let other = &tasks(&report)[8]["strayed"]["files"][0];
        ensure!(
            other["path"] == "src/a.txt" && other["task"] == 1,
            "{other}"
        );
        let shown = tasks(&report)[1]["run"].as_str().context("no run")?;
        ensure!(
            markdown.contains(&format!("look at it: `ringfence show {shown}`")),
            "{markdown}"
        );
        // Nothing in the folder has changed.
        let changed = env.git(fixture, &fixture.folder, &["status", "--short"])?;
        ensure!(changed.trim().is_empty(), "{changed}");
        the_held_are_reviewed_in_order(env, fixture, &report)
    })
}

fn the_held_are_reviewed_in_order(
    env: &Sandboxed,
    fixture: &Fixture,
    report: &Value,
) -> Result<()> {
    let page = env.look(fixture, &["review", "--campaign", "c", "--plain"])?;
    let mut after = 0;
    for task in tasks(report) {
        let run = task["run"].as_str().unwrap_or_default();
        let changed = task["figures"]["changed_files"].as_u64().unwrap_or(0);
        if changed > 0 {
            let at = page[after..].find(run).context("a held run is not shown")?;
            let named = format!("task {} of campaign c\n", task["number"]);
            ensure!(page[after..after + at].contains(&named), "{named}: {page}");
            after += at;
        } else {
            ensure!(
                !page.contains(&format!("Run {run}")),
                "{run} has nothing to show"
            );
        }
    }
    let listed = env.runs(fixture, &["--campaign", "c", "-n", "50"])?;
    ensure!(listed.len() == 9, "{listed:?}");
    ensure!(listed[0]["campaign"]["name"] == "c", "{}", listed[0]);
    Ok(())
}

#[test]
fn a_check_that_hangs_is_told_apart_from_an_agent_that_does() -> Result<()> {
    in_each_mode("hanging", |env, fixture| {
        let files = [("src/a.txt", "slowcheck\n"), ("src/b.txt", "hang\n")];
        let more = "[loop]\niterations = 3\n[limits]\ntime = '3s'\n";
        prepare(env, fixture, &files, more)?;
        campaign(env, fixture, &["run", "plan.toml", "--parallel", "2"], 1)?;
        let report = report(env, fixture, "c")?;
        ensure!(states(&report) == ["failed", "failed"], "{report:#}");
        let why = |at: usize| tasks(&report)[at]["why"].as_str().unwrap_or_default();
        ensure!(
            why(0).starts_with("a check was stopped at its time limit: ! grep -q SLOW")
                && why(0).ends_with("; no time was left to send the agent back"),
            "{}",
            why(0)
        );
        ensure!(why(1).starts_with("the agent was stopped"), "{}", why(1));
        // The page of the run does not blame the agent either.
        let run = tasks(&report)[0]["run"].as_str().context("no run")?;
        let page = env.look(fixture, &["show", run])?;
        let ended = "the command was not sent back because the time of the run was over; it exited with 0 after ";
        ensure!(page.contains(ended), "{page}");
        Ok(())
    })
}

#[test]
fn what_nobody_checked_is_called_so() -> Result<()> {
    in_each_mode("unchecked", |env, fixture| {
        prepare(env, fixture, &[("src/a.txt", "old a\n")], "")?;
        plan(env, fixture, "[split]\nfiles = 'src/*.txt'\n")?;
        let said = campaign(env, fixture, &["run", "plan.toml"], 0)?;
        ensure!(said.contains("(src/a.txt) passed, not checked "), "{said}");
        let markdown = env.look(fixture, &["campaign", "report", "c"])?;
        ensure!(markdown.contains("| passed, not checked |"), "{markdown}");
        Ok(())
    })
}

#[test]
fn an_agent_that_is_not_there_is_named_for_each_task() -> Result<()> {
    in_each_mode("missing", |env, fixture| {
        prepare(
            env,
            fixture,
            &[("src/a.txt", "x\n"), ("src/b.txt", "y\n")],
            "",
        )?;
        let text = format!("name = 'm'\nbrief = 'BRIEF.md'\ncommand = ['./none.sh']\n{SPLIT}");
        env.put(fixture, "plan.toml", text)?;
        let said = campaign(env, fixture, &["run", "plan.toml"], 1)?;
        ensure!(
            said.contains("uncommitted changes cannot go on a branch"),
            "{said}"
        );
        let report = report(env, fixture, "m")?;
        ensure!(states(&report) == ["failed", "failed"], "{report:#}");
        for task in tasks(&report) {
            let why = task["why"].as_str().unwrap_or_default();
            ensure!(why.contains("was not started"), "{why}");
        }

        // One by a name that nobody knows, and one that is not ready: nothing is recorded.
        for (agent, plans, part) in [
            ("cluade", 2, "there is no agent `cluade`"),
            ("gemini", 0, "agent `gemini`"),
        ] {
            let text = format!("name = 'n'\nbrief = 'BRIEF.md'\nagent = '{agent}'\n{SPLIT}");
            env.put(fixture, "plan.toml", text)?;
            let said = campaign(env, fixture, &["plan", "plan.toml"], plans)?;
            ensure!(said.contains(part), "{said}");
            let words = ["campaign", "run", "plan.toml"];
            let asked = ["run", "--agent", agent, "--prompt", "x"];
            let alone = env.ringfence(fixture, 60, &asked)?;
            let code = alone.status.code().context("it did not exit")?;
            let run = env.ringfence(fixture, 60, &words)?;
            run.exits(code)?;
            ensure!(run.stderr.contains(part), "{run:?}");
            let hint = |text: &str| {
                text.lines()
                    .find(|line| line.contains("hint"))
                    .map(str::to_owned)
            };
            ensure!(
                hint(&run.stderr) == hint(&alone.stderr),
                "{run:?} {alone:?}"
            );
        }
        let listed = env.look(fixture, &["campaign", "list"])?;
        ensure!(listed.lines().count() == 1, "{listed}");
        Ok(())
    })
}

#[test]
fn a_budget_a_moved_base_and_an_edited_plan_are_told_and_gone_on_from() -> Result<()> {
    in_each_mode("moved", |env, fixture| {
        let files = [
            ("src/a.txt", "old a\n"),
            ("src/b.txt", "old b\n"),
            ("src/c.txt", "old c\n"),
        ];
        prepare(
            env,
            fixture,
            &files,
            "[run]\nparallel = 1\n[budget]\ntasks = 1\n",
        )?;
        let said = campaign(env, fixture, &["run", "plan.toml"], 1)?;
        ensure!(said.contains("the budget of tasks is spent"), "{said}");
        let hint = "ringfence campaign resume c --budget-tasks 3\n";
        ensure!(said.contains(hint), "{said}");
        let spent = report(env, fixture, "c")?;
        ensure!(
            states(&spent) == ["passed", "skipped", "skipped"],
            "{spent:#}"
        );

        // A task whose files somebody edits is not what was planned; others are.
        env.put(fixture, "src/b.txt", "old b, by hand\n")?;
        campaign(env, fixture, &["resume", "c", "--budget-tasks", "2"], 1)?;
        let edited = report(env, fixture, "c")?;
        ensure!(
            states(&edited) == ["passed", "base_moved", "passed"],
            "{edited:#}"
        );
        let why = tasks(&edited)[1]["why"].as_str().unwrap_or_default();
        ensure!(why.contains("were changed since it was planned"), "{why}");

        // A commit moves the base of all that is not done.
        commit_all(env, fixture)?;
        let said = campaign(env, fixture, &["resume", "c", "--budget-tasks", "9"], 1)?;
        ensure!(
            said.contains("ringfence campaign resume c --plan PLAN\n"),
            "{said}"
        );
        let moved = report(env, fixture, "c")?;
        ensure!(
            states(&moved) == ["passed", "base_moved", "passed"],
            "{moved:#}"
        );

        // The plan is read anew: what is done stays, what is new comes, what is gone is dropped.
        env.put(fixture, "src/d.txt", "old d\n")?;
        let text = std::fs::read_to_string(fixture.folder.join("plan.toml"))?;
        let text = text.replace("files = 'src/*.txt'", "files = 'src/[abd].txt'");
        env.put(
            fixture,
            "plan.toml",
            text.replace("tasks = 1", "tasks = 50"),
        )?;
        let diff = env.look(fixture, &["campaign", "plan", "plan.toml"])?;
        ensure!(
            diff.contains("2 tasks the same, 1 added, 1 removed"),
            "{diff}"
        );
        campaign(env, fixture, &["resume", "c", "--plan", "plan.toml"], 0)?;
        let done = report(env, fixture, "c")?;
        let expected = ["passed", "passed", "passed", "dropped"];
        ensure!(states(&done) == expected, "{done:#}");
        ensure!(runs(tasks(&done)[0]) == 1, "{done:#}");
        let none = refused(
            env,
            fixture,
            &["campaign", "plan", "plan.toml", "--against", "z"],
            2,
        )?;
        ensure!(none.stderr.contains("no file and no campaign"), "{none:?}");
        Ok(())
    })
}

#[test]
fn of_several_attempts_the_best_counts() -> Result<()> {
    in_each_mode("attempts", |env, fixture| {
        prepare(
            env,
            fixture,
            &[("src/a.txt", "old a\n")],
            "[loop]\nattempts = 3\n",
        )?;
        // Each attempt is another one: the clock goes on.
        let agent =
            "#!/bin/sh\ncat > /dev/null; sed -i s/old/new/ src/a.txt; date +%N >> src/a.txt\n";
        env.put(fixture, "agent.sh", agent)?;
        let said = campaign(env, fixture, &["run", "plan.toml", "--parallel", "3"], 0)?;
        let report = report(env, fixture, "c")?;
        let task = tasks(&report)[0];
        ensure!(task["state"] == "passed" && runs(task) == 3, "{task:#}");
        let why = task["why"].as_str().unwrap_or_default();
        ensure!(why.starts_with("the best of 3 attempts"), "{why}");
        ensure!(
            said.contains("(src/a.txt) passed (best of 3 attempts)"),
            "{said}"
        );
        ensure!(said.contains("c: 1 task, 3 at once"), "{said}");
        let markdown = env.look(fixture, &["campaign", "report", "c"])?;
        ensure!(
            markdown.contains("| passed, best of 3 attempts |"),
            "{markdown}"
        );
        let best = task["run"].as_str().context("none is chosen")?;
        let shown = env.runs(fixture, &["--campaign", "c"])?;
        ensure!(shown.len() == 1 && shown[0]["run"] == best, "{shown:?}");
        let all = env.runs(fixture, &["--campaign", "c", "--all"])?;
        ensure!(all.len() == 3, "{all:?}");
        Ok(())
    })
}

/// R47: clashing files and ports, on one repository, from two campaigns at once.
#[test]
fn many_tasks_of_two_campaigns_on_one_folder_are_apart() -> Result<()> {
    const COUNT: usize = 12;
    in_each_mode("apart", |env, fixture| {
        let names: Vec<String> = (0..COUNT).map(|at| format!("src/{at:02}.txt")).collect();
        let texts: Vec<String> = (0..COUNT).map(|at| format!("old {at}\n")).collect();
        let files = names.iter().zip(&texts);
        let files: Vec<(&str, &str)> = files.map(|(name, text)| (&**name, &**text)).collect();
        let agent = "#!/bin/sh\nfile=$(sed -n 's/^- //p')\nsed -i s/old/new/ \"$file\"\n\
            echo \"$file\" > shared.txt; echo \"$file\" > /tmp/same\n\
            python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 4747))' || exit 9\n\
            test \"$(cat /tmp/same)\" = \"$file\"\n";
        prepare(env, fixture, &files, "[run]\nparallel = 6\n")?;
        env.put(fixture, "agent.sh", agent)?;
        let first = env
            .call(fixture)
            .live(&["campaign", "run", "plan.toml", "--name", "one"])?;
        let second = env
            .call(fixture)
            .live(&["campaign", "run", "plan.toml", "--name", "two"])?;
        first.finish()?.exits(0)?;
        second.finish()?.exits(0)?;
        for name in ["one", "two"] {
            let report = report(env, fixture, name)?;
            let mut patches = BTreeMap::new();
            for (at, task) in tasks(&report).into_iter().enumerate() {
                let run = task["run"].as_str().context("no run")?;
                let patch = env.look(fixture, &["diff", run])?;
                let own = format!("+new {at}\n");
                ensure!(patch.contains(&own), "{at}: {patch}");
                ensure!(
                    patch.contains(&format!("+src/{at:02}.txt")),
                    "{at}: {patch}"
                );
                patches.insert(patch, run.to_owned());
            }
            ensure!(patches.len() == COUNT, "{} patches", patches.len());
            // What happened is told of one of them, with its runs.
            let told = env.look(fixture, &["events", name, "--json", "-n", "100000"])?;
            for (what, count) in [
                ("campaign.began", 1),
                ("task.passed", COUNT),
                ("run.began", COUNT),
                ("run.ended", COUNT),
            ] {
                let what = format!("\"what\":\"{what}\"");
                ensure!(told.matches(&what).count() == count, "{what}: {told}");
            }
        }
        refused(env, fixture, &["events", "three"], 2)?;
        let listed = env.look(fixture, &["campaign", "list"])?;
        ensure!(listed.matches("12 passed").count() == 2, "{listed}");
        Ok(())
    })
}

#[test]
fn what_is_to_be_first_is_over_before_others_begin() -> Result<()> {
    in_each_mode("order", |env, fixture| {
        let files = [
            ("src/a.txt", "old a\n"),
            ("src/b.txt", "old b\n"),
            ("src/c.txt", "old c\n"),
            ("src/z.txt", "old z\n"),
        ];
        tree(env, fixture, &files)?;
        let more = "first = 'src/z.txt'\nlast = 'src/a.txt'\n[run]\nparallel = 4\n";
        let split = "[split]\nfiles = 'src/*.txt'\nper_task = 1\n";
        prepare(env, fixture, &files, "")?;
        plan(env, fixture, &format!("{split}{more}"))?;
        env.ringfence(fixture, 120, &["campaign", "run", "plan.toml"])?
            .exits(0)?;
        // By when runs began and ended; lines of several tasks may be told in any order.
        let mut times = vec![(i64::MAX, 0); 4];
        for run in env.runs(fixture, &["--campaign", "c", "-n", "50"])? {
            let number = run["campaign"]["number"].as_u64().context("no number")?;
            let (began, ended) = &mut times[number as usize - 1];
            *began = run["created_us"].as_i64().context("no begin")?.min(*began);
            *ended = run["ended_us"].as_i64().context("no end")?.max(*ended);
        }
        let between = &times[1..3];
        ensure!(
            between.iter().all(|(began, _)| *began >= times[0].1),
            "before the first was over: {times:?}"
        );
        ensure!(
            between.iter().all(|(_, ended)| *ended <= times[3].0),
            "the last began before: {times:?}"
        );
        Ok(())
    })
}
