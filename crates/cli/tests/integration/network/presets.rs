//! Agents of the user's own, and all that can be wrong with one before it starts.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::model::Model;
use super::policy;
use super::secrets::VALUE;
use crate::support::{Fixture, PATH, Sandboxed, in_each_mode_in_turn};

/// Writes `agents/NAME.toml` into the home of Ringfence.
fn agent(fixture: &Fixture, name: &str, text: &str) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = fs::metadata(&fixture.folder)?;
    let directory = fixture.state.join("agents");
    fs::create_dir_all(&directory)?;
    let file = directory.join(format!("{name}.toml"));
    fs::write(&file, text)?;
    for path in [&fixture.state, &directory, &file] {
        chown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&fixture.state, fs::Permissions::from_mode(0o700))?;
    Ok(())
}

fn result(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Value> {
    let line = [&["run", "--json"][..], words].concat();
    let output = env
        .call(fixture)
        .variable("MY_KEY", VALUE)
        .input(b"Said on standard input.")
        .finish(&line)?;
    let tail = output.tail();
    output.json.with_context(|| format!("{words:?}: {tail}"))
}

fn text(result: &Value) -> Result<String> {
    let patch = crate::support::patch(result)?;
    Ok(String::from_utf8_lossy(&patch).into_owned())
}

const OWN: &str = r#"
about = "An agent of the user's own"
command = ["sh", "-c", '''
    cat > told; cat ~/.own/conf > conf; stat -c '%a %U' ~/.own/conf >> conf
    curl -sS -H "Authorization: Bearer $MY_KEY" "$BASE/v1/responses" -d '{}' > answer
    echo '{"type":"end","in":3,"out":-4,"cost":0.5,"said":"done"}'
    echo '{"type":"end","in":4,"cost":1e99}'
    printf '{"type":"end","in":%s1%s}\n' "$(printf '[%.0s' $(seq 5000))" "$(printf ']%.0s' $(seq 5000))"
    echo "$@" > words
''', "sh"]
keys = ["MY_KEY"]
base_url = { variable = "MY_BASE_URL", usual = "https://gateway.example/usual" }
[env]
set = { BASE = "{base_url}" }
[network]
allow = ["gateway.example:443"]
[secrets.MY_KEY]
from = "env:MY_KEY"
hosts = ["gateway.example"]
[[home]]
path = ".own/conf"
text = "base {base_url} at {workspace}\n"
[result]
input_tokens = "end:in"
output_tokens = "end:out"
cost_usd = "end:cost"
text = "end:said"
"#;

#[test]
fn an_agent_of_the_users_own_is_started_told_and_read() -> Result<()> {
    let model = Model::start("edit")?;
    in_each_mode_in_turn("own", |env, fixture| {
        agent(fixture, "own", OWN)?;
        let file = policy(fixture, &model.policy())?;
        let file = file.to_string_lossy();
        let before = model.seen(0)?.len();
        let words = ["--policy", &file, "--agent", "own", "--", "more", "words"];
        let ran = result(env, fixture, &words)?;
        let patch = text(&ran)?;
        for line in [
            "+Said on standard input.",
            "+base https://gateway.example/usual at /workspace",
            "+600 agent",
            "+more words",
        ] {
            ensure!(patch.contains(line), "{line}: {patch}");
        }
        ensure!(!patch.contains(VALUE), "{patch}");
        let asked = model.seen(before)?;
        ensure!(
            asked.iter().any(|one| one["path"] == "/usual/v1/responses"
                && one["head"]["authorization"] == format!("Bearer {VALUE}")),
            "{asked:?}"
        );
        // Two lines were numbers, one of them more than there can be; the rest of what it says of itself is
        // nothing.
        let most = 1_000_000_000_000_u64;
        let usage =
            json!({"agent": "own", "input_tokens": 7, "cost_usd_micros": most, "text": "done"});
        ensure!(ran["usage"] == usage, "{}", ran["usage"]);
        let bundle = ran["bundle"].as_str().unwrap_or_default();
        env.look(fixture, &["verify", bundle])?;

        // The user's own gateway, and a prompt that is typed.
        let output = env.call(fixture).variable("MY_KEY", VALUE).finish(&[
            "run",
            "--json",
            "--policy",
            &file,
            "--env",
            "MY_BASE_URL=https://gateway.example/own/",
            "--agent",
            "own",
            "--prompt",
            "Typed.",
        ])?;
        let ran = output.json.clone().with_context(|| output.tail())?;
        ensure!(text(&ran)?.contains("+Typed."), "{}", output.tail());
        let last = model.seen(0)?.pop().context("nothing was asked")?;
        ensure!(last["path"] == "/own/v1/responses", "{last}");
        Ok(())
    })
}

#[test]
fn a_prompt_can_be_a_word_or_a_file_and_plans_name_agents() -> Result<()> {
    in_each_mode_in_turn("told", |env, fixture| {
        agent(
            fixture,
            "word",
            "command = ['sh', '-c', 'echo \"$1\" > word', 'sh', '{brief}']",
        )?;
        agent(
            fixture,
            "file",
            "extends = 'word'\ncommand = ['cp', '{brief_file}', 'file']",
        )?;
        let ran = result(
            env,
            fixture,
            &["--agent", "word", "--prompt", "a 'word'\n{base_url}"],
        )?;
        ensure!(
            text(&ran)?.contains("+a 'word'\n+{base_url}"),
            "{}",
            text(&ran)?
        );
        let ran = result(env, fixture, &["--agent", "file"])?;
        ensure!(
            text(&ran)?.contains("+Said on standard input."),
            "{}",
            text(&ran)?
        );

        env.put(fixture, "BRIEF.md", "Make it so.\n")?;
        let plan = "name = 'p'\nbrief = 'BRIEF.md'\nagent = 'word'\n[split]\nfiles = 'a.txt'\n";
        env.put(fixture, "plan.toml", plan)?;
        env.look(
            fixture,
            &["campaign", "plan", "plan.toml", "--write", "tasks"],
        )?;
        let tasks = fixture.folder.join("tasks");
        let task = fs::read_dir(&tasks)?.next().context("no task")??.path();
        let task = task.to_string_lossy();
        let ran = result(env, fixture, &["--unchecked", "--task", &task])?;
        ensure!(text(&ran)?.contains("+Make it so."), "{}", text(&ran)?);
        // What is typed counts more.
        let ran = result(
            env,
            fixture,
            &["--unchecked", "--task", &task, "--agent", "file"],
        )?;
        ensure!(
            ran["changed_files"].to_string().contains("file"),
            "{}",
            ran["changed_files"]
        );
        let ran = result(
            env,
            fixture,
            &["--unchecked", "--task", &task, "--", "touch", "typed"],
        )?;
        ensure!(
            ran["changed_files"] == json!(["typed"]),
            "{}",
            ran["changed_files"]
        );
        Ok(())
    })
}

#[test]
fn an_agent_that_cannot_be_started_is_told_before_anything_begins() -> Result<()> {
    in_each_mode_in_turn("cannot", |env, fixture| {
        agent(
            fixture,
            "gone",
            "command = ['no-such-agent']\ninstall = 'make no-such-agent'",
        )?;
        agent(fixture, "broken", "comand = ['sh']")?;
        agent(fixture, "own", OWN)?;
        agent(fixture, "plain", "command = ['sh', '-c', 'exit 3']")?;
        // A program of the folder is none of the host.
        let trap = env.put(fixture, "no-such-agent", "#!/bin/sh\n")?;
        env.as_owner(
            fixture,
            Path::new("/"),
            &["chmod", "755", &trap.to_string_lossy()],
        )?;
        let path = format!("{}:{PATH}", fixture.folder.display());
        let denies = policy(fixture, "[network]\ndeny = ['gateway.example']\n")?;
        let denies = denies.to_string_lossy();
        for (words, code, parts) in [
            (
                &["nobody"][..],
                2,
                &["there is no agent `nobody`", "claude", "ringfence agents"][..],
            ),
            (&["../own"], 2, &["there is no agent `../own`"]),
            (
                &["gone"],
                4,
                &[
                    "needs the program `no-such-agent`",
                    "install it: make no-such-agent",
                ],
            ),
            (
                &["broken"],
                2,
                &["broken.toml:1:1", "`comand` is not known here"],
            ),
            (&["own"], 4, &["none of MY_KEY is set", "export MY_KEY="]),
            (
                &["own", "--env", "MY_KEY=0123456789", "--policy", &denies],
                3,
                &["asks its model at `gateway.example`", "policy.toml:2"],
            ),
        ] {
            let line = [&["run", "--prompt", "x", "--agent"][..], words].concat();
            let output = env.call(fixture).variable("PATH", &path).finish(&line)?;
            output.exits(code)?;
            for part in parts {
                ensure!(
                    output.stderr.contains(part),
                    "{words:?}: {part}: {}",
                    output.stderr
                );
            }
        }
        let none = env.call(fixture).finish(&["run", "--agent", "plain"])?;
        ensure!(
            none.stderr.contains("the prompt is empty"),
            "{}",
            none.stderr
        );
        ensure!(env.runs(fixture, &[])?.is_empty(), "something began");
        // How it ends is its own.
        let ran = result(env, fixture, &["--agent", "plain"])?;
        ensure!(ran["status"] == "failed" && ran["exit_code"] == 3, "{ran}");
        Ok(())
    })
}

#[test]
fn agents_are_listed_with_what_each_needs_and_no_value() -> Result<()> {
    in_each_mode_in_turn("listed", |env, fixture| {
        agent(fixture, "own", OWN)?;
        agent(fixture, "broken", "comand = ['sh']")?;
        let call = env.call(fixture).variable("MY_KEY", VALUE);
        let output = call.finish(&["agents", "--json"])?;
        output.exits(0)?;
        let lines = output.stdout.lines().map(serde_json::from_str);
        let all: Vec<Value> = lines.collect::<Result<_, _>>()?;
        let one = |name: &str| {
            all.iter()
                .find(|one| one["agent"] == name)
                .context("not listed")
        };
        for name in ["claude", "codex", "gemini", "opencode", "aider"] {
            let known = one(name)?;
            ensure!(
                known["install"].is_string() && known["keys"][0]["name"].is_string(),
                "{known}"
            );
        }
        let own = one("own")?;
        ensure!(
            own["ready"] == true && own["keys"] == json!([{"name": "MY_KEY", "set": true}]),
            "{own}"
        );
        ensure!(own["hosts"] == json!(["gateway.example:443"]), "{own}");
        ensure!(one("broken")?["ready"] == false);
        let words = call.finish(&["agents"])?;
        ensure!(
            words.stdout.contains("broken") && words.stdout.contains("cannot be used"),
            "{}",
            words.stdout
        );
        let full = call.finish(&["agents", "own"])?;
        ensure!(
            full.stdout.contains("MY_KEY: set") && full.stdout.contains("~/.own/conf"),
            "{}",
            full.stdout
        );
        for output in [&output, &words, &full] {
            ensure!(!output.stdout.contains(VALUE), "the value is shown");
        }
        Ok(())
    })
}

/// A setup may leave anything in the home of its environment; nothing is written through it.
#[test]
fn a_link_in_the_home_leads_no_settings_elsewhere() -> Result<()> {
    in_each_mode_in_turn("links", |env, fixture| {
        agent(
            fixture,
            "own",
            "command = ['sh', '-c', 'cat ~/.own/conf > seen']\n[[home]]\npath = '.own/conf'\ntext = 'ours'",
        )?;
        let text = |setup: &str| format!("[environment]\nsetup = '{setup}'\n");
        let file = policy(fixture, &text("ln -s /workspace ~/.own"))?;
        let file = file.to_string_lossy().into_owned();
        let line = ["run", "--policy", &file, "--agent", "own", "--prompt", "x"];
        let output = env.call(fixture).finish(&line)?;
        output.exits(2)?;
        ensure!(
            output.stderr.contains("is not a directory"),
            "{}",
            output.stderr
        );
        // A file that is there is replaced, and a link is not followed.
        policy(
            fixture,
            &text("mkdir ~/.own; ln -s /workspace/a.txt ~/.own/conf"),
        )?;
        let ran = result(env, fixture, &["--policy", &file, "--agent", "own"])?;
        ensure!(
            ran["changed_files"] == json!(["seen"]),
            "{}",
            ran["changed_files"]
        );
        ensure!(self::text(&ran)?.contains("+ours"), "{}", self::text(&ran)?);
        Ok(())
    })
}
