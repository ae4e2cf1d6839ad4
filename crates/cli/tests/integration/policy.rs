//! R14, R59, R60: a policy is read before anything starts; a repository can only narrow it; and what
//! is said of it is what holds.

mod init;
mod toolchains;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::{Fixture, Sandboxed, expect, in_each_mode, said};

/// A file beside the folder, readable by everybody.
fn file(fixture: &Fixture, name: &str, text: impl AsRef<[u8]>) -> Result<String> {
    let path: PathBuf = fixture
        .folder
        .with_file_name(format!("{}-{name}", fixture.name));
    fs::write(&path, text)?;
    Ok(path.to_str().context("a path of the test")?.to_owned())
}

fn json_of(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Value> {
    let text = env.look(fixture, words)?;
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn limits_variables_and_hidden_paths_of_a_policy_hold() -> Result<()> {
    in_each_mode("holds", |env, fixture| {
        env.put(fixture, "plain.txt", "x")?;
        env.put(fixture, ".env", "canary-policy")?;
        let policy = file(
            fixture,
            "p.toml",
            "[env]\npass = ['MINE', 'ABSENT']\nset = { CI = '1', PLACE = 'policy' }\n\
             [files]\nhide = ['plain.txt']\n[limits]\noutput = '1M'",
        )?;
        let shell =
            "ls -A; echo $MINE/$CI/$PLACE/$OTHER; head -c 3000000 /dev/zero | tr '\\0' x >&2";
        let options = ["--policy", &policy, "--env", "PLACE=typed"];
        let call = env
            .call(fixture)
            .variable("MINE", "mine")
            .variable("OTHER", "other");
        let result = call.run(&options, shell)?;
        let inside = said(&result);
        ensure!(inside.contains("mine/1/typed/\n"), "{inside}");
        ensure!(
            !inside.contains("plain.txt") && !inside.contains(".env"),
            "{inside}"
        );
        expect(&result, "outcome", "output_limit")?;
        // What was typed counts more than the policy.
        let options = ["--policy", &policy, "--output", "none"];
        let result = call.run(&options, shell)?;
        expect(&result, "outcome", "exited")
    })
}

#[test]
fn the_policy_is_in_the_bundle_without_values_and_is_explained() -> Result<()> {
    in_each_mode("explained", |env, fixture| {
        let text =
            "extends = 'offline'\n[files]\nhide = ['*.pem']\n[env]\nset = { A = 'canary-value' }";
        let policy = file(fixture, "p.toml", text)?;
        let result = env.run_with(fixture, &["--policy", &policy, "--hide", "typed"], "true")?;
        let run = result["run"].as_str().context("an id")?;
        let bundle = result["bundle"].as_str().context("a bundle")?;
        let manifest = fs::read_to_string(format!("{bundle}/manifest.json"))?;
        ensure!(!manifest.contains("canary-value"), "{manifest}");
        let manifest: Value = serde_json::from_str(&manifest)?;
        let hide = &manifest["policy"]["effective"]["files"]["hide"];
        ensure!(
            hide[0]["from"] == json!({ "file": policy, "line": 3 }),
            "{hide}"
        );
        ensure!(hide[1] == json!({ "text": "typed", "from": { "file": "--hide", "line": 0 } }));
        env.look(fixture, &["verify", run])?;
        let explained = json_of(env, fixture, &["policy", "explain", "--run", run, "--json"])?;
        expect(
            &explained,
            "policy_sha256",
            manifest["policy_sha256"].clone(),
        )?;
        expect(
            &explained,
            "policy",
            manifest["policy"]["effective"].clone(),
        )?;
        let asked = ["policy", "explain", "--run", "last", "sub/KEY.PEM"];
        let text = env.look(fixture, &asked)?;
        ensure!(
            text.contains("hidden: `*.pem`") && text.contains("p.toml:3"),
            "{text}"
        );
        // Without a policy a bundle is as it always was.
        let plain = env.run_with(fixture, &[], "true")?;
        let bundle = plain["bundle"].as_str().context("a bundle")?;
        let manifest = fs::read_to_string(format!("{bundle}/manifest.json"))?;
        ensure!(!manifest.contains("effective"), "{manifest}");
        Ok(())
    })
}

/// cfg-006: a policy file in the tree widens nothing, neither now nor on the next run.
#[test]
fn a_repository_can_only_narrow() -> Result<()> {
    in_each_mode("narrow", |env, fixture| {
        env.put(
            fixture,
            "ringfence.toml",
            "[network]\nallow = ['*', 'tcp 127.0.0.1:22']\n\
             [[files.mount]]\nhost = '/etc'\ninside = '/host-etc'\n\
             [secrets.OTHER]\nfrom = 'env:TOKEN'\nhosts = ['a.example']\n\
             [env]\npass = ['TOKEN']\nset = { LD_PRELOAD = '/x' }\n\
             [files]\nhide = ['narrowed']\n[limits]\nprocesses = 20\nmemory = '100T'",
        )?;
        env.put(fixture, "narrowed", "x")?;
        let shell = "env; ls; ls /host-etc; ip -o link 2>/dev/null | grep -v lo:; \
            for i in $(seq 40); do sleep 20 & done 2>/dev/null; wait";
        let call = env.call(fixture).variable("TOKEN", "canary-token");
        let result = call.run(&["--timeout", "2s"], shell)?;
        let inside = said(&result);
        for word in [
            "canary-token",
            "TOKEN=",
            "OTHER=",
            "LD_PRELOAD",
            "narrowed",
            "passwd",
        ] {
            ensure!(!inside.contains(word), "{word} in {inside}");
        }
        let notes = result["notes"].to_string();
        for item in [
            "`*` is ignored",
            "`tcp 127.0.0.1:22` is ignored",
            "files.mount /host-etc",
            "secrets.OTHER",
            "env.pass TOKEN",
            "env.set LD_PRELOAD",
            "limits.memory",
        ] {
            ensure!(notes.contains(item), "{item} is not in {notes}");
        }
        ensure!(!notes.contains("limits.processes"), "{notes}");
        let manifest = result["bundle"].as_str().context("a bundle")?;
        let manifest = fs::read_to_string(format!("{manifest}/manifest.json"))?;
        let manifest: Value = serde_json::from_str(&manifest)?;
        ensure!(manifest["policy"]["limits"]["processes"] == 20);
        // Told before the command starts, too.
        let output = env.call(fixture).finish(&["run", "--", "true"])?;
        ensure!(
            output.stderr.starts_with("note: policy: ringfence.toml:"),
            "{}",
            output.stderr
        );
        Ok(())
    })
}

#[test]
fn a_policy_that_cannot_be_read_stops_everything() -> Result<()> {
    in_each_mode("broken", |env, fixture| {
        let bad = file(fixture, "bad.toml", "[network]\nalow = ['*']")?;
        let nul = file(
            fixture,
            "nul.toml",
            "[files]\nhide = []\0\n[network]\nallow = ['*']",
        )?;
        let cycle = file(
            fixture,
            "cycle.toml",
            format!("extends = '{}-cycle.toml'", fixture.name),
        )?;
        let place = format!("{bad}:2:1:");
        for (words, code, parts) in [
            (
                vec!["--policy", &bad],
                2,
                vec![place.as_str(), "  2 | alow = ['*']", "    | ^^^^"],
            ),
            // cfg-008
            (vec!["--policy", &nul], 2, vec!["not shown as it is"]),
            (vec!["--policy", &cycle], 2, vec!["stands on itself"]),
            (
                vec!["--policy", "/nowhere/p.toml"],
                2,
                vec!["cannot read the policy"],
            ),
            (vec!["--policy", "/"], 2, vec!["not a regular file"]),
        ] {
            for verb in [vec!["run"], vec!["sandbox", "create"]] {
                let mut line = verb.clone();
                line.extend(&words);
                if verb[0] == "run" {
                    line.extend(["--", "touch", "ran"]);
                }
                let output = env.call(fixture).finish(&line)?;
                output.exits(code).with_context(|| format!("{line:?}"))?;
                for part in &parts {
                    ensure!(
                        output.stderr.contains(part),
                        "no {part:?}: {}",
                        output.stderr
                    );
                }
                ensure!(!output.stderr.contains('\0'), "{}", output.stderr);
            }
        }
        env.put(fixture, "ringfence.toml", "[limits]\nmemory = 'much'")?;
        let output = env.call(fixture).finish(&["run", "--", "touch", "ran"])?;
        output.exits(2)?;
        ensure!(
            output.stderr.contains("ringfence.toml:2:10:"),
            "{}",
            output.stderr
        );
        ensure!(env.runs(fixture, &[])?.is_empty(), "something ran");
        Ok(())
    })
}

#[test]
fn check_says_what_is_wrong_and_where() -> Result<()> {
    in_each_mode("check", |env, fixture| {
        let good = file(
            fixture,
            "good.toml",
            include_str!("../../../../examples/policy.toml"),
        )?;
        ensure!(env.look(fixture, &["policy", "check", &good])? == "ok\n");
        let proposal = include_str!("../../../../examples/ringfence.toml");
        let proposal = file(fixture, "proposal.toml", proposal)?;
        ensure!(env.look(fixture, &["policy", "check", &proposal])? == "ok\n");
        let told = env.look(fixture, &["policy", "explain", "--policy", &proposal])?;
        for item in [
            "environment.setup",
            "environment.key",
            "pip = true",
            "mounts.tmpfs",
        ] {
            ensure!(told.contains(item), "no `{item}` in {told}");
        }
        let bad = file(fixture, "bad.toml", "extends = 'nothing'")?;
        let output = env.call(fixture).finish(&["policy", "check", &bad])?;
        output.exits(1)?;
        ensure!(
            output.stderr.contains("bad.toml:1:12:"),
            "{}",
            output.stderr
        );
        let output = env
            .call(fixture)
            .finish(&["policy", "check", "--json", &bad])?;
        output.exits(1)?;
        let value = output.json.clone().context("JSON")?;
        expect(&value, "ok", false)?;
        ensure!(value["problems"][0]["column"] == 12, "{value}");
        // What every run refuses, whatever is on the host.
        for (host, inside, says) in [
            ("/", "/data", "the whole host"),
            ("/proc/1", "/data", "a face of the kernel"),
            ("/home", "/data", "a whole home directory"),
            ("/srv/x", "/usr", "something of its own there"),
            ("/srv/x", "/workspace/x", "something of its own there"),
        ] {
            let text = format!("\n[[files.mount]]\nhost = '{host}'\ninside = '{inside}'");
            let bad = file(fixture, "mount.toml", text)?;
            let output = env.call(fixture).finish(&["policy", "check", &bad])?;
            output.exits(1)?;
            ensure!(
                output.stderr.contains("mount.toml:2:") && output.stderr.contains(says),
                "{}",
                output.stderr
            );
        }
        let text = "[[files.mount]]\nhost = '/srv/nowhere'\ninside = '/data'";
        let absent = file(fixture, "absent.toml", text)?;
        ensure!(env.look(fixture, &["policy", "check", &absent])? == "ok\n");
        let output = env
            .call(fixture)
            .finish(&["run", "--policy", "preset:npm", "--", "true"])?;
        output.exits(2)?;
        for says in ["`preset:npm`: no such file", "offline, standard, online"] {
            ensure!(output.stderr.contains(says), "{}", output.stderr);
        }
        for words in [
            vec!["policy", "check", "/nowhere"],
            vec!["policy", "check"],
            vec!["policy", "explain", "--policy", "/nowhere"],
            vec!["policy", "explain", "/etc/passwd"],
            vec!["policy", "explain", "ftp://a.example"],
            vec!["policy", "explain", "--run", "nothing"],
            vec!["policy", "explain", "--run", "last", "--policy", "online"],
        ] {
            let output = env.call(fixture).finish(&words)?;
            output.exits(2).with_context(|| format!("{words:?}"))?;
        }
        Ok(())
    })
}

#[test]
fn a_url_is_explained_by_the_line_that_decides() -> Result<()> {
    in_each_mode("url", |env, fixture| {
        let policy = file(
            fixture,
            "p.toml",
            "[network]\nallow = ['GET api.example/repos/**', 'tcp db.example:5432']",
        )?;
        let explain = |question: &[&str]| {
            let words = ["policy", "explain", "--policy", &policy];
            env.look(fixture, &[&words, question].concat())
        };
        let text = explain(&["https://api.example/repos/x"])?;
        ensure!(
            text.starts_with("allowed: `GET api.example/repos/**`"),
            "{text}"
        );
        ensure!(text.contains("p.toml:2"), "{text}");
        let text = explain(&["POST", "https://api.example/repos/x"])?;
        ensure!(
            text.contains("denied") && text.contains("POST api.example/repos/x"),
            "{text}"
        );
        let text = explain(&["tcp", "db.example:5432"])?;
        ensure!(text.starts_with("allowed"), "{text}");
        let text = explain(&["--json", "http://other.example/"])?;
        let value: Value = serde_json::from_str(&text)?;
        expect(&value, "allowed", false)?;
        expect(&value, "reason", "host")?;
        expect(&value, "would_allow", "GET other.example/")
    })
}

#[test]
fn a_sandbox_keeps_its_policy() -> Result<()> {
    in_each_mode("kept", |env, fixture| {
        env.put(
            fixture,
            "ringfence.toml",
            "[limits]\noutput = '1K'\n[env]\npass = ['LANG']",
        )?;
        let policy = file(
            fixture,
            "p.toml",
            "extends = 'offline'\n[env]\npass = ['LANG', 'MINE']\nset = { CI = '1' }\n[limits]\nmemory = '256M'",
        )?;
        let call = env
            .call(fixture)
            .variable("MINE", "x")
            .variable("LANG", "C");
        let words = [
            "sandbox", "create", "--json", "--policy", &policy, "--env", "T=typed",
        ];
        let output = call.finish(&words)?;
        output.exits(0)?;
        let sandbox = output.json.clone().context("JSON")?["sandbox"].clone();
        let id = sandbox.as_str().context("an id")?;
        // It counts from the first command on, and after a stop.
        for _ in 0..2 {
            let shell = "echo $CI/$LANG/$MINE/$T";
            let words = ["sandbox", "exec", id, "--", "sh", "-c", shell];
            let text = env.look(fixture, &words)?;
            ensure!(text.starts_with("1/C//typed\n"), "{text}");
            env.look(fixture, &["sandbox", "stop", id])?;
        }
        let shell = "head -c 100000 /dev/zero | tr '\\0' x; sleep 1000";
        let words = ["sandbox", "exec", "--json", id, "--", "sh", "-c", shell];
        let output = env.ringfence(fixture, 60, &words)?;
        let result = output.json.clone().context("JSON")?;
        expect(&result, "outcome", "output_limit")?;
        env.look(fixture, &["sandbox", "rm", id])?;
        Ok(())
    })
}
